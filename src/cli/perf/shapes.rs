//! Operands as models of about 130 million parameters have them: one token, and a piece of a prompt.

use ssmgraph::ops::binary::{Binary, BinaryFunction};
use ssmgraph::ops::case::Values;
use ssmgraph::ops::gated_delta_net::{GatedDeltaNet, Grouping};
use ssmgraph::ops::gated_norm::{Gate, GatedNorm, Order};
use ssmgraph::ops::glu::{Glu, GluFunction};
use ssmgraph::ops::l2_norm::{Form, L2Norm};
use ssmgraph::ops::qk_norm::QkNorm;
use ssmgraph::ops::rope::RopeMode;
use ssmgraph::ops::unary::{Function, Unary};
use ssmgraph::ops::{
    Argmax, Attention, Concat, Cpy, Cumsum, DType, DecayGate, GetRows, HostTensor, Mean, MulMat, MulMatId,
    Norm, Op, OpKind, Repeat, RmsNorm, Rope, Scale, SetRows, SoftMax, SsmConv, SsmConvStep, SsmScan, Sum,
    SumRows, TopK,
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
        OpKind::SsmScan => TOKENS.iter().flat_map(|&tokens| [mamba1(tokens), mamba2(tokens)]).collect(),
        OpKind::GatedDeltaNet => TOKENS.map(gated_delta_net).into(),
        _ => TOKENS.iter().filter_map(|&tokens| plain(kind, tokens)).collect(),
    }
}

fn uniform(dtype: DType, ne: &[usize]) -> HostTensor {
    Values::new(ne.iter().sum::<usize>() as u64).tensor(dtype, ne, -1.0, 1.0)
}

pub fn f32s(ne: &[usize]) -> HostTensor {
    uniform(DType::F32, ne)
}

pub fn ids(count: usize, below: usize) -> HostTensor {
    let ids: Vec<i32> = (0..count).map(|index| (index * 7919 % below) as i32).collect();
    HostTensor::from_i32(&[count], &ids).expect("one id each")
}

pub fn workload(op: impl Into<Op>, inputs: Vec<HostTensor>, tokens: usize) -> Workload {
    let ne = inputs[0].layout();
    Workload { op: op.into(), shape: format!("{ne}, T = {tokens}"), inputs, bytes: None }
}

fn mul_mat(dtype: DType, tokens: usize) -> Workload {
    let inputs = vec![uniform(dtype, &[EMBD, 2 * INNER]), f32s(&[EMBD, tokens])];
    workload(MulMat::of(dtype), inputs, tokens)
}

/// d_state 16, one decay per state.
fn mamba1(tokens: usize) -> Workload {
    scan("Mamba-1", [16, 1, INNER, 1], 16, tokens)
}

/// d_state 128, heads of 64.
fn mamba2(tokens: usize) -> Workload {
    scan("Mamba-2", [128, 64, INNER / 64, 1], 1, tokens)
}

pub fn scan(
    name: &str,
    [states, head_dim, heads, groups]: [usize; 4],
    decays: usize,
    tokens: usize,
) -> Workload {
    let mut values = Values::new(tokens as u64);
    let inputs = vec![
        f32s(&[states, head_dim, heads, 1]),
        f32s(&[head_dim, heads, tokens, 1]),
        f32s(&[heads, tokens, 1]),
        values.tensor(DType::F32, &[decays, heads], -4.0, -0.1),
        f32s(&[states, groups, tokens, 1]),
        f32s(&[states, groups, tokens, 1]),
        ids(1, 1),
    ];
    let shape = format!("{name} N={states} P={head_dim} H={heads}, T = {tokens}");
    Workload { op: SsmScan { snapshots: 1 }.into(), inputs, shape, bytes: None }
}

/// Heads of 128, as many as one layer of a model of some billion parameters has.
pub fn gated_delta_net(tokens: usize) -> Workload {
    let (size, key_heads, heads) = (128, 16, 32);
    let mut values = Values::new(tokens as u64);
    let mut small = |ne: &[usize]| values.tensor(DType::F32, ne, -0.15, 0.15);
    let inputs = vec![
        small(&[size, size, heads, 1]),
        small(&[size, key_heads, tokens, 1]),
        small(&[size, key_heads, tokens, 1]),
        small(&[size, heads, tokens, 1]),
        Values::new(1).tensor(DType::F32, &[1, heads, tokens, 1], -2.0, -0.01),
        Values::new(2).tensor(DType::F32, &[1, heads, tokens, 1], 0.05, 0.95),
        ids(1, 1),
    ];
    let op = GatedDeltaNet { grouping: Grouping::Tiled, snapshots: 1 };
    let shape = format!("S={size} Hk={key_heads} Hv={heads}, T = {tokens}");
    Workload { op: op.into(), inputs, shape, bytes: None }
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
        OpKind::SsmConvStep => {
            let windows = f32s(&[3, INNER, 1, 1]);
            let inputs = vec![windows, inner(), f32s(&[4, INNER]), f32s(&[INNER]), ids(1, 1)];
            (SsmConvStep { bias: true, silu: true, snapshots: 1 }.into(), inputs)
        }
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
