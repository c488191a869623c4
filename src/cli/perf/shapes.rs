//! Operands as models of about 130 million parameters have them: one token, and a piece of a prompt.

use ssmgraph::ops::binary::{Binary, BinaryFunction};
use ssmgraph::ops::gated_delta_net::Grouping;
use ssmgraph::ops::gated_norm::{Gate, GatedNorm, Order};
use ssmgraph::ops::glu::{Glu, GluFunction};
use ssmgraph::ops::l2_norm::{Form, L2Norm};
use ssmgraph::ops::qk_norm::QkNorm;
use ssmgraph::ops::rope::RopeMode;
use ssmgraph::ops::unary::{Function, Unary};
use ssmgraph::ops::workload::{conv_step, f32s, gated_delta_net, ids, mamba1_scan, mamba2_scan, uniform};
use ssmgraph::ops::{
    Argmax, Attention, Concat, Cpy, Cumsum, DType, DecayGate, GetRows, HostTensor, Mean, MulMat, MulMatId,
    Norm, Op, OpKind, Repeat, RmsNorm, Rope, Scale, SetRows, SoftMax, SsmConv, Sum, SumRows, TopK,
};

/// An op to measure.
pub struct Workload {
    pub op: Op,
    pub inputs: Vec<HostTensor>,
    /// The shape in words.
    pub shape: String,
    /// Bytes that must move, where they are fewer than all operands and results.
    pub bytes: Option<usize>,
}

/// Width of an activation, and of the inner one.
const EMBD: usize = 768;
const INNER: usize = 1536;
/// Tokens of one step, and of a piece of a prompt.
const TOKENS: [usize; 2] = [1, 256];

/// What to measure for an op; nothing for views, which cost nothing.
pub fn of(kind: OpKind) -> Vec<Workload> {
    match kind {
        OpKind::Reshape | OpKind::Window | OpKind::Permute | OpKind::Transpose => Vec::new(),
        OpKind::MulMat => {
            let types = MulMat::WEIGHTS;
            types.iter().flat_map(|&dtype| TOKENS.map(|tokens| mul_mat(dtype, tokens))).collect()
        }
        OpKind::SsmScan => {
            TOKENS.iter().flat_map(|&tokens| [mamba1(INNER, tokens), mamba2(INNER / 64, tokens)]).collect()
        }
        OpKind::GatedDeltaNet => TOKENS.map(delta_net).into(),
        _ => TOKENS.iter().filter_map(|&tokens| plain(kind, tokens)).collect(),
    }
}

pub fn workload(op: impl Into<Op>, inputs: Vec<HostTensor>, tokens: usize) -> Workload {
    let ne = inputs[0].layout();
    Workload { op: op.into(), shape: format!("{ne}, T = {tokens}"), inputs, bytes: None }
}

fn mul_mat(dtype: DType, tokens: usize) -> Workload {
    let inputs = vec![uniform(dtype, &[EMBD, 2 * INNER]), f32s(&[EMBD, tokens])];
    workload(MulMat::of(dtype), inputs, tokens)
}

/// A workload of the ops crate with its sizes in words.
pub fn named(shape: String, made: ssmgraph::ops::workload::Workload) -> Workload {
    Workload { op: made.op, inputs: made.inputs, shape, bytes: None }
}

pub fn mamba1(channels: usize, tokens: usize) -> Workload {
    named(format!("Mamba-1 N=16 P=1 H={channels}, T = {tokens}"), mamba1_scan(16, channels, tokens))
}

pub fn mamba2(heads: usize, tokens: usize) -> Workload {
    named(format!("Mamba-2 N=128 P=64 H={heads}, T = {tokens}"), mamba2_scan(128, heads, tokens))
}

/// Heads of 128, as many as one layer of a model of some billion parameters has.
pub fn delta_net(tokens: usize) -> Workload {
    named(format!("S=128 Hk=16 Hv=32, T = {tokens}"), gated_delta_net(128, 32, tokens))
}

pub fn conv(channels: usize, tokens: usize) -> Workload {
    named(format!("C={channels} k=4, T = {tokens}"), conv_step(channels, tokens))
}

