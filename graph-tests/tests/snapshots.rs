//! What a person reads: graphs, plans and error texts, kept as snapshots.

use graph_tests::arrays::fixture;
use ssmgraph::backend::Devices;
use ssmgraph::formats::Gguf;
use ssmgraph::ops::binary::{Binary, BinaryFunction};
use ssmgraph::ops::gated_delta_net::Grouping;
use ssmgraph::ops::gated_norm::{Gate, GatedNorm, Order};
use ssmgraph::ops::glu::{Glu, GluFunction};
use ssmgraph::ops::l2_norm::{Form, L2Norm};
use ssmgraph::ops::rope::RopeMode;
use ssmgraph::ops::unary::{Function, Unary};
use ssmgraph::ops::{
    Argmax, Attention, Concat, Cpy, Cumsum, DType, DecayGate, GatedDeltaNet, GetRows, Layout, MulMat,
    MulMatId, Norm, Op, Permute, QkNorm, Repeat, Reshape, RmsNorm, Rope, SetRows, SoftMax, SsmConv,
    SsmConvStep, SsmScan, TopK, Window,
};
use ssmgraph::{Engine, EngineOptions};
use std::sync::Arc;

/// The first layer's lines of a two-sequence, seven-token run, and the plan's memory.
fn block(name: &str) -> String {
    layer(name, 0)
}

/// One layer's lines of that run, and the plan's memory.
fn layer(name: &str, layer: usize) -> String {
    let gguf = Arc::new(Gguf::open(fixture(&format!("oracles/{name}.f32.gguf"))).unwrap());
    let options = EngineOptions { slots: 2, ..EngineOptions::default() };
    let engine = Engine::load(gguf, &Devices::cpu(Some(1)), options).unwrap();
    let its_lines = |text: &str| {
        let lines: Vec<&str> = text.lines().collect();
        let first = |prefix: &str| lines.iter().position(|line| line.contains(prefix));
        let start = first(&format!("blk.{layer}.")).unwrap();
        let end = first(&format!("blk.{}.", layer + 1)).or(first("output_norm.")).unwrap();
        lines[start..end].join("\n")
    };
    let graph = its_lines(&engine.graph_for(7, 2).unwrap().to_text());
    let plan = engine.plan_for(7, 2).unwrap().to_text();
    let memory = plan.lines().last().unwrap();
    format!("{graph}\n\n{}\n{memory}", its_lines(&plan))
}

#[test]
fn a_mamba_block() {
    insta::assert_snapshot!(block("mamba1-tiny"));
}

#[test]
fn a_mamba2_block() {
    insta::assert_snapshot!(block("mamba2-g1-tiny"));
}

#[test]
fn a_delta_block_and_a_dense_network() {
    insta::assert_snapshot!(block("qwen35-tiny"));
}

#[test]
fn an_attention_block_and_experts() {
    insta::assert_snapshot!(layer("qwen3next-tiny", 3));
}

