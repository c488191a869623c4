//! Blocks of channels of one sequence, token by token. Channels are innermost in x and y, so vectors run along them
//! and the taps read x where it lies, a row for each; only the window and the taps, which lie channel by channel, are
//! turned into rows first. A new input, and the place of its result, is asked of memory while the token before it is
//! computed. Tokens of a block need nothing of each other but x, so they too are shared out among the workers.
//!
//! Every sum starts with tap 0 and adds the taps in order, as in `ssm_conv`, so that neither tokens per call nor
//! workers change a bit. Memory limits it with SiLU or without: its vector takes some twenty cycles, about what the
//! way of two cache lines from memory and back takes.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, In, Out};
use crate::shared::pool::Worker;
use crate::shared::tile::LANES_MAX;
use crate::shared::{prefetch, simd, vector};
use crate::ssm_conv::cpu::finish;
use pulp::{Simd, WithSimd};
use smallvec::SmallVec;
use ssmgraph_ops::shape::checked_row;
use ssmgraph_ops::{Define, Layout, OpError, SsmConvStep};
use std::ops::Range;

/// Channels of a block: the rows and taps of a token are a third of the first-level cache.
const CHANNELS: usize = 512;
/// Tokens that are shared out together, and that are copied together where x cannot be read as it lies.
const TOKENS: usize = 16;
/// Elements of a cache line.
const LINE: usize = 16;
/// Widths up to this need no memory for their list of rows.
const WIDTH_USUAL: usize = 8;

impl CpuKernel for SsmConvStep {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], results: &[Layout]) -> usize {
        let sums = results[0].elements().saturating_mul(4 + inputs[2].ne[0]) / 16;
        let windows = results[1..].iter().fold(0, |sum: usize, state| sum.saturating_add(state.elements()));
        sums.saturating_add(windows).saturating_add(inputs[2].elements() / 4)
    }

    fn scratch(&self, inputs: &[Layout], results: &[Layout]) -> Scratch {
        let [channels, _, sequences, _] = inputs[1].ne;
        let (block, width) = (channels.min(CHANNELS), inputs[2].ne[0]);
        // Without sequences there are no windows that would bound the width.
        let idle = sequences == 0 || results.iter().all(Layout::is_empty);
        let floats = || block.saturating_mul(width.saturating_mul(4).saturating_add(TOKENS + 1));
        Scratch { shared_bytes: 0, own_floats: if idle { 0 } else { floats() } }
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, own: &mut [f32]) -> Result<(), OpError> {
        let conv = Conv::new(call, self)?;
        if call.results.iter().all(|result| result.layout().is_empty()) {
            return Ok(());
        }
        let (blocks, pieces) = (conv.channels.div_ceil(CHANNELS), conv.tokens.div_ceil(TOKENS).max(1));
        let mut share = worker.share(blocks * conv.sequences * pieces);
        while let Some(unit) = share.next() {
            let together = (pieces - unit % pieces).min(share.len() + 1);
            let first = unit % pieces * TOKENS;
            let tokens = first..(first + together * TOKENS).min(conv.tokens);
            let channel = unit / pieces % blocks * CHANNELS;
            let channels = channel..conv.channels.min(channel + CHANNELS);
            conv.run(channels, tokens, unit / (blocks * pieces), own)?;
            share.start += together - 1;
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

    /// Some tokens of a block of channels of one sequence; with the last token, its snapshots.
    fn run(
        &self,
        channels: Range<usize>,
        tokens: Range<usize>,
        sequence: usize,
        own: &mut [f32],
    ) -> Result<(), OpError> {
        let (count, past) = (channels.len(), self.width - 1);
        let (copies, own) = own.split_at_mut((past + TOKENS) * count);
        let (window, own) = own.split_at_mut(past * count);
        let (taps, own) = own.split_at_mut(self.width * count);
        let (columns, own) = own.split_at_mut(self.width * count);
        let offsets = self.op.bias.then(|| {
            self.call.inputs[3].load([0; 3], channels.start, &mut own[..count]);
            &own[..count]
        });
        load_rows(&self.call.inputs[2], 0, channels.clone(), columns, taps);
        match self.start(sequence)? {
            Some(row) => load_rows(&self.call.inputs[0], row, channels.clone(), columns, window),
            None => window.fill(0.0),
        }
        let inputs = Inputs { x: &self.call.inputs[1], window, channels: channels.clone(), sequence, past };
        if tokens.end == self.tokens {
            for back in 0..self.call.results.len() - 1 {
                let (rows, columns) = (&mut copies[..past * count], &mut columns[..past * count]);
                inputs.copy(self.tokens - back, rows);
                let result = &self.call.results[back + 1];
                // SAFETY: blocks are shared out among the workers, each to one.
                unsafe { store_rows(result, sequence, channels.clone(), columns, rows) }
            }
        }
        let packed = inputs.x.layout().rows_packed();
        for first in tokens.clone().step_by(TOKENS) {
            let end = tokens.end.min(first + TOKENS);
            if !packed {
                inputs.copy(first, &mut copies[..(past + end - first) * count]);
            }
            let copies = (!packed).then_some(&*copies);
            let row = |place: usize| match copies {
                Some(copies) => &copies[(place - first) * count..][..count],
                None => inputs.row(place),
            };
            for token in first..end {
                let rows: SmallVec<[&[f32]; WIDTH_USUAL]> = (token..token + self.width).map(row).collect();
                // SAFETY: blocks are shared out among the workers, each to one.
                let y =
                    |token| unsafe { self.call.results[0].f32_row([token, sequence, 0], channels.clone()) };
                // Copies end with these tokens.
                let following =
                    if token + 1 < if packed { tokens.end } else { end } { token + 1 } else { token };
                let ahead = (row(following + self.width - 1), y(following).as_mut_ptr());
                Sums { rows: &rows, taps, offsets, silu: self.op.silu, ahead, sums: y(token) }.form();
            }
        }
        Ok(())
    }
}

/// The window and then the new inputs of a block of channels, as rows that are counted by `place`.
struct Inputs<'a> {
    x: &'a In,
    window: &'a [f32],
    channels: Range<usize>,
    sequence: usize,
    past: usize,
}

