//! What cannot be computed: a status, a line in the log, and the next graph works.

use crate::graph::{Arena, Graph, Node, edit, packed};
use crate::plugin::{Host, Stream};
use crate::{Add, Hosts};
use ssmgraph::ops::HostTensor;
use ssmgraph_ggml::abi;

pub fn add(add: Add<'_>) {
    add("errors::id_out_of_range", Hosts::All, id_out_of_range);
    add("errors::no_buffer", Hosts::All, no_buffer);
    add("errors::unsupported_node", Hosts::All, unsupported_node);
    add("errors::outside_its_buffer", Hosts::All, outside_its_buffer);
    add("errors::operand_absent", Hosts::All, operand_absent);
    add("errors::no_graph", Hosts::All, no_graph);
}

/// A node fails, with these words in the log; the same stream computes the next graph.
fn fails(host: &Host, stream: &Stream, arena: &mut Arena, node: Node, words: &[&str]) {
    let start = host.lines().len();
    assert_eq!(stream.compute(&Graph::of(&[node])), abi::STATUS_FAILED);
    let lines = host.lines_since(start);
    for word in words.iter().chain(&[host.device().name().as_str()]) {
        assert!(lines.contains(word), "{word} is not in: {lines}");
    }
    assert!(!lines.contains("panicked"), "{lines}");
    let x = arena.floats(&[2], &[1.0, 2.0]);
    let good = arena.node(abi::OP_ADD, &[], &[x, x], &packed(&[2]));
    stream.must_compute(&Graph::of(&[good]));
    assert_eq!(arena.values(good), [2.0, 4.0]);
}

fn id_out_of_range(host: Host) {
    let (device, mut arena) = (host.device(), Arena::new(host.device(), 1 << 15));
    let stream = device.stream();
    let table = arena.floats(&[2, 3], &[1.0; 6]);
    for id in [3, i32::MAX, -2] {
        let ids = arena.leaf(&HostTensor::from_i32(&[1], &[id]).expect("one"));
        let node = arena.node(abi::OP_GET_ROWS, &[], &[table, ids], &packed(&[2, 1]));
        assert!(device.supports(node));
        fails(&host, &stream, &mut arena, node, &["get_rows", &id.to_string()]);
        // The same node with a right id: the plan was not the reason.
        arena.write(ids, &1i32.to_le_bytes());
        stream.must_compute(&Graph::of(&[node]));
        assert_eq!(arena.values(node), [1.0, 1.0]);
    }
}

fn no_buffer(host: Host) {
    let mut arena = Arena::new(host.device(), 1 << 14);
    let stream = host.device().stream();
    let x = arena.floats(&[2], &[1.0, 2.0]);
    let node = arena.node(abi::OP_ADD, &[], &[x, x], &packed(&[2]));
    edit(node, |node| {
        node.buffer = std::ptr::null_mut();
        node.name[..3].copy_from_slice(&[b'o' as _, b'f' as _, b'f' as _]);
    });
    fails(&host, &stream, &mut arena, node, &["off lies in no buffer"]);
}

fn unsupported_node(host: Host) {
    let mut arena = Arena::new(host.device(), 1 << 14);
    let stream = host.device().stream();
    let x = arena.floats(&[2], &[1.0, 2.0]);
    let node = arena.node(9999, &[], &[x], &packed(&[2]));
    fails(&host, &stream, &mut arena, node, &["op 9999"]);
    let tall = arena.node(abi::OP_ADD, &[], &[x, x], &packed(&[3]));
    fails(&host, &stream, &mut arena, tall, &["ADD", "the result is"]);
}

/// The data of a tensor reach past the end of its buffer, or lie before it.
fn outside_its_buffer(host: Host) {
    let mut arena = Arena::new(host.device(), 1 << 14);
    let stream = host.device().stream();
    let x = arena.floats(&[2], &[1.0, 2.0]);
    // SAFETY: the buffer lives.
    let base = unsafe { (*arena.buffer).table.get_base.expect("is there")(arena.buffer) } as usize;
    for address in [base + (1 << 14) - 4, base + (1 << 20), base - 64, 64, usize::MAX - 3] {
        let node = arena.node_at(address, abi::OP_ADD, &[], &[x, x], &packed(&[2]));
        fails(&host, &stream, &mut arena, node, &[]);
    }
}

fn operand_absent(host: Host) {
    let mut arena = Arena::new(host.device(), 1 << 14);
    let stream = host.device().stream();
    let x = arena.floats(&[2], &[1.0, 2.0]);
    let node = arena.node(abi::OP_ADD, &[], &[x], &packed(&[2]));
    fails(&host, &stream, &mut arena, node, &["operand 1 is absent"]);
}

fn no_graph(host: Host) {
    let stream = host.device().stream();
    // SAFETY: null is answered.
    let status = unsafe { ((*stream.0).table.graph_compute)(stream.0, std::ptr::null_mut()) };
    assert_eq!(status, abi::STATUS_FAILED);
}
