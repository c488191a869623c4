//! Operands of the sizes that models have, for measurements: the same numbers in every program that measures.

use crate::case::Values;
use crate::gated_delta_net::{GatedDeltaNet, Grouping};
use crate::{DType, HostTensor, Op, SsmConvStep, SsmScan};

/// An op with its operands.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The op.
    pub op: Op,
    /// Its operands, packed.
    pub inputs: Vec<HostTensor>,
}

/// Values between −1 and 1.
pub fn uniform(dtype: DType, ne: &[usize]) -> HostTensor {
    Values::new(ne.iter().sum::<usize>() as u64).tensor(dtype, ne, -1.0, 1.0)
}

/// F32 values between −1 and 1.
pub fn f32s(ne: &[usize]) -> HostTensor {
    uniform(DType::F32, ne)
}

/// Different rows below `below`.
pub fn ids(count: usize, below: usize) -> HostTensor {
    let ids: Vec<i32> = (0..count).map(|index| (index * 7919 % below) as i32).collect();
    HostTensor::from_i32(&[count], &ids).expect("one id each")
}

/// The scan of a Mamba-1 layer: `channels` heads of one row, a decay for each state.
pub fn mamba1_scan(states: usize, channels: usize, tokens: usize) -> Workload {
    scan([states, 1, channels], states, tokens)
}

/// The scan of a Mamba-2 layer in one group: heads of 64 rows, one decay for each.
pub fn mamba2_scan(states: usize, heads: usize, tokens: usize) -> Workload {
    scan([states, 64, heads], 1, tokens)
}

fn scan([states, head_dim, heads]: [usize; 3], decays: usize, tokens: usize) -> Workload {
    let inputs = vec![
        f32s(&[states, head_dim, heads, 1]),
        f32s(&[head_dim, heads, tokens, 1]),
        f32s(&[heads, tokens, 1]),
        Values::new(tokens as u64).tensor(DType::F32, &[decays, heads], -4.0, -0.1),
        f32s(&[states, 1, tokens, 1]),
        f32s(&[states, 1, tokens, 1]),
        ids(1, 1),
    ];
    Workload { op: SsmScan { snapshots: 1 }.into(), inputs }
}

/// A gated delta net with heads of `size` rows, half as many keys as heads, and one gate for each head.
pub fn gated_delta_net(size: usize, heads: usize, tokens: usize) -> Workload {
    let key_heads = heads.div_ceil(2);
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
    Workload { op: GatedDeltaNet { grouping: Grouping::Tiled, snapshots: 1 }.into(), inputs }
}

/// The convolution of a layer, four taps wide, with bias, SiLU and its window.
pub fn conv_step(channels: usize, tokens: usize) -> Workload {
    let inputs = vec![
        f32s(&[3, channels, 1, 1]),
        f32s(&[channels, tokens]),
        f32s(&[4, channels]),
        f32s(&[channels]),
        ids(1, 1),
    ];
    Workload { op: SsmConvStep { bias: true, silu: true, snapshots: 1 }.into(), inputs }
}