impl Inputs<'_> {
    /// Where x has packed rows.
    fn row(&self, place: usize) -> &[f32] {
        let count = self.channels.len();
        match place.checked_sub(self.past) {
            None => &self.window[place * count..][..count],
            Some(token) => {
                let row = self.x.f32_row([token, self.sequence, 0]).expect("packed rows");
                &row[self.channels.clone()]
            }
        }
    }

    /// As many rows from `place` on as `rows` holds.
    fn copy(&self, place: usize, rows: &mut [f32]) {
        let count = self.channels.len();
        for (place, target) in (place..).zip(rows.chunks_exact_mut(count.max(1))) {
            match place.checked_sub(self.past) {
                None => target.copy_from_slice(&self.window[place * count..][..count]),
                Some(token) => self.x.load([token, self.sequence, 0], self.channels.start, target),
            }
        }
    }
}

/// The sums of one token.
struct Sums<'a> {
    /// A row over the channels for each tap, oldest first.
    rows: &'a [&'a [f32]],
    /// The taps as such rows.
    taps: &'a [f32],
    offsets: Option<&'a [f32]>,
    silu: bool,
    /// The newest row of the token that follows, and where its sums go: asked of memory meanwhile, little by little,
    /// since requests wait where there are many.
    ahead: (&'a [f32], *mut f32),
    sums: &'a mut [f32],
}

impl Sums<'_> {
    fn form(self) {
        if self.rows.len() == 4 && self.silu {
            return simd::arch().dispatch(self);
        }
        let (rows, taps, sums) = (self.rows, self.taps, self.sums);
        prefetch::to_read(self.ahead.0);
        simd::vectorize(
            #[inline(always)]
            || {
                for ((sum, input), tap) in sums.iter_mut().zip(rows[0]).zip(taps) {
                    *sum = input * tap;
                }
                for (inputs, taps) in rows.iter().zip(taps.chunks_exact(sums.len())).skip(1) {
                    for ((sum, input), tap) in sums.iter_mut().zip(*inputs).zip(taps) {
                        *sum += input * tap;
                    }
                }
            },
        );
        finish(sums, self.offsets, self.silu);
    }
}

/// Four taps and SiLU, the usual case: in one pass, as many vectors at once as registers hold.
impl WithSimd for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match (S::F32_LANES == LANES_MAX, self.offsets.is_some()) {
            (true, true) => four_taps::<S, true, 4>(simd, self),
            (true, false) => four_taps::<S, false, 4>(simd, self),
            (false, true) => four_taps::<S, true, 2>(simd, self),
            (false, false) => four_taps::<S, false, 2>(simd, self),
        }
    }
}

