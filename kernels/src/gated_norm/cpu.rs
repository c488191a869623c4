//! The unit of work is a group, so that few long rows keep all workers busy; short groups that follow one another are
//! taken together, first their sums and then their results: the square root of one group overlaps with the sums of the
//! next ones. Packed operands are read where they lie, also where the result takes their memory over; others are copied
//! into the worker's scratch. Operands and results are asked of memory one such piece ahead, with some tenth of gain.
//! A vector takes some twenty cycles, most of them for its gate, somewhat more than the way of three cache lines takes.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::Call;
use crate::shared::pool::Worker;
use crate::shared::tile::fold;
use crate::shared::{prefetch, reduce, simd, vector};
use pulp::{Simd, WithSimd};
use ssmgraph_ops::gated_norm::{Gate, GatedNorm, Order};
use ssmgraph_ops::{Layout, OpError};
use std::slice;

/// Elements that short groups are copied by, where a group is not more: 4 KiB of values and as much of gates.
const TOGETHER: usize = 1024;
/// Most groups that are copied together.
const GROUPS: usize = 32;

/// How far ahead memory is asked for: what is taken together.
const AHEAD_BYTES: usize = TOGETHER * size_of::<f32>();
/// Elements of a cache line.
const LINE: usize = 16;

/// Groups that are taken together.
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
            let elements = count * size;
            let (row, first) = match flat {
                Some(_) => ([0; 3], unit * size),
                None => (x.layout().row_index(unit / groups), unit % groups * size),
            };
            let ((x, z), y) = flat.unwrap_or(((*x, *z), *y));
            let places = first..first + elements;
            let first_group = unit % groups;
            let direct = (
                x.f32_pointer(row, places.clone()),
                z.f32_pointer(row, places.clone()),
                y.f32_pointer(row, places),
            );
            if let (Some(x), Some(z), Some(y)) = direct {
                // SAFETY: the pointers reach as many elements; y takes x's or z's memory over as a whole or is apart;
                // groups are shared out among the workers, each to one.
                let groups = unsafe { Groups::new(self, x, z, y, elements, weights, first_group) };
                simd::arch().dispatch(groups);
                continue;
            }
            let (values, gates) = (&mut values[..elements], &mut gates[..elements]);
            x.load(row, first, values);
            z.load(row, first, gates);
            let target = values.as_mut_ptr();
            // SAFETY: the slices have as many elements; results replace values.
            let groups =
                unsafe { Groups::new(self, target, gates.as_ptr(), target, elements, weights, first_group) };
            simd::arch().dispatch(groups);
            // SAFETY: groups are shared out among the workers, each to one.
            unsafe { y.store(row, first, values) }
        }
        Ok(())
    }
}

/// Groups that follow one another, with their gates and results. Pointers, since results may take the memory of values
/// or gates over.
struct Groups<'a> {
    op: &'a GatedNorm,
    values: *const f32,
    gates: *const f32,
    results: *mut f32,
    elements: usize,
    /// Of one group, or of all groups of a row.
    weights: &'a [f32],
    /// Place of the first group in its row.
    first: usize,
}

impl<'a> Groups<'a> {
    /// # Safety
    /// While this lives, `values` and `gates` are readable and `results` writable for so many elements, and nobody else
    /// writes them; `results` is the same as one of the others, or apart from both.
    unsafe fn new(
        op: &'a GatedNorm,
        values: *const f32,
        gates: *const f32,
        results: *mut f32,
        elements: usize,
        weights: &'a [f32],
        first: usize,
    ) -> Groups<'a> {
        Groups { op, values, gates, results, elements, weights, first }
    }
}

impl Groups<'_> {
    /// The group that starts with so many elements before it.
    fn group(&self, start: usize) -> Group {
        Group {
            values: self.values.wrapping_add(start),
            gates: self.gates.wrapping_add(start),
            results: self.results.wrapping_add(start),
            size: self.op.group_size,
        }
    }
}

/// One of [`Groups`].
struct Group {
    values: *const f32,
    gates: *const f32,
    results: *mut f32,
    size: usize,
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
    let size = groups.op.group_size;
    let count = groups.elements / size;
    let per_row = groups.weights.len() / size;
    let mut scales = [0.0; GROUPS];
    for (group, scale) in scales.iter_mut().enumerate().take(count) {
        let start = group * size;
        // SAFETY: the group lies inside, by the promise of `Groups::new`, and nobody writes it while the slice lives.
        let sum = unsafe {
            if GATE_FIRST {
                pass::<S, false, true, SILU>(simd, groups.group(start), 0.0, &[]);
                sum_of_squares(simd, slice::from_raw_parts(groups.results.add(start), size))
            } else {
                sum_of_squares(simd, slice::from_raw_parts(groups.values.add(start), size))
            }
        };
        *scale = (1.0 / (sum / size as f64 + f64::from(groups.op.eps)).sqrt()) as f32;
    }
    for (index, &scale) in scales.iter().enumerate().take(count) {
        let weights = &groups.weights[(groups.first + index) % per_row * size..][..size];
        let mut group = groups.group(index * size);
        // SAFETY: as above.
        unsafe {
            if GATE_FIRST {
                group.values = group.results;
                pass::<S, true, false, SILU>(simd, group, scale, weights);
            } else {
                pass::<S, true, true, SILU>(simd, group, scale, weights);
            }
        }
    }
}