fn plain(kind: OpKind, tokens: usize) -> Option<Workload> {
    let inner = || f32s(&[INNER, tokens]);
    let rows = || f32s(&[EMBD, tokens]);
    let (op, inputs): (Op, Vec<HostTensor>) = match kind {
        OpKind::Unary => (Unary { function: Function::Silu }.into(), vec![inner()]),
        OpKind::SsmConv => {
            let inputs = vec![f32s(&[3 + tokens, INNER, 1]), f32s(&[4, INNER]), f32s(&[INNER])];
            (SsmConv { bias: true, silu: true }.into(), inputs)
        }
        OpKind::SsmConvStep => return Some(conv(INNER, tokens)),
        OpKind::GatedNorm => {
            let order = Order::GateThenNorm;
            let op = GatedNorm { eps: 1e-5, group_size: INNER, order, gate: Gate::Silu };
            (op.into(), vec![inner(), inner(), f32s(&[INNER])])
        }
        OpKind::RmsNorm => (RmsNorm { eps: 1e-5, weight: true }.into(), vec![rows(), f32s(&[EMBD])]),
        OpKind::Norm => (Norm { eps: 1e-5 }.into(), vec![f32s(&[EMBD, tokens])]),
        OpKind::L2Norm => (L2Norm { eps: 1e-6, form: Form::Max }.into(), vec![f32s(&[128, 12, tokens])]),
        OpKind::QkNorm => {
            let op = QkNorm { eps: 1e-6, form: Form::Add, heads: 16, grouping: Grouping::Tiled };
            (op.into(), vec![f32s(&[128, 16, tokens]), f32s(&[128, 16, tokens])])
        }
        OpKind::DecayGate => (DecayGate {}.into(), vec![f32s(&[32, tokens]), f32s(&[32]), f32s(&[32])]),
        OpKind::SoftMax => (SoftMax { scale: 1.0, mask: false }.into(), vec![inner()]),
        OpKind::Rope => {
            let op = Rope { mode: RopeMode::Neox, n_rot: 64, freq_base: 1e6, freq_scale: 1.0 };
            (op.into(), vec![f32s(&[256, 8, tokens]), ids(tokens, 4096)])
        }
        OpKind::TopK => (TopK { k: 8 }.into(), vec![f32s(&[128, tokens])]),
        OpKind::MulMatId => return Some(mul_mat_id(tokens)),
        OpKind::Attention => return Some(attention(tokens)),
        OpKind::Cumsum => (Cumsum {}.into(), vec![inner()]),
        OpKind::Argmax => (Argmax {}.into(), vec![f32s(&[50_280, tokens.min(8)])]),
        OpKind::Mean => (Mean {}.into(), vec![inner()]),
        OpKind::Sum => (Sum {}.into(), vec![inner()]),
        OpKind::SumRows => (SumRows {}.into(), vec![inner()]),
        OpKind::Binary => (Binary { function: BinaryFunction::Mul }.into(), vec![inner(), f32s(&[INNER])]),
        OpKind::Scale => (Scale { scale: 0.5, bias: 0.0 }.into(), vec![inner()]),
        OpKind::Glu => {
            let op = Glu { function: GluFunction::Swiglu, split: true, swapped: false };
            (op.into(), vec![inner(), inner()])
        }
        OpKind::GetRows => return Some(get_rows(tokens)),
        OpKind::SetRows => return Some(set_rows(tokens)),
        OpKind::Cpy => {
            let x = inner();
            let half = x.layout().to_dtype(DType::F16).ok()?;
            (Cpy { to: half }.into(), vec![x])
        }
        OpKind::Concat => (Concat { axis: 0 }.into(), vec![f32s(&[3, INNER]), f32s(&[tokens, INNER])]),
        OpKind::Repeat => (Repeat { ne: [INNER, tokens, 1, 1] }.into(), vec![f32s(&[INNER, 1])]),
        OpKind::MulMat
        | OpKind::SsmScan
        | OpKind::GatedDeltaNet
        | OpKind::Reshape
        | OpKind::Window
        | OpKind::Permute
        | OpKind::Transpose => return None,
    };
    Some(workload(op, inputs, tokens))
}

/// Only the rows that are picked move.
fn get_rows(tokens: usize) -> Workload {
    let inputs = vec![f32s(&[EMBD, 8192]), ids(tokens, 8192)];
    Workload { bytes: Some(2 * EMBD * tokens * 4 + tokens * 4), ..workload(GetRows {}, inputs, tokens) }
}

/// Eight of 32 experts for each token.
fn mul_mat_id(tokens: usize) -> Workload {
    const EXPERTS: usize = 32;
    const USED: usize = 8;
    let picked: Vec<i32> = (0..USED * tokens).map(|index| (index * 5 % EXPERTS) as i32).collect();
    let picked = HostTensor::from_i32(&[USED, tokens], &picked).expect("as many ids");
    let a = uniform(DType::F16, &[EMBD, INNER / 4, EXPERTS]);
    let weights = a.layout().span_bytes() / EXPERTS * EXPERTS.min(USED * tokens);
    let bytes = weights + 4 * tokens * (EMBD + USED * INNER / 4 + USED);
    let op = MulMatId::of(DType::F16);
    Workload { bytes: Some(bytes), ..workload(op, vec![a, f32s(&[EMBD, 1, tokens]), picked], tokens) }
}

/// Heads of 128, four to a key; the cache is filled to its half, then the tokens.
fn attention(tokens: usize) -> Workload {
    const PAST: usize = 1024;
    let cache = || uniform(DType::F16, &[128, 2, 2 * PAST, 1]);
    let past = HostTensor::from_i32(&[1], &[PAST as i32]).expect("one length");
    let inputs = vec![f32s(&[128, 8, tokens]), cache(), cache(), ids(1, 1), past];
    let bytes = 2 * 128 * 2 * (PAST + tokens) * 2 + 2 * 128 * 8 * tokens * 4;
    let scale = 1.0 / 128f32.sqrt();
    Workload { bytes: Some(bytes), ..workload(Attention { scale }, inputs, tokens) }
}

/// The table is an input here, which must survive: it is copied first.
fn set_rows(tokens: usize) -> Workload {
    let inputs = vec![f32s(&[EMBD, 1024]), f32s(&[EMBD, tokens]), ids(tokens, 1024)];
    Workload { bytes: Some(2 * EMBD * (1024 + tokens) * 4), ..workload(SetRows {}, inputs, tokens) }
}
