//! Mamba-1: every state element has a decay of its own. One vector lane is one channel: the states of a block of
//! channels are turned (see [`crate::shared::tile`]) and stay in the first-level cache over all tokens.
//!
//! The exponentials decide: of the 18 operations that a state element takes per token, 14 are its decay's. A comes
//! multiplied by log2 e, so that the decay is a power of two whose exponent needs no reduction in two parts. Loads
//! and stores are far below that, so states in registers would gain nothing, and any number of state elements has one
//! loop. What is paid per channel and token (softplus, x · dt) is about a tenth.

use super::cpu::Scan;
use crate::shared::call::In;
use crate::shared::pool::Worker;
use crate::shared::simd;
use crate::shared::tile::{self, Order, Turn};
use crate::shared::vector;
use pulp::{Simd, WithSimd};
use std::f32::consts::LOG2_E;
use std::ops::Range;

/// Channels computed together: a token's inputs of a block are four cache lines.
const CHANNELS: usize = 64;
/// Tokens whose inputs are copied together, so that memory is asked for many lines at once.
const TOKENS: usize = 16;

type Lanes = [f32; CHANNELS];

/// Length of a row of state elements with its padding.
fn padded(states: usize) -> usize {
    states.next_multiple_of(tile::LANES_MAX)
}

/// Scratch for `states` state elements per channel: the states, A, rows on their way, and copies of B and C.
pub fn own_floats(states: usize) -> usize {
    padded(states) * (2 * CHANNELS + tile::LANES_MAX + 2 * TOKENS) + tile::LANES_MAX
}

/// This worker's share: blocks of channels that lie in one group.
pub fn run(scan: &Scan<'_>, worker: &Worker<'_>, own: &mut [f32]) {
    if scan.heads == 0 {
        return;
    }
    // Vectors that cross cache lines would take twice the time.
    let aligned =
        own.as_ptr().align_offset(tile::LANES_MAX * size_of::<f32>()).min(tile::LANES_MAX).min(own.len());
    let own = &mut own[aligned..];
    let per_group = scan.heads / scan.groups;
    let blocks = per_group.div_ceil(CHANNELS);
    for unit in worker.share(scan.sequences * scan.groups * blocks) {
        let group = unit / blocks % scan.groups;
        let first = unit % blocks * CHANNELS;
        let block = Block {
            sequence: unit / (blocks * scan.groups),
            group,
            first: group * per_group + first,
            count: CHANNELS.min(per_group - first),
        };
        block.run(scan, own);
    }
}

/// Channels `first..first + count` of one sequence.
struct Block {
    sequence: usize,
    group: usize,
    first: usize,
    count: usize,
}

impl Block {
    fn run(&self, scan: &Scan<'_>, own: &mut [f32]) {
        let length = padded(scan.states);
        let (state, own) = own.split_at_mut(length * CHANNELS);
        let (rates, own) = own.split_at_mut(length * CHANNELS);
        let (rows, own) = own.split_at_mut(length * tile::LANES_MAX);
        let (buffers, _) = own.split_at_mut(2 * TOKENS * length);
        let rows = &mut rows[..length * tile::lanes()];
        self.load(&scan.call.inputs[3], Some(0), rates, rows, scan.states);
        simd::vectorize(
            #[inline(always)]
            || rates.iter_mut().for_each(|rate| *rate *= LOG2_E),
        );
        // With the one row of a head last, the heads' rows follow one another.
        let pool = scan.call.inputs[0].permuted([0, 2, 1, 3]);
        self.load(&pool, scan.slot(self.sequence), state, rows, scan.states);
        self.store_state(scan, 0, state, rows, length);
        let mut first = 0;
        while first < scan.tokens {
            let end = scan.first_snapshot().max(first + 1).min(scan.tokens).min(first + TOKENS);
            self.advance(scan, first..end, state, rates, buffers);
            self.store_state(scan, end, state, rows, length);
            first = end;
        }
    }

