//! What is planned again, and what is not.

use crate::graph::{Arena, Graph, Node, address_of, edit, float, packed};
use crate::plugin::{Host, Stream};
use crate::{Add, Hosts};
use ssmgraph_ggml::abi;

pub fn add(add: Add<'_>) {
    add("plans::kept", Hosts::All, kept);
    add("plans::changes_are_noticed", Hosts::All, changes_are_noticed);
    add("plans::numbers_are_trusted", Hosts::All, numbers_are_trusted);
    add("plans::more_than_are_kept", Hosts::All, more_than_are_kept);
    add("plans::buffers_come_and_go", Hosts::All, buffers_come_and_go);
    add("plans::threads", Hosts::All, threads);
}

/// x · 2 as a graph of one node.
struct Doubling {
    arena: Arena,
    x: Node,
    node: Node,
}

impl Doubling {
    fn new(host: &Host) -> Doubling {
        let mut arena = Arena::new(host.device(), 1 << 14);
        let x = arena.floats(&[4], &[1.0, 2.0, 3.0, 4.0]);
        let node = arena.node(abi::OP_SCALE, &[float(2.0), 0], &[x], &packed(&[4]));
        Doubling { arena, x, node }
    }

    fn graph(&self) -> Graph {
        Graph::of(&[self.node])
    }
}

fn planned(host: &Host, stream: &Stream) -> u64 {
    host.counts(stream).planned
}

/// A decode step plans nothing, also where the host builds its graph anew.
fn kept(host: Host) {
    let doubling = Doubling::new(&host);
    let stream = host.device().stream();
    for step in 0..10 {
        doubling.arena.write(doubling.x, &bytes_of([step as f32; 4]));
        stream.must_compute(&doubling.graph());
        assert_eq!(doubling.arena.values(doubling.node), [2.0 * f64::from(step); 4]);
    }
    assert_eq!(host.counts(&stream), abi::Counts { nodes: 10, steps: 10, planned: 1 });
    // Two graphs that take turns are both kept.
    let other = Doubling::new(&host);
    for _ in 0..5 {
        stream.must_compute(&other.graph());
        stream.must_compute(&doubling.graph());
    }
    assert_eq!(planned(&host, &stream), 2);
    // The end of a stream says what it did.
    drop(stream);
    let said = format!("{} computed 20 nodes of graphs in 20 steps, planned 2 graphs", host.device().name());
    assert!(host.lines().contains(&said), "{}", host.lines());
}

