//! Mamba-1: every state element has a decay of its own. One vector lane is one channel; the states of
//! [`LANES`] channels stay in the first-level cache over all tokens, and the exponentials are vectors. That
//! order costs a transposition on the way in and out, so a call of one or two tokens keeps the rows as they
//! lie instead and runs its vectors along the state elements, with the same operations for each element.

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
        let order = if scan.tokens <= 2 { Order::Rows } else { Order::Lanes };
        let states = scan.states;
        let (state, own) = own.split_at_mut(states * LANES);
        let (decay, own) = own.split_at_mut(states * LANES);
        let (row, projections) = own.split_at_mut(states);
        // Lanes beyond the last channel compute along; their numbers go nowhere.
        state.fill(0.0);
        decay.fill(0.0);
        for lane in 0..self.count {
            scan.load_start(0, self.first + lane, self.sequence, row);
            order.put(state, lane, row);
            scan.call.inputs[3].load([self.first + lane, 0, 0], 0, row);
            order.put(decay, lane, row);
        }
        // With the channels innermost, one token's inputs of the block are a row.
        let x = scan.call.inputs[1].permuted([1, 0, 2, 3]);
        let y = scan.call.results[0].permuted([1, 0, 2, 3]);
        self.store_state(scan, 0, order, state, row);
        for token in 0..scan.tokens {
            let (mut inputs, mut steps) = ([0.0; LANES], [0.0; LANES]);
            x.load([0, token, self.sequence], self.first, &mut inputs[..self.count]);
            scan.call.inputs[2].load([token, self.sequence, 0], self.first, &mut steps[..self.count]);
            let (b, c) = scan.projections([self.group, token, self.sequence], projections);
            let sums = simd::vectorize(
                #[inline(always)]
                || {
                    let (inputs, steps) = scale(inputs, steps);
                    match order {
                        Order::Lanes => advance_lanes(state, decay, b, c, inputs, steps),
                        Order::Rows => advance_rows(state, decay, b, c, &inputs[..self.count], &steps),
                    }
                },
            );
            // SAFETY: blocks are shared out among the workers, each to one.
            unsafe { y.store([0, token, self.sequence], self.first, &sums[..self.count]) }
            self.store_state(scan, token + 1, order, state, row);
        }
    }

    /// Writes the states to the result that wants them after `tokens_done` tokens, if one does.
    fn store_state(&self, scan: &Scan<'_>, tokens_done: usize, order: Order, state: &[f32], row: &mut [f32]) {
        let Some(index) = scan.snapshot_after(tokens_done) else { return };
        for lane in 0..self.count {
            order.get(state, lane, row);
            // SAFETY: blocks are shared out among the workers, each to one.
            unsafe { scan.call.results[index].store([0, self.first + lane, self.sequence], 0, row) }
        }
    }
}

/// How the states of a block lie in the worker's scratch.
#[derive(Clone, Copy)]
enum Order {
    /// Element n of all channels side by side.
    Lanes,
    /// All elements of a channel side by side, as in memory.
    Rows,
}

impl Order {
    fn put(self, block: &mut [f32], lane: usize, row: &[f32]) {
        match self {
            Order::Lanes => {
                let lanes = block.as_chunks_mut::<LANES>().0;
                lanes.iter_mut().zip(row).for_each(|(lanes, value)| lanes[lane] = *value);
            }
            Order::Rows => block[lane * row.len()..][..row.len()].copy_from_slice(row),
        }
    }

    fn get(self, block: &[f32], lane: usize, row: &mut [f32]) {
        match self {
            Order::Lanes => {
                let lanes = block.as_chunks::<LANES>().0;
                row.iter_mut().zip(lanes).for_each(|(value, lanes)| *value = lanes[lane]);
            }
            Order::Rows => row.copy_from_slice(&block[lane * row.len()..][..row.len()]),
        }
    }
}

/// The products of input and step, and the steps after softplus.
#[inline(always)]
fn scale(mut inputs: Lanes, mut steps: Lanes) -> (Lanes, Lanes) {
    for lane in 0..LANES {
        steps[lane] = math::softplus(steps[lane]);
        inputs[lane] *= steps[lane];
    }
    (inputs, steps)
}

/// One token: updates the states and returns y. A step of 0 leaves a channel's states alone to the bit.
#[inline(always)]
fn advance_lanes(
    state: &mut [f32],
    decay: &[f32],
    b: &[f32],
    c: &[f32],
    inputs: Lanes,
    steps: Lanes,
) -> Lanes {
    let (state, decay) = (state.as_chunks_mut::<LANES>().0, decay.as_chunks::<LANES>().0);
    let mut sums = [0.0; LANES];
    for (((state, decay), &b), &c) in state.iter_mut().zip(decay).zip(b).zip(c) {
        for lane in 0..LANES {
            let moved = state[lane] * math::exp(steps[lane] * decay[lane]) + b * inputs[lane];
            state[lane] = if steps[lane] != 0.0 { moved } else { state[lane] };
            sums[lane] += state[lane] * c;
        }
    }
    sums
}

/// As [`advance_lanes`], to the bit, on states in rows.
#[inline(always)]
fn advance_rows(
    state: &mut [f32],
    decay: &[f32],
    b: &[f32],
    c: &[f32],
    inputs: &[f32],
    steps: &Lanes,
) -> Lanes {
    let mut sums = [0.0; LANES];
    let rows = state.chunks_exact_mut(c.len().max(1)).zip(decay.chunks_exact(c.len().max(1)));
    for ((((row, decay), &input), &step), sum) in rows.zip(inputs).zip(steps).zip(&mut sums) {
        if step != 0.0 {
            for ((value, decay), b) in row.iter_mut().zip(decay).zip(b) {
                *value = *value * math::exp(step * decay) + b * input;
            }
        }
        *sum = row.iter().zip(c).fold(0.0, |sum, (value, c)| sum + value * c);
    }
    sums
}