    /// Fills a block with the channels' rows of a plane of axis 3, or with zeros; lanes beyond the last channel
    /// compute along, on zeros.
    fn load(&self, from: &In, plane: Option<usize>, block: &mut [f32], rows: &mut [f32], states: usize) {
        let (lanes, vectors, order) = (tile::lanes(), CHANNELS / tile::lanes(), Order::Natural);
        let length = rows.len() / lanes;
        let Some(plane) = plane else {
            block.fill(0.0);
            return;
        };
        for vector in 0..vectors {
            let first = vector * lanes;
            let count = lanes.min(self.count.saturating_sub(first));
            let place = [self.first + first, 0, plane];
            if let Some(rows) = from.f32_rows(place, count).filter(|direct| direct.len() == rows.len()) {
                simd::arch().dispatch(Turn::In { rows, block, vectors, vector, order });
                continue;
            }
            rows.fill(0.0);
            for (row, target) in rows.chunks_exact_mut(length.max(1)).take(count).enumerate() {
                from.load([place[0] + row, 0, plane], 0, &mut target[..states]);
            }
            simd::arch().dispatch(Turn::In { rows, block, vectors, vector, order });
        }
    }

    /// At most [`TOKENS`] tokens.
    fn advance(
        &self,
        scan: &Scan<'_>,
        tokens: Range<usize>,
        state: &mut [f32],
        rates: &[f32],
        buffers: &mut [f32],
    ) {
        // With the channels innermost, one token's inputs of the block are a row.
        let x = scan.call.inputs[1].permuted([1, 0, 2, 3]);
        let y = scan.call.results[0].permuted([1, 0, 2, 3]);
        let (mut inputs, mut steps) = ([[0.0; CHANNELS]; TOKENS], [[0.0; CHANNELS]; TOKENS]);
        let mut sums = [[0.0; CHANNELS]; TOKENS];
        for ((token, inputs), steps) in tokens.clone().zip(&mut inputs).zip(&mut steps) {
            x.load([0, token, self.sequence], self.first, &mut inputs[..self.count]);
            scan.call.inputs[2].load([token, self.sequence, 0], self.first, &mut steps[..self.count]);
        }
        let mut projections: [(&[f32], &[f32]); TOKENS] = [(&[], &[]); TOKENS];
        let buffers = buffers.chunks_exact_mut((buffers.len() / TOKENS).max(1));
        for ((token, target), buffer) in tokens.clone().zip(&mut projections).zip(buffers) {
            *target = scan.projections([self.group, token, self.sequence], scan.states, buffer);
        }
        simd::arch().dispatch(Advance {
            state,
            rates,
            projections: &projections[..tokens.len()],
            inputs: &inputs,
            steps: &steps,
            sums: &mut sums,
        });
        for (token, sums) in tokens.zip(&sums) {
            // SAFETY: blocks are shared out among the workers, each to one.
            unsafe { y.store([0, token, self.sequence], self.first, &sums[..self.count]) }
        }
    }

    /// Writes the states to the result that wants them after `tokens_done` tokens, if one does.
    fn store_state(
        &self,
        scan: &Scan<'_>,
        tokens_done: usize,
        block: &[f32],
        rows: &mut [f32],
        length: usize,
    ) {
        let Some(index) = scan.snapshot_after(tokens_done) else { return };
        let result = scan.call.results[index].permuted([0, 2, 1, 3]);
        let (lanes, vectors, order) = (tile::lanes(), CHANNELS / tile::lanes(), Order::Natural);
        for vector in 0..self.count.div_ceil(lanes) {
            let first = vector * lanes;
            let count = lanes.min(self.count - first);
            let place = [self.first + first, 0, self.sequence];
            // SAFETY: blocks are shared out among the workers, each to one.
            let direct = unsafe { result.f32_rows(place, count) };
            if let Some(rows) = direct.filter(|direct| direct.len() == rows.len()) {
                simd::arch().dispatch(Turn::Out { rows, block, vectors, vector, order });
                continue;
            }
            simd::arch().dispatch(Turn::Out { rows: &mut *rows, block, vectors, vector, order });
            for (row, values) in rows.chunks_exact(length.max(1)).take(count).enumerate() {
                let place = [place[0] + row, 0, self.sequence];
                // SAFETY: blocks are shared out among the workers, each to one.
                unsafe { result.store(place, 0, &values[..scan.states]) }
            }
        }
    }
}

