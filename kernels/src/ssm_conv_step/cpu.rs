//! Blocks of up to 64 channels of one sequence. Channels are innermost in x and y, so a block keeps its inputs
//! as rows over channels: the window, turned once on the way in and out, and then up to 16 tokens of x. Vectors
//! run along the channels; every sum starts with tap 0 and adds the taps in order, as in `ssm_conv`, so that
//! neither tokens per call nor workers change a bit.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, In, Out};
use crate::shared::pool::Worker;
use crate::shared::{math, simd};
use ssmgraph_ops::shape::checked_row;
use ssmgraph_ops::{Define, Layout, OpError, SsmConvStep};
use std::ops::Range;

/// Channels of a block.
const CHANNELS: usize = 64;
/// Tokens that lie in a block at once.
const TOKENS: usize = 16;

impl CpuKernel for SsmConvStep {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], results: &[Layout]) -> usize {
        let sums = results[0].elements().saturating_mul(4 + inputs[2].ne[0]) / 8;
        let windows = results[1..].iter().fold(0, |sum: usize, state| sum.saturating_add(state.elements()));
        sums.saturating_add(windows).saturating_add(inputs[2].elements() / 2)
    }

    fn scratch(&self, inputs: &[Layout], results: &[Layout]) -> Scratch {
        let [channels, _, sequences, _] = inputs[1].ne;
        let (block, width) = (channels.min(CHANNELS), inputs[2].ne[0]);
        // Without sequences there are no windows that would bound the width.
        let idle = sequences == 0 || results.iter().all(Layout::is_empty);
        let floats = || block.saturating_mul(width.saturating_mul(3).saturating_add(TOKENS + 1));
        Scratch { shared_bytes: 0, own_floats: if idle { 0 } else { floats() } }
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, own: &mut [f32]) -> Result<(), OpError> {
        let conv = Conv::new(call, self)?;
        if call.results.iter().all(|result| result.layout().is_empty()) {
            return Ok(());
        }
        let blocks = conv.channels.div_ceil(CHANNELS);
        for unit in worker.share(blocks * conv.sequences) {
            let first = unit % blocks * CHANNELS;
            conv.run(first..conv.channels.min(first + CHANNELS), unit / blocks, own)?;
        }
        Ok(())
    }
}

/// A call with its sizes and with its start rows checked.
struct Conv<'a> {
    op: &'a SsmConvStep,
    call: &'a Call,
    channels: usize,
    tokens: usize,
    sequences: usize,
    width: usize,
}

impl<'a> Conv<'a> {
    fn new(call: &'a Call, op: &'a SsmConvStep) -> Result<Conv<'a>, OpError> {
        let [channels, tokens, sequences, _] = call.inputs[1].ne();
        let conv = Conv { op, call, channels, tokens, sequences, width: call.inputs[2].ne()[0] };
        (0..sequences).try_for_each(|sequence| conv.start(sequence).map(drop))?;
        Ok(conv)
    }

    /// The row of the pool that a sequence starts from, if any.
    fn start(&self, sequence: usize) -> Result<Option<usize>, OpError> {
        let ids = &self.call.inputs[self.call.inputs.len() - 1];
        let rows = self.call.inputs[0].ne()[3];
        checked_row(self.op.name(), "ids", [sequence, 0, 0], ids.int(sequence, [0; 3]), rows)
    }

    /// A block of channels of one sequence, from its start to its snapshots.
    fn run(&self, channels: Range<usize>, sequence: usize, own: &mut [f32]) -> Result<(), OpError> {
        let (count, past) = (channels.len(), self.width - 1);
        let (inputs, own) = own.split_at_mut((past + TOKENS) * count);
        let (taps, own) = own.split_at_mut(self.width * count);
        let (columns, own) = own.split_at_mut(self.width * count);
        let sums = &mut own[..count];
        let mut offsets = [0.0; CHANNELS];
        let offsets = self.op.bias.then(|| {
            self.call.inputs[3].load([0; 3], channels.start, &mut offsets[..count]);
            &offsets[..count]
        });
        load_columns(&self.call.inputs[2], 0, channels.clone(), columns);
        columns_to_rows(columns, taps, self.width);
        let (window, columns) = (&mut inputs[..past * count], &mut columns[..past * count]);
        match self.start(sequence)? {
            Some(row) => {
                load_columns(&self.call.inputs[0], row, channels.clone(), columns);
                columns_to_rows(columns, window, past);
            }
            None => window.fill(0.0),
        }
        let mut keep = |tokens_done: usize, window: &[f32]| {
            let Some(index) = self.snapshot_after(tokens_done) else { return };
            rows_to_columns(window, columns, past);
            // SAFETY: blocks are shared out among the workers, each to one.
            unsafe { store_columns(&self.call.results[index], sequence, channels.clone(), columns) }
        };
        keep(0, window);
        for first in (0..self.tokens).step_by(TOKENS) {
            let tokens = TOKENS.min(self.tokens - first);
            for (token, row) in inputs[past * count..].chunks_exact_mut(count).take(tokens).enumerate() {
                self.call.inputs[1].load([first + token, sequence, 0], channels.start, row);
            }
            for token in 0..tokens {
                let seen = &inputs[token * count..][..self.width * count];
                convolve(seen, taps, offsets, self.op.silu, sums);
                // SAFETY: blocks are shared out among the workers, each to one.
                unsafe { self.call.results[0].store([first + token, sequence, 0], channels.start, sums) }
                keep(first + token + 1, &seen[count..]);
            }
            inputs.copy_within(tokens * count..(tokens + past) * count, 0);
        }
        Ok(())
    }

    /// The index of the state result to write after this many tokens were done, if there is one.
    fn snapshot_after(&self, tokens_done: usize) -> Option<usize> {
        let back = self.tokens - tokens_done;
        (back + 1 < self.call.results.len()).then_some(back + 1)
    }
}

