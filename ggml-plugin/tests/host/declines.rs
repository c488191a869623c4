//! What a device says about nodes that have no memory, or make no sense.

use crate::base::NOT_OURS;
use crate::graph::{Node, blank, edit, float, packed, set_op};
use crate::nodes::{forms, type_number, words};
use crate::plugin::Host;
use crate::{Add, Hosts};
use ssmgraph::ops::{DType, Layout, OpKind};
use ssmgraph_ggml::abi;

pub fn add(add: Add<'_>) {
    add("declines::before_allocation", Hosts::All, before_allocation);
    add("declines::nonsense", Hosts::All, nonsense);
    add("declines::positions_with_gaps", Hosts::All, positions_with_gaps);
    add("declines::shared_result", Hosts::All, shared_result);
    add("declines::said_once", Hosts::Own, said_once);
}

/// A host asks before it has placed anything: the answer is the one that it gets later.
fn before_allocation(host: Host) {
    let device = host.device();
    for case in OpKind::ALL.iter().flat_map(|kind| kind.cases()) {
        for form in forms(&case) {
            let leaves: Vec<Node> = form.inputs.iter().map(|input| blank(input.layout())).collect();
            let sources: Vec<Node> = form.sources.iter().map(|&index| leaves[index]).collect();
            let node = blank(&form.result);
            set_op(node, form.op, &form.params, &sources);
            assert_eq!(
                device.supports(node),
                !form.is_declined(host.setting.cuda),
                "{}: {}",
                words(&case),
                host.lines()
            );
        }
    }
    // SAFETY: null is answered.
    assert!(!device.supports(std::ptr::null()));
    for op in [abi::OP_NONE, abi::OP_RESHAPE, abi::OP_VIEW, abi::OP_PERMUTE, abi::OP_TRANSPOSE] {
        let node = blank(&packed(&[0]));
        set_op(node, op, &[], &[]);
        assert!(device.supports(node));
    }
}

/// Counts, strides, parameters and types that no tensor has. Any answer will do, but none may panic.
fn nonsense(host: Host) {
    let device = host.device();
    let counts = [0, -1, i64::MIN, i64::MAX, 1 << 31, 1 << 40, 1 << 62];
    let strides = [0, 1, 3, usize::MAX, usize::MAX - 3, 1 << 63, 1 << 40];
    let params = [-1, i32::MIN, i32::MAX, 1 << 20, float(f32::NAN), float(f32::INFINITY)];
    for &(op, _) in abi::OP_NAMES {
        for sources in 0..=abi::SOURCES {
            let operands: Vec<Node> = (0..sources).map(|_| blank(&packed(&[4, 2]))).collect();
            let node = blank(&packed(&[4, 2]));
            set_op(node, op, &[], &operands);
            device.supports(node);
            // Each number of each tensor in turn.
            for &tensor in operands.iter().chain([&node]) {
                for axis in 0..abi::AXES {
                    for value in counts {
                        with(device, node, tensor, |tensor| tensor.ne[axis] = value);
                        with(device, node, tensor, |tensor| (tensor.ne[axis], tensor.nb) = (value, [0; 4]));
                    }
                    for value in strides {
                        with(device, node, tensor, |tensor| tensor.nb[axis] = value);
                    }
                }
                for dtype in (-1..45).chain([i32::MIN, i32::MAX]) {
                    with(device, node, tensor, |tensor| tensor.dtype = dtype);
                }
            }
            for (index, value) in (0..abi::PARAMS).flat_map(|index| params.map(|value| (index, value))) {
                with(device, node, node, |node| node.params[index] = value);
            }
        }
    }
    every_case_spoilt(&host);
    for op in (-3..130).chain([i32::MIN, i32::MAX]) {
        let (x, node) = (blank(&packed(&[4])), blank(&packed(&[4])));
        set_op(node, op, &[], &[x, x, x, x, x, x, x]);
        device.supports(node);
    }
    let lines = host.lines();
    assert!(
        !lines.contains("panicked"),
        "{}",
        lines.lines().filter(|line| line.contains("panicked")).collect::<String>()
    );
}