/// Tokens of a block: updates the states and writes y. A step of 0 leaves a channel's states alone to the bit.
struct Advance<'a> {
    state: &'a mut [f32],
    /// A · log2 e.
    rates: &'a [f32],
    /// B and C of each token.
    projections: &'a [(&'a [f32], &'a [f32])],
    inputs: &'a [Lanes; TOKENS],
    steps: &'a [Lanes; TOKENS],
    sums: &'a mut [Lanes; TOKENS],
}

impl WithSimd for Advance<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match S::F32_LANES {
            16 => advance::<S, { CHANNELS / 16 }, 2>(simd, self),
            8 => advance::<S, { CHANNELS / 8 }, 1>(simd, self),
            4 => advance::<S, { CHANNELS / 4 }, 1>(simd, self),
            _ => advance::<S, CHANNELS, 1>(simd, self),
        }
    }
}

/// With the channels as V vectors, K of them at once.
#[inline(always)]
fn advance<S: Simd, const V: usize, const K: usize>(simd: S, advance: Advance<'_>) {
    let Advance { state, rates, projections, inputs, steps, sums } = advance;
    let states = S::as_mut_simd_f32s(state).0.as_chunks_mut::<V>().0;
    let rates = S::as_simd_f32s(rates).0.as_chunks::<V>().0;
    let zero = simd.splat_f32s(0.0);
    let tokens = inputs.iter().zip(steps).zip(sums);
    for ((b, c), ((inputs, steps), sums)) in projections.iter().zip(tokens) {
        let mut steps = S::as_simd_f32s(steps).0.as_chunks::<V>().0[0];
        let mut inputs = S::as_simd_f32s(inputs).0.as_chunks::<V>().0[0];
        let mut wide_sums = [zero; V];
        for first in (0..V).step_by(K) {
            let lanes = first..first + K;
            let steps = softplus_of::<S, K>(simd, &mut steps[lanes.clone()]);
            let (inputs, wide_sums) = (&mut inputs[lanes.clone()], &mut wide_sums[lanes.clone()]);
            for k in 0..K {
                inputs[k] = simd.mul_f32s(inputs[k], steps[k]);
            }
            for (((states, rates), &b), &c) in states.iter_mut().zip(rates).zip(*b).zip(*c) {
                let (states, rates) = (&mut states[lanes.clone()], &rates[lanes.clone()]);
                let (b, c) = (simd.splat_f32s(b), simd.splat_f32s(c));
                let mut decays = [zero; K];
                for k in 0..K {
                    decays[k] = simd.mul_f32s(steps[k], rates[k]);
                }
                let decays = vector::exp2(simd, decays);
                for k in 0..K {
                    let moved = simd.mul_add_e_f32s(states[k], decays[k], simd.mul_f32s(b, inputs[k]));
                    states[k] = simd.select_f32s(simd.equal_f32s(steps[k], zero), states[k], moved);
                    wide_sums[k] = simd.mul_add_e_f32s(states[k], c, wide_sums[k]);
                }
            }
        }
        S::as_mut_simd_f32s(sums).0.copy_from_slice(&wide_sums);
    }
}

#[inline(always)]
fn softplus_of<S: Simd, const K: usize>(simd: S, steps: &mut [S::f32s]) -> [S::f32s; K] {
    vector::softplus(simd, std::array::from_fn(|k| steps[k]))
}