/// A wrong call of every op that can be called wrongly, each with the text a user reads.
#[test]
fn error_texts() {
    let f32s = |ne: &[usize]| Layout::contiguous(DType::F32, ne).unwrap();
    let i32s = |ne: &[usize]| Layout::contiguous(DType::I32, ne).unwrap();
    let q8 = |ne: &[usize]| Layout::contiguous(DType::Q8_0, ne).unwrap();
    let scan = |n: usize, heads: usize, groups: usize, ids: usize| {
        vec![
            f32s(&[16, 4, 8, 3]),
            f32s(&[4, heads, 5, 2]),
            f32s(&[8, 5, 2]),
            f32s(&[1, 8]),
            f32s(&[n, groups, 5, 2]),
            f32s(&[n, groups, 5, 2]),
            i32s(&[ids]),
        ]
    };
    let step = |window: usize, channels: usize, ids: Layout| {
        vec![f32s(&[window, 8, 1, 3]), f32s(&[8, 5, 2]), f32s(&[4, channels]), ids]
    };
    let conv_step = |snapshots: usize| Op::from(SsmConvStep { bias: false, silu: true, snapshots });
    let delta = |key_heads: usize, gates: usize, beta: usize, ids: usize| {
        vec![
            f32s(&[16, 16, 8, 3]),
            f32s(&[16, key_heads, 5, 2]),
            f32s(&[16, key_heads, 5, 2]),
            f32s(&[16, 8, 5, 2]),
            f32s(&[gates, 8, 5, 2]),
            f32s(&[1, beta, 5, 2]),
            i32s(&[ids]),
        ]
    };
    let rule = |snapshots: usize| Op::from(GatedDeltaNet { grouping: Grouping::Tiled, snapshots });
    let qk_norm = |eps: f32, heads: usize| QkNorm { eps, form: Form::Add, heads, grouping: Grouping::Tiled };
    let norm = GatedNorm { eps: 1e-5, group_size: 5, order: Order::NormThenGate, gate: Gate::Silu };
    let add = Binary { function: BinaryFunction::Add };
    let swiglu = Glu { function: GluFunction::Swiglu, split: false, swapped: false };
    let rope = Rope { mode: RopeMode::Neox, n_rot: 8, freq_base: 1e4, freq_scale: 1.0 };
    let attention = Attention { scale: 0.25 };
    let window = Window { ne: [4, 4, 1, 1], nb: [4, 16, 64, 64], offset_bytes: 8 };
    let calls: Vec<(Op, Vec<Layout>)> = vec![
        (Unary { function: Function::Silu }.into(), vec![i32s(&[4])]),
        (Unary { function: Function::Silu }.into(), vec![]),
        (SsmScan { snapshots: 0 }.into(), scan(16, 8, 2, 2)),
        (SsmScan { snapshots: 1 }.into(), scan(16, 7, 2, 2)),
        (SsmScan { snapshots: 1 }.into(), scan(8, 8, 2, 2)),
        (SsmScan { snapshots: 1 }.into(), scan(16, 8, 3, 2)),
        (SsmScan { snapshots: 1 }.into(), scan(16, 8, 2, 3)),
        (SsmConv { bias: false, silu: true }.into(), vec![f32s(&[2, 8]), f32s(&[4, 8])]),
        (SsmConv { bias: true, silu: false }.into(), vec![f32s(&[9, 8]), f32s(&[4, 8]), f32s(&[7])]),
        (conv_step(0), step(3, 8, i32s(&[2]))),
        (conv_step(1), step(4, 8, i32s(&[2]))),
        (conv_step(1), step(3, 7, i32s(&[2]))),
        (conv_step(1), step(3, 8, i32s(&[3]))),
        (conv_step(1), step(3, 8, f32s(&[2]))),
        (rule(0), delta(4, 1, 8, 2)),
        (rule(1), delta(3, 1, 8, 2)),
        (rule(1), delta(4, 2, 8, 2)),
        (rule(1), delta(4, 16, 4, 2)),
        (rule(1), delta(4, 1, 8, 3)),
        (DecayGate {}.into(), vec![f32s(&[8, 3]), f32s(&[5]), f32s(&[8])]),
        (DecayGate {}.into(), vec![f32s(&[8, 3]), f32s(&[8]), i32s(&[8])]),
        (qk_norm(-1.0, 4).into(), vec![f32s(&[16, 4]), f32s(&[16, 4])]),
        (qk_norm(1e-6, 6).into(), vec![f32s(&[16, 4]), f32s(&[16, 4])]),
        (qk_norm(1e-6, 4).into(), vec![f32s(&[16, 4]), f32s(&[16, 2])]),
        (norm.into(), vec![f32s(&[12, 3]), f32s(&[12, 3]), f32s(&[12])]),
        (RmsNorm { eps: -1.0, weight: false }.into(), vec![f32s(&[12])]),
        (RmsNorm { eps: 1e-5, weight: true }.into(), vec![f32s(&[12]), f32s(&[5])]),
        (L2Norm { eps: f32::NAN, form: Form::Max }.into(), vec![f32s(&[12])]),
        (Norm { eps: f32::NAN }.into(), vec![f32s(&[12])]),
        (SoftMax { scale: 1.0, mask: true }.into(), vec![f32s(&[12, 4]), f32s(&[12, 3])]),
        (Cumsum {}.into(), vec![q8(&[32])]),
        (Argmax {}.into(), vec![f32s(&[0, 3])]),
        (TopK { k: 4 }.into(), vec![f32s(&[3, 2])]),
        (rope.into(), vec![f32s(&[6, 2, 3]), i32s(&[3])]),
        (rope.into(), vec![f32s(&[8, 2, 3]), i32s(&[2])]),
        (
            attention.into(),
            vec![f32s(&[8, 4, 1]), f32s(&[8, 3, 9]), f32s(&[8, 3, 9]), i32s(&[1]), i32s(&[1])],
        ),
        (
            attention.into(),
            vec![f32s(&[8, 4, 9]), f32s(&[8, 2, 8]), f32s(&[8, 2, 8]), i32s(&[1]), i32s(&[1])],
        ),
        (MulMatId { quantize: false }.into(), vec![f32s(&[8, 3, 4]), f32s(&[8, 3, 5]), i32s(&[2, 5])]),
        (MulMat::of(DType::F32).into(), vec![f32s(&[12, 3]), f32s(&[11, 3])]),
        (MulMat::of(DType::F32).into(), vec![f32s(&[12, 3, 2]), f32s(&[12, 3, 3])]),
        (add.into(), vec![f32s(&[12, 3]), f32s(&[5])]),
        (swiglu.into(), vec![f32s(&[5, 3])]),
        (GetRows {}.into(), vec![f32s(&[12, 3]), f32s(&[2])]),
        (SetRows {}.into(), vec![f32s(&[12, 3]), f32s(&[11, 2]), i32s(&[2])]),
        (Cpy { to: f32s(&[5]) }.into(), vec![f32s(&[4])]),
        (Concat { axis: 4 }.into(), vec![f32s(&[4]), f32s(&[4])]),
        (Concat { axis: 0 }.into(), vec![f32s(&[4, 2]), f32s(&[4, 3])]),
        (Repeat { ne: [5, 1, 1, 1] }.into(), vec![f32s(&[4])]),
        (Reshape { ne: [5, 1, 1, 1] }.into(), vec![f32s(&[4])]),
        (window.into(), vec![f32s(&[4, 4])]),
        (Permute { axes: [0, 0, 1, 2] }.into(), vec![f32s(&[4])]),
    ];
    let texts: Vec<String> =
        calls.iter().map(|(op, inputs)| op.infer(inputs).unwrap_err().to_string()).collect();
    insta::assert_snapshot!(texts.join("\n"));
}