/// Right nodes with one thing wrong: closer to what passes the first checks.
fn every_case_spoilt(host: &Host) {
    let device = host.device();
    for kind in OpKind::ALL {
        let cases = kind.cases();
        for form in cases.iter().step_by(cases.len() / 4 + 1).flat_map(forms) {
            let leaves: Vec<Node> = form.inputs.iter().map(|input| blank(input.layout())).collect();
            let sources: Vec<Node> = form.sources.iter().map(|&index| leaves[index]).collect();
            let node = blank(&form.result);
            set_op(node, form.op, &form.params, &sources);
            for &tensor in sources.iter().chain([&node]) {
                for axis in 0..abi::AXES {
                    for value in [0, -1, 1 << 31, 1 << 60] {
                        // In all at once, as a whole graph of that size would have it.
                        let old: Vec<i64> =
                            sources.iter().chain([&node]).map(|&tensor| count(tensor, axis)).collect();
                        let same = count(tensor, axis);
                        for &other in
                            sources.iter().chain([&node]).filter(|&&other| count(other, axis) == same)
                        {
                            edit(other, |other| (other.ne[axis], other.nb[axis]) = (value, 0));
                        }
                        device.supports(node);
                        for (&other, old) in sources.iter().chain([&node]).zip(old) {
                            edit(other, |other| other.ne[axis] = old);
                        }
                        with(device, node, tensor, |tensor| (tensor.ne[axis], tensor.nb[axis]) = (value, 0));
                    }
                    with(device, node, tensor, |tensor| tensor.nb[axis] = 0);
                    with(device, node, tensor, |tensor| tensor.nb[axis] = usize::MAX / 8 * 8);
                }
                with(device, node, tensor, |tensor| tensor.dtype = type_number(DType::I64));
                with(device, node, tensor, |tensor| tensor.dtype = type_number(DType::Q8_0));
            }
            for index in 0..sources.len() {
                with(device, node, node, |node| node.sources[index] = std::ptr::null_mut());
            }
            for (index, value) in
                (0..abi::PARAMS).flat_map(|index| [-1, i32::MAX].map(|value| (index, value)))
            {
                with(device, node, node, |node| node.params[index] = value);
            }
        }
    }
}

fn count(tensor: Node, axis: usize) -> i64 {
    // SAFETY: a test's tensor.
    unsafe { (*tensor).ne[axis] }
}

/// Asks about a node with one tensor changed.
fn with(device: crate::plugin::Device, node: Node, tensor: Node, change: impl FnOnce(&mut abi::Tensor)) {
    // SAFETY: tensors stay, and a copy of one is plain bytes.
    let saved = unsafe { tensor.read() };
    edit(tensor, change);
    device.supports(node);
    edit(tensor, |tensor| *tensor = saved);
}

/// ROPE reads its positions as one packed list.
fn positions_with_gaps(host: Host) {
    let list = blank(&Layout::contiguous(DType::I32, &[3]).expect("fits"));
    let (x, node) = (blank(&packed(&[4, 2, 3])), blank(&packed(&[4, 2, 3])));
    let mut params = [0; abi::PARAMS];
    (params[1], params[5], params[6], params[8]) = (4, float(10_000.0), float(1.0), float(1.0));
    set_op(node, abi::OP_ROPE, &params, &[x, list]);
    assert!(host.device().supports(node), "{}", host.lines());
    edit(list, |list| list.nb = [8, 24, 24, 24]);
    assert!(!host.device().supports(node));
}

/// A result whose elements share bytes cannot be written.
fn shared_result(host: Host) {
    let (x, node) = (blank(&packed(&[4, 3])), blank(&packed(&[4, 3])));
    set_op(node, abi::OP_SCALE, &[float(2.0), 0], &[x]);
    assert!(host.device().supports(node));
    edit(node, |node| node.nb[1] = 0);
    assert!(!host.device().supports(node));
}

/// A reason is logged once for each op and shape.
fn said_once(host: Host) {
    let (x, node) = (blank(&packed(&[4, 4])), blank(&packed(&[4, 4])));
    set_op(node, abi::OP_ARGSORT, &[0], &[x]);
    for _ in 0..3 {
        assert!(!host.device().supports(node));
    }
    let lines = host.lines();
    assert_eq!(lines.matches("SSMGRAPH declines ARGSORT of [4, 4, 1, 1]").count(), 1, "{lines}");
    edit(x, |x| x.ne[1] = 3);
    assert!(!host.device().supports(node));
    assert!(host.lines().contains("[4, 3, 1, 1]"));
    // What we do not know has the host's name; what it may not know either has a number.
    for (number, name) in [NOT_OURS, (9999, "op 9999"), (-1, "op -1")] {
        set_op(node, number, &[], &[x]);
        assert!(!host.device().supports(node));
        assert!(host.lines().contains(&format!("declines {name} of")), "{}", host.lines());
    }
}
