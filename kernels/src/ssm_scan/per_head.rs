//! Mamba-2: one decay per head and token. Vectors run along the state elements of a row, as they lie in
//! memory; [`ROWS`] rows of a head stay in the first-level cache over all tokens.

use super::cpu::Scan;
use crate::shared::pool::Worker;
use crate::shared::{math, simd};

/// Rows of a head computed together.
const ROWS: usize = 16;
/// Tokens whose steps and decays are computed together.
const STEPS: usize = 64;
/// Partial sums of a row; element n goes to sum n mod LANES.
const LANES: usize = 16;

/// Scratch for rows of `states` elements: the states, and copies of B and C.
pub fn own_floats(states: usize) -> usize {
    states * (ROWS + 2)
}

/// This worker's share: blocks of rows of one head.
pub fn run(scan: &Scan<'_>, worker: &Worker<'_>, own: &mut [f32]) {
    let blocks = scan.head_dim.div_ceil(ROWS);
    for unit in worker.share(scan.sequences * scan.heads * blocks) {
        let first = unit % blocks * ROWS;
        let block = Block {
            sequence: unit / (blocks * scan.heads),
            head: unit / blocks % scan.heads,
            first,
            count: ROWS.min(scan.head_dim - first),
        };
        block.run(scan, own);
    }
}

/// Rows `first..first + count` of one head of one sequence.
struct Block {
    sequence: usize,
    head: usize,
    first: usize,
    count: usize,
}

impl Block {
    fn run(&self, scan: &Scan<'_>, own: &mut [f32]) {
        let (state, projections) = own.split_at_mut(self.count * scan.states);
        for (row, target) in state.chunks_exact_mut(scan.states.max(1)).enumerate() {
            scan.load_start(self.first + row, self.head, self.sequence, target);
        }
        self.store_state(scan, 0, state);
        let mut decay = [0.0];
        scan.call.inputs[3].load([self.head, 0, 0], 0, &mut decay);
        // With the tokens innermost, a head's steps are a row.
        let dt = scan.call.inputs[2].permuted([1, 0, 2, 3]);
        let group = self.head / (scan.heads / scan.groups);
        for first in (0..scan.tokens).step_by(STEPS) {
            let (mut steps, mut decays) = ([0.0; STEPS], [0.0; STEPS]);
            let tokens = first..scan.tokens.min(first + STEPS);
            dt.load([self.head, self.sequence, 0], first, &mut steps[..tokens.len()]);
            steps_and_decays(&mut steps[..tokens.len()], &mut decays, decay[0]);
            for (token, (step, decay)) in tokens.zip(steps.into_iter().zip(decays)) {
                let place = [self.head, token, self.sequence];
                let (mut inputs, mut sums) = ([0.0; ROWS], [0.0; ROWS]);
                scan.call.inputs[1].load(place, self.first, &mut inputs[..self.count]);
                let (b, c) = scan.projections([group, token, self.sequence], projections);
                let inputs = &inputs[..self.count];
                simd::vectorize(
                    #[inline(always)]
                    || advance(state, b, c, inputs, step, decay, &mut sums),
                );
                // SAFETY: blocks are shared out among the workers, each to one.
                unsafe { scan.call.results[0].store(place, self.first, &sums[..self.count]) }
                self.store_state(scan, token + 1, state);
            }
        }
    }

    /// Writes the states to the result that wants them after `tokens_done` tokens, if one does.
    fn store_state(&self, scan: &Scan<'_>, tokens_done: usize, state: &[f32]) {
        let Some(index) = scan.snapshot_after(tokens_done) else { return };
        for (row, values) in state.chunks_exact(scan.states.max(1)).enumerate() {
            // SAFETY: blocks are shared out among the workers, each to one.
            unsafe { scan.call.results[index].store([self.first + row, self.head, self.sequence], 0, values) }
        }
    }
}

/// Turns raw steps into softplus of them, and into the factors of the state.
fn steps_and_decays(steps: &mut [f32], decays: &mut [f32; STEPS], decay: f32) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (step, factor) in steps.iter_mut().zip(decays) {
                *step = math::softplus(*step);
                *factor = math::exp(*step * decay);
            }
        },
    );
}

/// One token: updates the rows and writes y. A step of 0 leaves the states alone to the bit.
#[inline(always)]
fn advance(
    state: &mut [f32],
    b: &[f32],
    c: &[f32],
    inputs: &[f32],
    step: f32,
    decay: f32,
    sums: &mut [f32; ROWS],
) {
    let moves = step != 0.0;
    for ((row, &input), sum) in state.chunks_exact_mut(b.len().max(1)).zip(inputs).zip(sums) {
        *sum = if moves { move_row(row, b, c, input * step, decay) } else { dot(row, c) };
    }
}

/// s ← s · decay + b · input, and Σ s · c.
#[inline(always)]
fn move_row(row: &mut [f32], b: &[f32], c: &[f32], input: f32, decay: f32) -> f32 {
    let mut sums = [0.0; LANES];
    let (rows, row_rest) = row.as_chunks_mut::<LANES>();
    let ((bs, b_rest), (cs, c_rest)) = (b.as_chunks::<LANES>(), c.as_chunks::<LANES>());
    for ((row, b), c) in rows.iter_mut().zip(bs).zip(cs) {
        for lane in 0..LANES {
            row[lane] = row[lane] * decay + b[lane] * input;
            sums[lane] += row[lane] * c[lane];
        }
    }
    for (((value, b), c), sum) in row_rest.iter_mut().zip(b_rest).zip(c_rest).zip(&mut sums) {
        *value = *value * decay + b * input;
        *sum += *value * c;
    }
    halves(sums)
}

/// Σ s · c, in the order of [`move_row`].
#[inline(always)]
fn dot(row: &[f32], c: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let ((rows, row_rest), (cs, c_rest)) = (row.as_chunks::<LANES>(), c.as_chunks::<LANES>());
    for (row, c) in rows.iter().zip(cs) {
        for lane in 0..LANES {
            sums[lane] += row[lane] * c[lane];
        }
    }
    for ((value, c), sum) in row_rest.iter().zip(c_rest).zip(&mut sums) {
        *sum += value * c;
    }
    halves(sums)
}

/// The sum of the lanes, folded in halves.
#[inline(always)]
fn halves(mut sums: [f32; LANES]) -> f32 {
    for width in [8, 4, 2, 1] {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
    }
    sums[0]
}
