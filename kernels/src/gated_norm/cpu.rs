//! Groups are copied into the worker's scratch with their gates, normalised and gated there, and stored. The unit of
//! work is a group, so that few long rows keep all workers busy; short groups that follow one another are copied
//! together. The square root of one group then overlaps with the sums of the next ones. A vector takes some twenty
//! cycles, most of them for its gate, about what the way of three cache lines from memory and back takes.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::Call;
use crate::shared::pool::Worker;
use crate::shared::tile::fold;
use crate::shared::{reduce, simd, vector};
use pulp::{Simd, WithSimd};
use ssmgraph_ops::gated_norm::{Gate, GatedNorm, Order};
use ssmgraph_ops::{Layout, OpError};

/// Elements that short groups are copied by, where a group is not more: 4 KiB of values and as much of gates.
const TOGETHER: usize = 1024;
/// Most groups that are copied together.
const GROUPS: usize = 32;

/// Groups that are copied together.
fn together(group_size: usize) -> usize {
    (TOGETHER / group_size.max(1)).clamp(1, GROUPS)
}

impl CpuKernel for GatedNorm {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], _results: &[Layout]) -> usize {
        inputs[0].elements()
    }

    fn scratch(&self, inputs: &[Layout], _results: &[Layout]) -> Scratch {
        let floats = || 2 * self.group_size * together(self.group_size) + inputs[2].ne[0];
        Scratch { shared_bytes: 0, own_floats: if inputs[0].is_empty() { 0 } else { floats() } }
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, own: &mut [f32]) -> Result<(), OpError> {
        let [x, z, w] = &call.inputs[..] else { unreachable!("the arity was checked") };
        let y = &call.results[0];
        if x.layout().is_empty() {
            return Ok(());
        }
        let size = self.group_size;
        let groups = x.ne()[0] / size;
        let (values, own) = own.split_at_mut(size * together(size));
        let (gates, own) = own.split_at_mut(values.len());
        let weights = &mut own[..w.ne()[0]];
        w.load([0; 3], 0, weights);
        // Groups follow one another where all elements do.
        let flat = x.flat().zip(z.flat()).zip(y.flat());
        let most = if flat.is_some() { together(size) } else { 1 };
        let mut share = worker.share(x.layout().rows() * groups);
        while let Some(unit) = share.next() {
            let count = most.min(share.len() + 1);
            share.start += count - 1;
            let (values, gates) = (&mut values[..count * size], &mut gates[..count * size]);
            let (row, first) = match flat {
                Some(_) => ([0; 3], unit * size),
                None => (x.layout().row_index(unit / groups), unit % groups * size),
            };
            let ((x, z), y) = flat.unwrap_or(((*x, *z), *y));
            x.load(row, first, values);
            z.load(row, first, gates);
            simd::arch().dispatch(Groups { op: self, values, gates, weights, first: unit % groups });
            // SAFETY: groups are shared out among the workers, each to one.
            unsafe { y.store(row, first, values) }
        }
        Ok(())
    }
}

/// Groups that follow one another, and their gates; values become results.
struct Groups<'a> {
    op: &'a GatedNorm,
    values: &'a mut [f32],
    gates: &'a [f32],
    /// Of one group, or of all groups of a row.
    weights: &'a [f32],
    /// Place of the first group in its row.
    first: usize,
}

impl WithSimd for Groups<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match (self.op.order, self.op.gate) {
            (Order::GateThenNorm, Gate::Silu) => norm_and_gate::<S, true, true>(simd, self),
            (Order::GateThenNorm, Gate::Sigmoid) => norm_and_gate::<S, true, false>(simd, self),
            (Order::NormThenGate, Gate::Silu) => norm_and_gate::<S, false, true>(simd, self),
            (Order::NormThenGate, Gate::Sigmoid) => norm_and_gate::<S, false, false>(simd, self),
        }
    }
}

