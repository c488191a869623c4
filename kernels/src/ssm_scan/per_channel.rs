//! Mamba-1: every state element has a decay of its own. One vector lane is one channel; the states of
//! [`LANES`] channels stay in the first-level cache over all tokens, and the exponentials are vectors.

use super::cpu::Scan;
use crate::shared::pool::Worker;
use crate::shared::{math, simd};

/// Channels computed together.
const LANES: usize = 16;

type Lanes = [f32; LANES];

/// Scratch for `states` state elements per channel: the states, A, and copies of B, C and one row.
pub fn own_floats(states: usize) -> usize {
    states * (2 * LANES + 3)
}

/// This worker's share: blocks of channels that lie in one group.
pub fn run(scan: &Scan<'_>, worker: &Worker<'_>, own: &mut [f32]) {
    if scan.heads == 0 {
        return;
    }
    let per_group = scan.heads / scan.groups;
    let blocks = per_group.div_ceil(LANES);
    for unit in worker.share(scan.sequences * scan.groups * blocks) {
        let group = unit / blocks % scan.groups;
        let first = unit % blocks * LANES;
        let block = Block {
            sequence: unit / (blocks * scan.groups),
            group,
            first: group * per_group + first,
            count: LANES.min(per_group - first),
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
        let states = scan.states;
        let (state, own) = own.split_at_mut(states * LANES);
        let (decay, own) = own.split_at_mut(states * LANES);
        let (row, projections) = own.split_at_mut(states);
        let (state, decay) = (state.as_chunks_mut::<LANES>().0, decay.as_chunks_mut::<LANES>().0);
        state.fill([0.0; LANES]);
        decay.fill([0.0; LANES]);
        for lane in 0..self.count {
            scan.load_start(0, self.first + lane, self.sequence, row);
            state.iter_mut().zip(&*row).for_each(|(lanes, value)| lanes[lane] = *value);
            scan.call.inputs[3].load([self.first + lane, 0, 0], 0, row);
            decay.iter_mut().zip(&*row).for_each(|(lanes, value)| lanes[lane] = *value);
        }
        // With the channels innermost, one token's inputs of the block are a row.
        let x = scan.call.inputs[1].permuted([1, 0, 2, 3]);
        let y = scan.call.results[0].permuted([1, 0, 2, 3]);
        self.store_state(scan, 0, state, row);
        for token in 0..scan.tokens {
            let (mut inputs, mut steps) = ([0.0; LANES], [0.0; LANES]);
            x.load([0, token, self.sequence], self.first, &mut inputs[..self.count]);
            scan.call.inputs[2].load([token, self.sequence, 0], self.first, &mut steps[..self.count]);
            let (b, c) = scan.projections([self.group, token, self.sequence], projections);
            let sums = simd::vectorize(
                #[inline(always)]
                || advance(state, decay, b, c, inputs, steps),
            );
            // SAFETY: blocks are shared out among the workers, each to one.
            unsafe { y.store([0, token, self.sequence], self.first, &sums[..self.count]) }
            self.store_state(scan, token + 1, state, row);
        }
    }

    /// Writes the states to the result that wants them after `tokens_done` tokens, if one does.
    fn store_state(&self, scan: &Scan<'_>, tokens_done: usize, state: &[Lanes], row: &mut [f32]) {
        let Some(index) = scan.snapshot_after(tokens_done) else { return };
        for lane in 0..self.count {
            row.iter_mut().zip(state).for_each(|(value, lanes)| *value = lanes[lane]);
            // SAFETY: blocks are shared out among the workers, each to one.
            unsafe { scan.call.results[index].store([0, self.first + lane, self.sequence], 0, row) }
        }
    }
}

/// One token: updates the states and returns y. A step of 0 leaves a channel's states alone to the bit.
#[inline(always)]
fn advance(state: &mut [Lanes], decay: &[Lanes], b: &[f32], c: &[f32], inputs: Lanes, steps: Lanes) -> Lanes {
    let steps = steps.map(math::softplus);
    let mut scaled = [0.0; LANES];
    for lane in 0..LANES {
        scaled[lane] = inputs[lane] * steps[lane];
    }
    let mut sums = [0.0; LANES];
    for (((state, decay), &b), &c) in state.iter_mut().zip(decay).zip(b).zip(c) {
        for lane in 0..LANES {
            let moved = state[lane] * math::exp(steps[lane] * decay[lane]) + b * scaled[lane];
            state[lane] = if steps[lane] != 0.0 { moved } else { state[lane] };
            sums[lane] += state[lane] * c;
        }
    }
    sums
}
