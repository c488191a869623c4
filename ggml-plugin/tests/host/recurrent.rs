//! Recurrent nodes that keep several states, and have fewer tokens than states.

use crate::graph::{Arena, Graph, Node, packed};
use crate::nodes::ramp;
use crate::plugin::Host;
use crate::{Add, Hosts};
use ssmgraph::ops::gated_delta_net::{GatedDeltaNet, Grouping};
use ssmgraph::ops::{HostTensor, Op, SsmScan, Tolerance};
use ssmgraph_ggml::abi;

/// States that the nodes keep.
const SNAPSHOTS: usize = 4;

pub fn add(add: Add<'_>) {
    add("recurrent::delta_net_snapshots", Hosts::All, delta_net_snapshots);
    add("recurrent::scan_snapshots", Hosts::All, scan_snapshots);
    add("recurrent::state_as_rows", Hosts::All, state_as_rows);
}

fn tensor(ne: &[usize], scale: f32, shift: f32) -> HostTensor {
    let values: Vec<f32> = ramp(ne).iter().map(|value| value * scale + shift).collect();
    HostTensor::from_f32(ne, &values).expect("as many")
}

/// Operands of a delta net in our order: size 3, two heads, two sequences.
fn delta_net(tokens: usize) -> Vec<HostTensor> {
    vec![
        tensor(&[3, 3, 2, 2], 0.1, 0.0),
        tensor(&[3, 2, tokens, 2], 0.5, 0.1),
        tensor(&[3, 2, tokens, 2], 0.3, -0.1),
        tensor(&[3, 2, tokens, 2], 1.0, 0.0),
        tensor(&[1, 2, tokens, 2], 0.1, -0.5),
        tensor(&[1, 2, tokens, 2], 0.1, 0.5),
        HostTensor::from_i32(&[2], &[0, 1]).expect("two"),
    ]
}

/// The node has room for every state; what the tokens do not reach stays as it was.
fn check(
    host: &Host,
    op: Op,
    number: i32,
    inputs: &[HostTensor],
    order: &[usize],
    tokens: usize,
    state: usize,
) {
    let device = host.device();
    let expected = op.evaluate(inputs).expect("a right case");
    let y = expected[0].layout().elements();
    let mut arena = Arena::new(device, 1 << 15);
    let leaves: Vec<Node> = order.iter().map(|&index| arena.leaf(&inputs[index])).collect();
    let layout = packed(&[y + SNAPSHOTS * state]);
    let node = arena.node(number, &[SNAPSHOTS as i32], &leaves, &layout);
    arena.write(
        node,
        HostTensor::from_f32(&[layout.ne[0]], &vec![9.0; layout.ne[0]]).expect("as many").bytes(),
    );
    assert!(device.supports(node), "{}", host.lines());
    device.stream().must_compute(&Graph::of(&[node]));
    let got = arena.read(node);
    for (part, want) in crate::nodes::parts(&got, &expected).iter().zip(&expected) {
        assert_eq!(Tolerance::F32_SUM.mismatch(part, want), None, "{tokens} tokens");
    }
    let reached = y + tokens.min(SNAPSHOTS) * state;
    assert!(got.to_f64()[reached..].iter().all(|&value| value == 9.0), "older states, {tokens} tokens");
}

fn delta_net_snapshots(host: Host) {
    for tokens in [1, 3, 4, 6] {
        let op = GatedDeltaNet { grouping: Grouping::Tiled, snapshots: SNAPSHOTS }.into();
        check(
            &host,
            op,
            abi::OP_GATED_DELTA_NET,
            &delta_net(tokens),
            &[1, 2, 3, 4, 5, 0],
            tokens,
            3 * 3 * 2 * 2,
        );
    }
}

fn scan_snapshots(host: Host) {
    for tokens in [1, 3, 4, 6] {
        let inputs = [
            tensor(&[4, 3, 2, 3], 0.2, 0.0),
            tensor(&[3, 2, tokens, 2], 1.0, 0.0),
            tensor(&[2, tokens, 2], 0.5, 0.0),
            tensor(&[1, 2], 0.1, -0.5),
            tensor(&[4, 1, tokens, 2], 0.5, 0.0),
            tensor(&[4, 1, tokens, 2], 0.5, 0.1),
            HostTensor::from_i32(&[2], &[2, 0]).expect("two"),
        ];
        let op = SsmScan { snapshots: SNAPSHOTS }.into();
        check(&host, op, abi::OP_SSM_SCAN, &inputs, &[0, 1, 2, 3, 4, 5, 6], tokens, 4 * 3 * 2 * 2);
    }
}

/// Some graphs give the state of a sequence as one row.
fn state_as_rows(host: Host) {
    let device = host.device();
    let mut inputs = delta_net(2);
    let op: Op = GatedDeltaNet { grouping: Grouping::Tiled, snapshots: 1 }.into();
    let expected = op.evaluate(&inputs).expect("a right case");
    let rows = packed(&[18, 2]);
    inputs[0] = HostTensor::from_bytes(rows, inputs[0].bytes().to_vec()).expect("the same bytes");
    let mut arena = Arena::new(device, 1 << 15);
    let leaves: Vec<Node> =
        [1, 2, 3, 4, 5, 0].iter().map(|&index: &usize| arena.leaf(&inputs[index])).collect();
    let node = arena.node(abi::OP_GATED_DELTA_NET, &[0], &leaves, &packed(&[3 * 2 * 2 * 2 + 36]));
    assert!(device.supports(node), "{}", host.lines());
    device.stream().must_compute(&Graph::of(&[node]));
    for (part, want) in crate::nodes::parts(&arena.read(node), &expected).iter().zip(&expected) {
        assert_eq!(Tolerance::F32_SUM.mismatch(part, want), None);
    }
}