fn bytes_of(values: [f32; 4]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn changes_are_noticed(host: Host) {
    let mut doubling = Doubling::new(&host);
    let stream = host.device().stream();
    let (graph, node, x) = (doubling.graph(), doubling.node, doubling.x);
    stream.must_compute(&graph);

    edit(node, |node| node.params[0] = float(3.0));
    stream.must_compute(&graph);
    assert_eq!((planned(&host, &stream), doubling.arena.values(node)), (2, vec![3.0, 6.0, 9.0, 12.0]));

    let elsewhere = doubling.arena.room(16);
    edit(node, |node| node.data = elsewhere as *mut _);
    stream.must_compute(&graph);
    assert_eq!((planned(&host, &stream), doubling.arena.values(node)), (3, vec![3.0, 6.0, 9.0, 12.0]));

    let moved = address_of(x) + 4;
    edit(x, |x| (x.data, x.ne[0], x.nb) = (moved as *mut _, 3, packed(&[3]).nb));
    edit(node, |node| (node.ne[0], node.nb) = (3, packed(&[3]).nb));
    stream.must_compute(&graph);
    assert_eq!((planned(&host, &stream), doubling.arena.values(node)), (4, vec![6.0, 9.0, 12.0]));

    edit(node, |node| node.op = abi::OP_UNARY);
    edit(node, |node| node.params[0] = 2);
    stream.must_compute(&graph);
    assert_eq!((planned(&host, &stream), doubling.arena.values(node)), (5, vec![-2.0, -3.0, -4.0]));

    // The same operands in other places.
    let sum = doubling.arena.node(abi::OP_ADD, &[], &[x, x], &packed(&[3]));
    stream.must_compute(&Graph::of(&[sum]));
    edit(sum, |sum| sum.sources[..3].copy_from_slice(&[x, std::ptr::null_mut(), x]));
    assert_eq!(stream.compute(&Graph::of(&[sum])), abi::STATUS_FAILED);

    // Who reads a result decides what is fused.
    let norm = doubling.arena.node(abi::OP_RMS_NORM, &[float(1e-5)], &[x], &packed(&[3]));
    let product = doubling.arena.node(abi::OP_MUL, &[], &[norm, x], &packed(&[3]));
    stream.must_compute(&Graph::of(&[norm, product]));
    let before = doubling.arena.read(norm).bytes().to_vec();
    let fused = planned(&host, &stream);
    edit(norm, |norm| norm.flags |= abi::FLAG_OUTPUT);
    stream.must_compute(&Graph::of(&[norm, product]));
    assert_eq!(planned(&host, &stream), fused + 1);
    assert_ne!(doubling.arena.read(norm).bytes(), before, "an output must be there");
    // The graph without the flag is the first again, unless its middle has found another reader.
    edit(norm, |norm| norm.flags &= !abi::FLAG_OUTPUT);
    stream.must_compute(&Graph::of(&[norm, product]));
    assert_eq!(planned(&host, &stream), fused + 1);
    let mut read_elsewhere = Graph::of(&[norm, product]);
    read_elsewhere.add_reader(norm);
    stream.must_compute(&read_elsewhere);
    assert_eq!(planned(&host, &stream), fused + 2);
}

/// A host that numbers its graphs promises that equal numbers are equal graphs.
fn numbers_are_trusted(host: Host) {
    let doubling = Doubling::new(&host);
    let stream = host.device().stream();
    let mut graph = Graph::numbered(&[doubling.node], 7);
    for _ in 0..3 {
        stream.must_compute(&graph);
    }
    assert_eq!(planned(&host, &stream), 1);
    // The same graph under a new number is found by its contents, and trusted under it from then on.
    graph.set_uid(8);
    stream.must_compute(&graph);
    assert_eq!(planned(&host, &stream), 1);
    // Another graph has another number.
    edit(doubling.node, |node| node.params[0] = float(5.0));
    graph.set_uid(9);
    stream.must_compute(&graph);
    assert_eq!(planned(&host, &stream), 2);
    assert_eq!(doubling.arena.values(doubling.node), [5.0, 10.0, 15.0, 20.0]);
    // A host that stops numbering is compared again.
    graph.set_uid(0);
    edit(doubling.node, |node| node.params[0] = float(6.0));
    stream.must_compute(&graph);
    assert_eq!(doubling.arena.values(doubling.node), [6.0, 12.0, 18.0, 24.0]);
}

fn more_than_are_kept(host: Host) {
    let doubling = Doubling::new(&host);
    let stream = host.device().stream();
    for round in 0..2 {
        for factor in 0..40 {
            edit(doubling.node, |node| node.params[0] = float(factor as f32));
            stream.must_compute(&doubling.graph());
            let expected = [1.0, 2.0, 3.0, 4.0].map(|x| x * f64::from(factor));
            assert_eq!(doubling.arena.values(doubling.node), expected, "round {round}");
        }
    }
    // The one used last is kept.
    let before = planned(&host, &stream);
    stream.must_compute(&doubling.graph());
    assert_eq!(planned(&host, &stream), before);
}

/// A host frees buffers that plans know, and gets new ones, of another size at the same address too.
fn buffers_come_and_go(host: Host) {
    let stream = host.device().stream();
    for round in 0..20 {
        let mut arena = Arena::new(host.device(), 1 << (12 + round % 4));
        let x = arena.floats(&[4], &[round as f32; 4]);
        let node = arena.node(abi::OP_SCALE, &[float(2.0), 0], &[x], &packed(&[4]));
        stream.must_compute(&Graph::of(&[node]));
        assert_eq!(arena.values(node), [2.0 * f64::from(round); 4]);
    }
}

fn threads(host: Host) {
    let doubling = Doubling::new(&host);
    let stream = host.device().stream();
    for threads in [1, 2, 7, 0, -3, i32::MAX] {
        host.set_threads(&stream, threads);
        stream.must_compute(&doubling.graph());
        assert_eq!(doubling.arena.values(doubling.node), [2.0, 4.0, 6.0, 8.0], "{threads} threads");
    }
    // Hosts set the number before each batch: an equal one changes nothing.
    host.set_threads(&stream, 2);
    stream.must_compute(&doubling.graph());
    let before = planned(&host, &stream);
    host.set_threads(&stream, 2);
    stream.must_compute(&doubling.graph());
    assert_eq!(planned(&host, &stream), before);
}
