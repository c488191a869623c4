//! What is particular to devices with memory of their own.

use crate::graph::{Arena, Graph, packed};
use crate::plugin::Host;
use crate::{Add, Hosts, PLAIN, Setting};
use ssmgraph_ggml::abi;

pub fn add(add: Add<'_>) {
    let small = Setting { cuda: true, variables: &[("SSMGRAPH_EMULATOR_MEMORY_BYTES", "8388608")], ..PLAIN };
    add("cuda::memory_limit", Hosts::Only(small), memory_limit);
    add("cuda::freed_at_once", Hosts::Only(small), freed_at_once);
    add("cuda::buffers_of_others", Hosts::Only(Setting { cuda: true, ..PLAIN }), buffers_of_others);
    let failing = Setting { cuda: true, variables: &[("SSMGRAPH_EMULATOR_FAULT", "launch:1")], ..PLAIN };
    add("cuda::failed_launch", Hosts::Only(failing), failed_launch);
}

/// A buffer that does not fit is refused, and the device goes on.
fn memory_limit(host: Host) {
    let device = host.device();
    let start = host.lines().len();
    assert!(device.buffer_type().allocate(1 << 30).is_null());
    let lines = host.lines_since(start);
    assert!(lines.contains("SSMGRAPH-CUDA0") && lines.contains("out of memory"), "{lines}");
    assert!(device.properties().memory_total <= 8 << 20);
    let mut arena = Arena::new(device, 4096);
    let x = arena.floats(&[2], &[1.0, 2.0]);
    let node = arena.node(abi::OP_ADD, &[], &[x, x], &packed(&[2]));
    device.stream().must_compute(&Graph::of(&[node]));
    assert_eq!(arena.values(node), [2.0, 4.0]);
}

fn failed_launch(host: Host) {
    let (device, mut arena) = (host.device(), Arena::new(host.device(), 4096));
    let stream = device.stream();
    let x = arena.floats(&[2], &[1.0, 2.0]);
    let node = arena.node(abi::OP_ADD, &[], &[x, x], &packed(&[2]));
    let graph = Graph::of(&[node]);
    let statuses: Vec<i32> = (0..3).map(|_| stream.compute(&graph)).collect();
    assert_eq!(
        statuses.iter().filter(|&&status| status != abi::STATUS_SUCCESS).count(),
        1,
        "{}",
        host.lines()
    );
    assert_eq!(arena.values(node), [2.0, 4.0]);
}

/// A host frees a buffer to make room for another: plans that know the old one do not hold its memory.
fn freed_at_once(host: Host) {
    let device = host.device();
    let stream = device.stream();
    for round in 0..4 {
        let mut arena = Arena::new(device, 5 << 20);
        let x = arena.floats(&[2], &[1.0, round as f32]);
        let node = arena.node(abi::OP_ADD, &[], &[x, x], &packed(&[2]));
        stream.must_compute(&Graph::of(&[node]));
        assert_eq!(arena.values(node), [2.0, 2.0 * f64::from(round)]);
    }
}

/// A graph over memory that the device does not reach fails, and says so.
fn buffers_of_others(host: Host) {
    let devices = host.devices();
    let mut arenas = [Arena::new(devices[0], 4096), Arena::new(devices[1], 4096)];
    let nodes = [0, 1].map(|index| {
        let x = arenas[index].floats(&[2], &[1.0, 2.0]);
        arenas[index].node(abi::OP_ADD, &[], &[x, x], &packed(&[2]))
    });
    for (device, node) in [(devices[0], nodes[1]), (devices[1], nodes[0])] {
        let start = host.lines().len();
        assert_eq!(device.stream().compute(&Graph::of(&[node])), abi::STATUS_FAILED);
        assert!(host.lines_since(start).contains("another backend"), "{}", host.lines());
    }
}
