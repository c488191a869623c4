//! What is measured beside a peer, and how much faster it shall be: models' real widths, a prompt and a single token.

use super::shapes::{self, Workload, f32s, ids, scan, workload};
use ssmgraph::ops::gated_norm::{Gate, GatedNorm, Order};
use ssmgraph::ops::{Argmax, Cumsum, Mean, Op, OpKind, SsmConvStep, Sum};

/// Work to compare.
pub struct Target {
    pub workload: Workload,
    /// How many times faster than the peer; `None` where nothing is aimed at.
    pub ratio: Option<f64>,
    /// Aimed at for operands in the caches only.
    pub cached: bool,
}

impl Target {
    fn new(workload: Workload, ratio: f64) -> Target {
        Target { workload, ratio: Some(ratio), cached: false }
    }

    fn cached(self) -> Target {
        Target { cached: true, ..self }
    }
}

/// What to compare of an op: what has a target, otherwise what `perf` measures without a peer.
pub fn of(kind: OpKind) -> Vec<Target> {
    match kind {
        OpKind::SsmScan => {
            let mamba1 = |(channels, tokens, ratio)| {
                Target::new(scan("Mamba-1", [16, 1, channels, 1], 16, tokens), ratio)
            };
            let mamba2 = |(tokens, ratio)| Target::new(scan("Mamba-2", [128, 64, 48, 1], 1, tokens), ratio);
            let first = [(1536, 512, 7.0), (1536, 1, 4.0), (5120, 512, 7.0), (5120, 1, 4.0)].map(mamba1);
            first.into_iter().chain([(512, 4.0), (1, 1.2)].map(mamba2)).collect()
        }
        OpKind::GatedDeltaNet => [(64, 3.5), (1, 1.6)]
            .map(|(tokens, ratio)| Target::new(shapes::gated_delta_net(tokens), ratio))
            .into(),
        OpKind::SsmConvStep => [(3328, 512, 8.0), (3328, 1, 3.0), (8192, 512, 8.0), (8192, 1, 3.0)]
            .map(|(channels, tokens, ratio)| Target::new(conv_step(channels, tokens), ratio))
            .into(),
        OpKind::GatedNorm => vec![Target::new(gated_norm(), 4.0)],
        OpKind::Argmax => rows(Argmax {}),
        OpKind::Sum => rows(Sum {}),
        OpKind::Mean => rows(Mean {}),
        OpKind::Cumsum => vec![
            Target::new(cumsum([8192, 16]), 10.0).cached(),
            Target::new(cumsum([16 << 20, 1]), 4.0),
            Target::new(cumsum([8192, 2048]), 4.0),
        ],
        _ => {
            let plain = |workload| Target { workload, ratio: None, cached: false };
            shapes::of(kind).into_iter().map(plain).collect()
        }
    }
}

/// One row of logits, as two vocabularies have them.
fn rows(op: impl Into<Op>) -> Vec<Target> {
    let op = op.into();
    [32_000, 128_256]
        .map(|columns| Target::new(workload(op.clone(), vec![f32s(&[columns, 1])], 1), 8.0).cached())
        .into()
}

fn cumsum(ne: [usize; 2]) -> Workload {
    workload(Cumsum {}, vec![f32s(&ne)], ne[1])
}

fn conv_step(channels: usize, tokens: usize) -> Workload {
    let inputs = vec![
        f32s(&[3, channels, 1, 1]),
        f32s(&[channels, tokens]),
        f32s(&[4, channels]),
        f32s(&[channels]),
        ids(1, 1),
    ];
    let shape = format!("C={channels} k=4, T = {tokens}");
    let op = SsmConvStep { bias: true, silu: true, snapshots: 1 };
    Workload { shape, ..workload(op, inputs, tokens) }
}

fn gated_norm() -> Workload {
    let op = GatedNorm { eps: 1e-6, group_size: 128, order: Order::NormThenGate, gate: Gate::Silu };
    let x = || f32s(&[128, 16_384]);
    workload(op, vec![x(), x(), f32s(&[128])], 16_384)
}
