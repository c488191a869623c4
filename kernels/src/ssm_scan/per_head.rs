//! Mamba-2: one decay per head and token. Vectors run along the state elements of a row, as they lie in
//! memory; [`ROWS`] rows of a head stay in the first-level cache over all tokens.

use super::cpu::Scan;
use crate::shared::pool::Worker;
use crate::shared::{math, simd};
use pulp::{Simd, WithSimd};

/// Rows of a head computed together.
const ROWS: usize = 16;
/// Tokens whose steps and decays are computed together.
const STEPS: usize = 64;

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
                simd::arch().dispatch(Advance { state, b, c, inputs, step, decay, sums: &mut sums });
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

/// One token of a block of rows: updates the states and writes y. A step of 0 leaves the states alone to the
/// bit.
struct Advance<'a> {
    state: &'a mut [f32],
    b: &'a [f32],
    c: &'a [f32],
    inputs: &'a [f32],
    step: f32,
    decay: f32,
    sums: &'a mut [f32; ROWS],
}

impl WithSimd for Advance<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Advance { state, b, c, inputs, step, decay, sums } = self;
        if step == 0.0 {
            for (row, sum) in state.chunks_exact(c.len().max(1)).zip(sums) {
                *sum = dot(simd, row, c);
            }
            return;
        }
        // Rows in fours share the loads of b and c; each row has the same operations as it would have alone.
        let mut fours = state.chunks_exact_mut((4 * c.len()).max(1));
        let mut place = 0;
        for four in &mut fours {
            let inputs = std::array::from_fn(|row| inputs[place + row] * step);
            sums[place..place + 4].copy_from_slice(&move_rows::<S, 4>(simd, four, b, c, inputs, decay));
            place += 4;
        }
        for row in fours.into_remainder().chunks_exact_mut(c.len().max(1)) {
            [sums[place]] = move_rows(simd, row, b, c, [inputs[place] * step], decay);
            place += 1;
        }
    }
}

/// For each of R rows, s ← s · decay + b · input; returns Σ s · c. Vectors first, one running sum per row,
/// then the elements that fill no vector.
#[inline(always)]
fn move_rows<S: Simd, const R: usize>(
    simd: S,
    rows: &mut [f32],
    b: &[f32],
    c: &[f32],
    inputs: [f32; R],
    decay: f32,
) -> [f32; R] {
    let ((bs, b_rest), (cs, c_rest)) = (S::as_simd_f32s(b), S::as_simd_f32s(c));
    let (wide_inputs, wide_decay) = (inputs.map(|input| simd.splat_f32s(input)), simd.splat_f32s(decay));
    let mut wide_sums = [simd.splat_f32s(0.0); R];
    let mut sums = [0.0; R];
    let mut rows = rows.chunks_exact_mut(c.len());
    let rows: [_; R] = std::array::from_fn(|_| S::as_mut_simd_f32s(rows.next().expect("R whole rows")));
    for (place, (&b, &c)) in bs.iter().zip(cs).enumerate() {
        for row in 0..R {
            let value = &mut rows[row].0[place];
            *value = simd.mul_add_e_f32s(b, wide_inputs[row], simd.mul_f32s(*value, wide_decay));
            wide_sums[row] = simd.mul_add_e_f32s(*value, c, wide_sums[row]);
        }
    }
    for row in 0..R {
        for ((value, b), c) in rows[row].1.iter_mut().zip(b_rest).zip(c_rest) {
            *value = *value * decay + b * inputs[row];
            sums[row] += *value * c;
        }
        sums[row] += simd.reduce_sum_f32s(wide_sums[row]);
    }
    sums
}

/// Σ s · c, in the order of [`move_rows`].
#[inline(always)]
fn dot<S: Simd>(simd: S, row: &[f32], c: &[f32]) -> f32 {
    let ((rows, row_rest), (cs, c_rest)) = (S::as_simd_f32s(row), S::as_simd_f32s(c));
    let wide = rows.iter().zip(cs).fold(simd.splat_f32s(0.0), |sum, (&s, &c)| simd.mul_add_e_f32s(s, c, sum));
    let rest = row_rest.iter().zip(c_rest).fold(0.0, |sum, (s, c)| sum + s * c);
    rest + simd.reduce_sum_f32s(wide)
}