/// results ← values, scaled and weighted where `NORM`, and then gated where `GATE`.
///
/// # Safety
/// The group's pointers are valid as [`Groups::new`] has it, for `group.size` elements.
#[inline(always)]
unsafe fn pass<S: Simd, const NORM: bool, const GATE: bool, const SILU: bool>(
    simd: S,
    group: Group,
    scale: f32,
    weights: &[f32],
) {
    let scale = simd.splat_f32s(scale);
    let vectors = group.size / S::F32_LANES;
    // A gate is a chain of operations that wait for one another: as many chains at once as registers hold.
    let at_once = if S::F32_LANES == LINE { 4 } else { 2 };
    let whole = vectors / at_once * at_once;
    for vector in (0..whole).step_by(at_once) {
        // SAFETY: the vectors lie inside the group.
        unsafe {
            match at_once {
                4 => vectors_at::<S, NORM, GATE, SILU, 4>(simd, &group, vector, scale, weights),
                _ => vectors_at::<S, NORM, GATE, SILU, 2>(simd, &group, vector, scale, weights),
            }
        }
    }
    for vector in whole..vectors {
        // SAFETY: as above.
        unsafe { vectors_at::<S, NORM, GATE, SILU, 1>(simd, &group, vector, scale, weights) }
    }
    let (first, count) = (vectors * S::F32_LANES, group.size % S::F32_LANES);
    if count == 0 {
        return;
    }
    // SAFETY: the elements lie inside the group; slices of the operands end before the one of the results begins.
    let mut value = simd.partial_load_f32s(unsafe { slice::from_raw_parts(group.values.add(first), count) });
    if NORM {
        value = simd.mul_f32s(simd.mul_f32s(value, scale), simd.partial_load_f32s(&weights[first..]));
    }
    if GATE {
        // SAFETY: as above.
        let gates = simd.partial_load_f32s(unsafe { slice::from_raw_parts(group.gates.add(first), count) });
        value = simd.mul_f32s(value, activate::<S, SILU, 1>(simd, [gates])[0]);
    }
    // SAFETY: as above.
    simd.partial_store_f32s(unsafe { slice::from_raw_parts_mut(group.results.add(first), count) }, value);
}

/// K vectors of a [`pass`].
///
/// # Safety
/// As for [`pass`]; the vectors lie inside the group.
#[inline(always)]
unsafe fn vectors_at<S: Simd, const NORM: bool, const GATE: bool, const SILU: bool, const K: usize>(
    simd: S,
    group: &Group,
    vector: usize,
    scale: S::f32s,
    weights: &[f32],
) {
    let place = vector * S::F32_LANES;
    // SAFETY: by the function's contract.
    let mut values = unsafe { group.values.add(place).cast::<[S::f32s; K]>().read_unaligned() };
    if NORM {
        let weights = &S::as_simd_f32s(&weights[place..][..K * S::F32_LANES]).0[..K];
        for (value, &weight) in values.iter_mut().zip(weights) {
            *value = simd.mul_f32s(simd.mul_f32s(*value, scale), weight);
        }
    }
    if GATE {
        // SAFETY: by the function's contract.
        let gates = unsafe { group.gates.add(place).cast::<[S::f32s; K]>().read_unaligned() };
        let gates = activate::<S, SILU, K>(simd, gates);
        for (value, gate) in values.iter_mut().zip(gates) {
            *value = simd.mul_f32s(*value, gate);
        }
        // The processor's own prefetching ends with the page.
        for line in 0..(K * S::F32_LANES).div_ceil(LINE) {
            let line = place + line * LINE;
            prefetch::ahead(group.values.wrapping_add(line), AHEAD_BYTES);
            prefetch::ahead(group.gates.wrapping_add(line), AHEAD_BYTES);
            prefetch::ahead_to_write(group.results.wrapping_add(line), AHEAD_BYTES);
        }
    }
    // SAFETY: by the function's contract; the elements were read.
    unsafe { group.results.add(place).cast::<[S::f32s; K]>().write_unaligned(values) }
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