/// Sums, bias and activation of one token: `inputs` and `taps` are rows over the channels, oldest first.
fn convolve(inputs: &[f32], taps: &[f32], bias: Option<&[f32]>, silu: bool, sums: &mut [f32]) {
    let count = sums.len();
    simd::vectorize(
        #[inline(always)]
        || {
            if inputs.len() == 4 * count {
                let [x0, x1, x2, x3] = std::array::from_fn(|tap| &inputs[tap * count..][..count]);
                let [w0, w1, w2, w3] = std::array::from_fn(|tap| &taps[tap * count..][..count]);
                for (c, sum) in sums.iter_mut().enumerate() {
                    *sum = x0[c] * w0[c] + x1[c] * w1[c] + x2[c] * w2[c] + x3[c] * w3[c];
                }
            } else {
                let mut rows = inputs.chunks_exact(count).zip(taps.chunks_exact(count));
                let (inputs, taps) = rows.next().expect("at least one tap");
                sums.iter_mut().zip(inputs).zip(taps).for_each(|((sum, input), tap)| *sum = input * tap);
                for (inputs, taps) in rows {
                    sums.iter_mut().zip(inputs).zip(taps).for_each(|((sum, input), tap)| *sum += input * tap);
                }
            }
            if let Some(bias) = bias {
                sums.iter_mut().zip(bias).for_each(|(sum, offset)| *sum += offset);
            }
            if silu {
                sums.iter_mut().for_each(|sum| *sum = math::silu(*sum));
            }
        },
    );
}

/// Rows `channels` of plane `plane` of axis 3, one after another.
fn load_columns(from: &In, plane: usize, channels: Range<usize>, columns: &mut [f32]) {
    let [height, all, ..] = from.ne();
    if let Some(flat) = from.flat() {
        return flat.load([0; 3], (plane * all + channels.start) * height, columns);
    }
    for (channel, column) in channels.zip(columns.chunks_exact_mut(height.max(1))) {
        from.load([channel, 0, plane], 0, column);
    }
}

/// The reverse of [`load_columns`].
///
/// # Safety
/// No other worker touches these rows until the next barrier.
unsafe fn store_columns(to: &Out, plane: usize, channels: Range<usize>, columns: &[f32]) {
    let [height, all, ..] = to.ne();
    if let Some(flat) = to.flat() {
        // SAFETY: by the function's contract.
        return unsafe { flat.store([0; 3], (plane * all + channels.start) * height, columns) };
    }
    for (channel, column) in channels.zip(columns.chunks_exact(height.max(1))) {
        // SAFETY: by the function's contract.
        unsafe { to.store([channel, 0, plane], 0, column) }
    }
}

/// Turns `height` numbers of each channel, one channel after another, into `height` rows over the channels.
fn columns_to_rows(columns: &[f32], rows: &mut [f32], height: usize) {
    let count = rows.len() / height.max(1);
    for (place, row) in rows.chunks_exact_mut(count.max(1)).enumerate() {
        row.iter_mut().zip(columns[place..].iter().step_by(height)).for_each(|(to, from)| *to = *from);
    }
}

/// The reverse of [`columns_to_rows`].
fn rows_to_columns(rows: &[f32], columns: &mut [f32], height: usize) {
    let count = rows.len() / height.max(1);
    for (place, row) in rows.chunks_exact(count.max(1)).enumerate() {
        columns[place..].iter_mut().step_by(height).zip(row).for_each(|(to, from)| *to = *from);
    }
}