#[inline(always)]
fn norm_and_gate<S: Simd, const GATE_FIRST: bool, const SILU: bool>(simd: S, groups: Groups<'_>) {
    let Groups { op, values, gates, weights, first } = groups;
    let size = op.group_size;
    let mut scales = [0.0; GROUPS];
    for ((group, gates), scale) in
        values.chunks_exact_mut(size).zip(gates.chunks_exact(size)).zip(&mut scales)
    {
        if GATE_FIRST {
            let (wide, rest) = S::as_mut_simd_f32s(group);
            let (wide_gates, rest_gates) = S::as_simd_f32s(gates);
            gate_all::<S, SILU>(simd, wide, wide_gates);
            if !rest.is_empty() {
                let [gate] = activate::<S, SILU, 1>(simd, [simd.partial_load_f32s(rest_gates)]);
                let gated = simd.mul_f32s(simd.partial_load_f32s(rest), gate);
                simd.partial_store_f32s(rest, gated);
            }
        }
        let mean = sum_of_squares(simd, group) / size as f64;
        *scale = (1.0 / (mean + f64::from(op.eps)).sqrt()) as f32;
    }
    let per_row = weights.len() / size;
    let groups = values.chunks_exact_mut(size).zip(gates.chunks_exact(size));
    for ((index, (group, gates)), scale) in groups.enumerate().zip(scales) {
        let scale = simd.splat_f32s(scale);
        let weights = &weights[(first + index) % per_row * size..][..size];
        let ((wide, rest), (wide_gates, rest_gates)) = (S::as_mut_simd_f32s(group), S::as_simd_f32s(gates));
        let (wide_weights, rest_weights) = S::as_simd_f32s(weights);
        for (value, &weight) in wide.iter_mut().zip(wide_weights) {
            *value = simd.mul_f32s(simd.mul_f32s(*value, scale), weight);
        }
        if !GATE_FIRST {
            gate_all::<S, SILU>(simd, wide, wide_gates);
        }
        if !rest.is_empty() {
            let value = simd.mul_f32s(simd.partial_load_f32s(rest), scale);
            let normed = simd.mul_f32s(value, simd.partial_load_f32s(rest_weights));
            let [gate] = activate::<S, SILU, 1>(simd, [simd.partial_load_f32s(rest_gates)]);
            simd.partial_store_f32s(rest, if GATE_FIRST { normed } else { simd.mul_f32s(normed, gate) });
        }
    }
}

/// values ← values · act(gates), two vectors at once: as many chains of operations as registers hold.
#[inline(always)]
fn gate_all<S: Simd, const SILU: bool>(simd: S, values: &mut [S::f32s], gates: &[S::f32s]) {
    let ((pairs, singles), (gate_pairs, gate_singles)) =
        (values.as_chunks_mut::<2>(), gates.as_chunks::<2>());
    for (values, gates) in pairs.iter_mut().zip(gate_pairs) {
        let gates = activate::<S, SILU, 2>(simd, *gates);
        for k in 0..2 {
            values[k] = simd.mul_f32s(values[k], gates[k]);
        }
    }
    for (value, &gate) in singles.iter_mut().zip(gate_singles) {
        *value = simd.mul_f32s(*value, activate::<S, SILU, 1>(simd, [gate])[0]);
    }
}

#[inline(always)]
fn activate<S: Simd, const SILU: bool, const K: usize>(simd: S, gates: [S::f32s; K]) -> [S::f32s; K] {
    if SILU { vector::silu(simd, gates) } else { vector::sigmoid(simd, gates) }
}

/// Σ v²; the rare sums that `f32` may not hold are formed in `f64`.
#[inline(always)]
fn sum_of_squares<S: Simd>(simd: S, values: &[f32]) -> f64 {
    let (wide, rest) = S::as_simd_f32s(values);
    let mut sums = [simd.splat_f32s(0.0); 4];
    let (fours, singles) = wide.as_chunks::<4>();
    for four in fours {
        for (sum, &value) in sums.iter_mut().zip(four) {
            *sum = simd.mul_add_e_f32s(value, value, *sum);
        }
    }
    for (sum, &value) in sums.iter_mut().zip(singles) {
        *sum = simd.mul_add_e_f32s(value, value, *sum);
    }
    if !rest.is_empty() {
        let rest = simd.partial_load_f32s(rest);
        sums[3] = simd.mul_add_e_f32s(rest, rest, sums[3]);
    }
    let [a, b, c, d] = sums;
    let sum = fold(simd, simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d)));
    if reduce::SQUARES_SAFE.contains(&sum) { f64::from(sum) } else { reduce::sum_of_squares(values) }
}