#[inline(always)]
fn four_taps<S: Simd, const BIAS: bool, const K: usize>(simd: S, sums: Sums<'_>) {
    let Sums { rows, taps, offsets, ahead, sums, .. } = sums;
    let count = sums.len();
    let mut inputs: [&[f32]; 4] = [&[]; 4];
    let mut weights: [&[f32]; 4] = [&[]; 4];
    for tap in 0..4 {
        inputs[tap] = &rows[tap][..count];
        weights[tap] = &taps[tap * count..][..count];
    }
    let offsets = if BIAS { &offsets.unwrap_or_default()[..count] } else { &[] };
    let mut first = 0;
    while first + K * S::F32_LANES <= count {
        let places = first..first + K * S::F32_LANES;
        for line in places.clone().step_by(LINE) {
            prefetch::ahead(ahead.0.as_ptr().wrapping_add(line), 0);
            prefetch::ahead_to_write(ahead.1.wrapping_add(line), 0);
        }
        let mut values = [simd.splat_f32s(0.0); K];
        for tap in 0..4 {
            let inputs = &S::as_simd_f32s(&inputs[tap][places.clone()]).0[..K];
            let weights = &S::as_simd_f32s(&weights[tap][places.clone()]).0[..K];
            for k in 0..K {
                let product = simd.mul_f32s(inputs[k], weights[k]);
                values[k] = if tap == 0 { product } else { simd.add_f32s(values[k], product) };
            }
        }
        if BIAS {
            let offsets = &S::as_simd_f32s(&offsets[places.clone()]).0[..K];
            for k in 0..K {
                values[k] = simd.add_f32s(values[k], offsets[k]);
            }
        }
        S::as_mut_simd_f32s(&mut sums[places]).0[..K].copy_from_slice(&vector::silu(simd, values));
        first += K * S::F32_LANES;
    }
    while first < count {
        let places = first..count.min(first + S::F32_LANES);
        let mut value = simd.splat_f32s(0.0);
        for tap in 0..4 {
            let input = simd.partial_load_f32s(&inputs[tap][places.clone()]);
            let product = simd.mul_f32s(input, simd.partial_load_f32s(&weights[tap][places.clone()]));
            value = if tap == 0 { product } else { simd.add_f32s(value, product) };
        }
        if BIAS {
            value = simd.add_f32s(value, simd.partial_load_f32s(&offsets[places.clone()]));
        }
        simd.partial_store_f32s(&mut sums[places], vector::silu(simd, [value])[0]);
        first += S::F32_LANES;
    }
}

/// Rows `channels` of plane `plane` of axis 3, turned into rows over the channels; `columns` is room as large.
fn load_rows(from: &In, plane: usize, channels: Range<usize>, columns: &mut [f32], rows: &mut [f32]) {
    let (height, columns) = (from.ne()[0], &mut columns[..rows.len()]);
    match from.f32_rows([channels.start, 0, plane], channels.len()) {
        Some(columns) => columns_to_rows(columns, rows, height),
        None => {
            for (channel, column) in channels.zip(columns.chunks_exact_mut(height.max(1))) {
                from.load([channel, 0, plane], 0, column);
            }
            columns_to_rows(columns, rows, height);
        }
    }
}

/// The reverse of [`load_rows`].
///
/// # Safety
/// No other worker touches these rows until the next barrier.
unsafe fn store_rows(to: &Out, plane: usize, channels: Range<usize>, columns: &mut [f32], rows: &[f32]) {
    let height = to.ne()[0];
    // SAFETY: by the function's contract.
    if let Some(columns) = unsafe { to.f32_rows([channels.start, 0, plane], channels.len()) } {
        return rows_to_columns(rows, columns, height);
    }
    rows_to_columns(rows, columns, height);
    for (channel, column) in channels.zip(columns.chunks_exact(height.max(1))) {
        // SAFETY: by the function's contract.
        unsafe { to.store([channel, 0, plane], 0, column) }
    }
}

/// Turns `height` numbers of each channel, one channel after another, into `height` rows over the channels.
fn columns_to_rows(columns: &[f32], rows: &mut [f32], height: usize) {
    simd::vectorize(
        #[inline(always)]
        || match height {
            // With a constant height the loops become shuffles of vectors.
            3 => turn_columns::<3>(columns, rows),
            4 => turn_columns::<4>(columns, rows),
            _ => {
                let count = rows.len() / height.max(1);
                for (place, row) in rows.chunks_exact_mut(count.max(1)).enumerate() {
                    let column = columns[place..].iter().step_by(height);
                    row.iter_mut().zip(column).for_each(|(to, from)| *to = *from);
                }
            }
        },
    );
}

#[inline(always)]
fn turn_columns<const HEIGHT: usize>(columns: &[f32], rows: &mut [f32]) {
    let columns = columns.as_chunks::<HEIGHT>().0;
    let mut rows = rows.chunks_exact_mut(columns.len().max(1));
    let rows: [&mut [f32]; HEIGHT] = std::array::from_fn(|_| rows.next().unwrap_or_default());
    for place in 0..HEIGHT {
        rows[place].iter_mut().zip(columns).for_each(|(to, column)| *to = column[place]);
    }
}

/// The reverse of [`columns_to_rows`].
fn rows_to_columns(rows: &[f32], columns: &mut [f32], height: usize) {
    simd::vectorize(
        #[inline(always)]
        || match rows.chunks_exact((rows.len() / height.max(1)).max(1)).collect::<SmallVec<[_; 3]>>()[..] {
            [a, b, c] => {
                for (((column, a), b), c) in columns.as_chunks_mut::<3>().0.iter_mut().zip(a).zip(b).zip(c) {
                    *column = [*a, *b, *c];
                }
            }
            ref rows => {
                for (place, row) in rows.iter().enumerate() {
                    let column = columns[place..].iter_mut().step_by(height);
                    column.zip(*row).for_each(|(to, from)| *to = *from);
                }
            }
        },
    );
}
