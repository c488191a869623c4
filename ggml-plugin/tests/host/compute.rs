//! Every op that the plugin translates, on every conformance case that ggml has a node for, against the reference.

use crate::graph::{Arena, Graph, address_of, edit, packed};
use crate::nodes::{cases, expected, forms, ramp, words, wrong};
use crate::plugin::Host;
use crate::{Add, Hosts};
use ssmgraph::ops::Layout;
use ssmgraph_ggml::abi;
use std::collections::BTreeSet;

/// The emulator is slow: cases with more elements are left to the conformance suite.
const EMULATED_ELEMENTS_MAX: usize = 600;

pub fn add(add: Add<'_>) {
    add("compute::every_op", Hosts::All, every_op);
    add("compute::views", Hosts::All, views);
    add("compute::skipped", Hosts::All, skipped);
    add("compute::empty", Hosts::All, empty);
    add("compute::many_nodes", Hosts::OwnAndShared, many_nodes);
    add("compute::two_threads", Hosts::All, two_threads);
}

/// Node kinds that compute nothing.
const VIEWS: [i32; 5] = [abi::OP_NONE, abi::OP_RESHAPE, abi::OP_VIEW, abi::OP_PERMUTE, abi::OP_TRANSPOSE];

fn every_op(host: Host) {
    let device = host.device();
    let stream = device.stream();
    let mut computed = BTreeSet::new();
    let mut failures = Vec::new();
    for case in cases() {
        let elements: usize = case.inputs.iter().map(|input| input.layout().elements()).sum();
        if host.setting.cuda && elements > EMULATED_ELEMENTS_MAX {
            continue;
        }
        for form in forms(&case) {
            let mut arena = Arena::new(device, form.bytes());
            let leaves = form.leaves(&mut arena);
            let node = form.node(&mut arena, &leaves);
            if !device.supports(node) {
                if !form.is_declined(host.setting.cuda) {
                    failures.push(format!(
                        "{}: declined, {}",
                        words(&case),
                        host.lines().lines().last().unwrap_or("")
                    ));
                }
                continue;
            }
            let before = arena.dump();
            let status = stream.compute(&Graph::of(&[node]));
            if status != abi::STATUS_SUCCESS {
                failures.push(format!("{}: {}", words(&case), host.lines().lines().last().unwrap_or("")));
                continue;
            }
            if let Some(what) = wrong(&case, &arena.read(node), &expected(&case)) {
                failures.push(format!("{}: {what}", words(&case)));
            }
            arena.only_changed(before, &[node]);
            computed.insert(form.op);
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    let missing =
        abi::OP_NAMES.iter().filter(|(number, _)| !VIEWS.contains(number) && !computed.contains(number));
    let missing: Vec<&str> = missing.map(|(_, name)| *name).collect();
    assert!(missing.is_empty(), "never computed: {missing:?}");
    assert!(!host.lines().contains("panicked"), "{}", host.lines());
}

/// A sum of two, the least that a host can want.
pub fn add_two(host: &Host) {
    let device = host.device();
    let mut arena = Arena::new(device, 4096);
    let (a, b) = (arena.floats(&[3], &[1.0, 2.0, 3.0]), arena.floats(&[3], &[0.5, 0.25, 4.0]));
    let sum = arena.node(abi::OP_ADD, &[], &[a, b], &packed(&[3]));
    assert!(device.supports(sum));
    device.stream().must_compute(&Graph::of(&[sum]));
    assert_eq!(arena.values(sum), [1.5, 2.25, 7.0]);
}

/// Nodes that show other bytes stand in graphs and compute nothing.
fn views(host: Host) {
    let device = host.device();
    let mut arena = Arena::new(device, 8192);
    let x = arena.floats(&[4, 3], &ramp(&[4, 3]));
    let mut nodes = Vec::new();
    let mut view = |arena: &Arena, op, layout: &Layout, offset: usize| {
        let node = arena.node_at(address_of(x) + offset, op, &[], &[x], layout);
        edit(node, |node| (node.view_source, node.view_offset) = (x, offset));
        assert!(device.supports(node));
        nodes.push(node);
        node
    };
    let whole = packed(&[4, 3]);
    let flat = view(&arena, abi::OP_RESHAPE, &packed(&[12]), 0);
    let turned = view(&arena, abi::OP_TRANSPOSE, &whole.permute([1, 0, 2, 3]).expect("fits"), 0);
    let part = Layout { ne: [2, 3, 1, 1], ..whole };
    let part = view(&arena, abi::OP_VIEW, &part, 4);
    view(&arena, abi::OP_PERMUTE, &whole.permute([0, 2, 1, 3]).expect("fits"), 0);
    // llama.cpp's graphs have views of no elements.
    view(&arena, abi::OP_VIEW, &packed(&[0]), 48);
    let doubled = |arena: &mut Arena, of, layout: &Layout| arena.node(abi::OP_ADD, &[], &[of, of], layout);
    let of_flat = doubled(&mut arena, flat, &packed(&[12]));
    let of_part = doubled(&mut arena, part, &packed(&[2, 3]));
    let packed_turn = arena.node(abi::OP_CONT, &[], &[turned], &packed(&[3, 4]));
    nodes.extend([of_flat, of_part, packed_turn]);
    device.stream().must_compute(&Graph::of(&nodes));
    let values: Vec<f64> = ramp(&[4, 3]).iter().map(|&value| f64::from(value)).collect();
    let twice: Vec<f64> = values.iter().map(|value| 2.0 * value).collect();
    assert_eq!(arena.values(of_flat), twice);
    assert_eq!(arena.values(of_part), [1, 2, 5, 6, 9, 10].map(|index| twice[index]));
    assert_eq!(arena.values(packed_turn), [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11].map(|index| values[index]));
}

/// A node that the host does not want is left alone, also when the device could not compute it.
fn skipped(host: Host) {
    let device = host.device();
    let mut arena = Arena::new(device, 8192);
    let x = arena.floats(&[4], &ramp(&[4]));
    let unwanted = arena.node(abi::OP_ADD, &[], &[x, x], &packed(&[4]));
    let unknown = arena.node(9999, &[], &[x], &packed(&[4]));
    for node in [unwanted, unknown] {
        edit(node, |node| node.flags &= !abi::FLAG_COMPUTE);
    }
    let wanted = arena.node(abi::OP_MUL, &[], &[x, x], &packed(&[4]));
    let before = arena.dump();
    let stream = device.stream();
    let graph = Graph::of(&[unwanted, unknown, wanted]);
    stream.must_compute(&graph);
    arena.only_changed(before, &[wanted]);
    assert_eq!(host.counts(&stream).steps, 1);
    // Once it is wanted, it is computed.
    edit(unwanted, |node| node.flags |= abi::FLAG_COMPUTE);
    stream.must_compute(&graph);
    assert_eq!(host.counts(&stream), abi::Counts { nodes: 6, steps: 3, planned: 2 });
    assert_eq!(
        arena.values(unwanted),
        ramp(&[4]).iter().map(|&value| 2.0 * f64::from(value)).collect::<Vec<_>>()
    );
}

fn empty(host: Host) {
    let stream = host.device().stream();
    stream.must_compute(&Graph::of(&[]));
    let mut arena = Arena::new(host.device(), 4096);
    let none = arena.tensor(&packed(&[0, 3]));
    let sum = arena.node(abi::OP_ADD, &[], &[none, none], &packed(&[0, 3]));
    let rows = arena.node(abi::OP_SUM_ROWS, &[], &[none], &packed(&[1, 3]));
    stream.must_compute(&Graph::of(&[sum, none, rows]));
    assert_eq!(arena.values(rows), [0.0; 3]);
    stream.must_compute(&Graph::of(&[none]));
}

/// A chain that is longer than any model's.
fn many_nodes(host: Host) {
    const NODES: usize = 5000;
    let device = host.device();
    let mut arena = Arena::new(device, (NODES + 3) * 512);
    let one = arena.floats(&[5], &[1.0; 5]);
    let mut nodes = vec![arena.node(abi::OP_ADD, &[], &[one, one], &packed(&[5]))];
    for _ in 1..NODES {
        let last = nodes[nodes.len() - 1];
        nodes.push(arena.node(abi::OP_ADD, &[], &[last, one], &packed(&[5])));
    }
    let (stream, graph) = (device.stream(), Graph::of(&nodes));
    for _ in 0..2 {
        stream.must_compute(&graph);
        assert_eq!(arena.values(nodes[NODES - 1]), [(NODES + 1) as f64; 5]);
    }
    assert_eq!(host.counts(&stream).planned, 1);
}

/// Streams of two threads do not disturb each other.
fn two_threads(host: Host) {
    let device = host.device();
    let work = |seed: f32| {
        let (device, version) = (device.0 as usize, device.1);
        move || {
            let device = crate::plugin::Device(device as *mut abi::Device, version);
            let mut arena = Arena::new(device, 1 << 16);
            let stream = device.stream();
            let x = arena.floats(&[64], &[seed; 64]);
            let y = arena.node(abi::OP_MUL, &[], &[x, x], &packed(&[64]));
            let z = arena.node(abi::OP_ADD, &[], &[y, x], &packed(&[64]));
            let graph = Graph::of(&[y, z]);
            for _ in 0..50 {
                stream.must_compute(&graph);
                assert_eq!(arena.values(z), [f64::from(seed * seed + seed); 64]);
            }
        }
    };
    let threads = [2.0, 3.0].map(|seed| std::thread::spawn(work(seed)));
    for thread in threads {
        thread.join().expect("a thread that panicked has said why");
    }
}
