//! Tiles of 64 channels × 64 tokens. Time is contiguous in sx and channels are in y, so each channel's sums
//! are formed along time, with vectors, and dropped into a tile that lies as y does; bias and activation run
//! over the tile's rows, which then go out whole. Every sum starts with tap 0 and adds the taps in order,
//! whatever the tile, so that neither tokens per call nor workers change a bit.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, In};
use crate::shared::pool::Worker;
use crate::shared::{simd, vector};
use pulp::{Simd, WithSimd};
use ssmgraph_ops::{Layout, OpError, SsmConv};
use std::ops::Range;

/// Channels of a tile.
const CHANNELS: usize = 64;
/// Tokens of a tile.
const TOKENS: usize = 64;

/// How the result is cut into tiles.
struct Tiles {
    channels: usize,
    tokens: usize,
    across: usize,
    along: usize,
}

impl Tiles {
    fn new(y: &Layout) -> Tiles {
        let [channels, tokens, ..] = y.ne;
        Tiles { channels, tokens, across: channels.div_ceil(CHANNELS), along: tokens.div_ceil(TOKENS) }
    }

    /// Channels, tokens and sequence of a tile; the tokens of one group of channels follow one another.
    fn place(&self, tile: usize) -> (Range<usize>, Range<usize>, usize) {
        let token = tile % self.along * TOKENS;
        let channel = tile / self.along % self.across * CHANNELS;
        let sequence = tile / (self.along * self.across);
        let channels = channel..self.channels.min(channel + CHANNELS);
        (channels, token..self.tokens.min(token + TOKENS), sequence)
    }
}

impl CpuKernel for SsmConv {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], results: &[Layout]) -> usize {
        results[0].elements().saturating_mul(4 + inputs[1].ne[0]) / 8
    }

    fn scratch(&self, inputs: &[Layout], results: &[Layout]) -> Scratch {
        let floats = || TOKENS * CHANNELS + CHANNELS + 2 * inputs[1].ne[0] + TOKENS;
        Scratch { shared_bytes: 0, own_floats: if results[0].is_empty() { 0 } else { floats() } }
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, own: &mut [f32]) -> Result<(), OpError> {
        let (sx, w, bias, y) = (&call.inputs[0], &call.inputs[1], call.inputs.get(2), &call.results[0]);
        if y.layout().is_empty() {
            return Ok(());
        }
        let width = w.ne()[0];
        let (tile, own) = own.split_at_mut(TOKENS * CHANNELS);
        let (offsets, own) = own.split_at_mut(CHANNELS);
        let (taps, window) = own.split_at_mut(width);
        let tiles = Tiles::new(y.layout());
        for unit in worker.share(tiles.across * tiles.along * y.ne()[2]) {
            let (channels, tokens, sequence) = tiles.place(unit);
            for channel in channels.clone() {
                w.load([channel, 0, 0], 0, taps);
                let inputs = tokens.start..tokens.end + width - 1;
                let inputs = part_of_row(sx, [channel, sequence, 0], inputs, window);
                slide(inputs, taps, &mut tile[channel - channels.start..], tokens.len());
            }
            if let Some(bias) = bias {
                bias.load([0; 3], channels.start, &mut offsets[..channels.len()]);
            }
            for (token, row) in tokens.zip(tile.chunks_exact_mut(CHANNELS)) {
                let row = &mut row[..channels.len()];
                finish(row, bias.map(|_| &offsets[..channels.len()]), self.silu);
                // SAFETY: tiles are shared out among the workers, each to one.
                unsafe { y.store([token, sequence, 0], channels.start, row) }
            }
        }
        Ok(())
    }
}

/// Elements of a row, where they lie if they are packed and otherwise copied into `buffer`.
fn part_of_row<'a>(x: &'a In, row: [usize; 3], elements: Range<usize>, buffer: &'a mut [f32]) -> &'a [f32] {
    match x.f32_row(row) {
        Some(values) => &values[elements],
        None => {
            let buffer = &mut buffer[..elements.len()];
            x.load(row, elements.start, buffer);
            buffer
        }
    }
}

/// Writes the sums of `tokens` window positions to every [`CHANNELS`]-th element of `tile`.
fn slide(inputs: &[f32], taps: &[f32], tile: &mut [f32], tokens: usize) {
    if tokens == 1 {
        // Too short for vectors; the same products in the same order.
        let later = inputs.iter().zip(taps).skip(1);
        tile[0] = later.fold(inputs[0] * taps[0], |sum, (input, tap)| sum + input * tap);
        return;
    }
    simd::vectorize(
        #[inline(always)]
        || {
            let mut line = [0.0; TOKENS];
            let line = &mut line[..tokens];
            match taps {
                &[a, b, c, d] => {
                    let [first, second, third, fourth] =
                        std::array::from_fn(|tap| &inputs[tap..tap + tokens]);
                    for (t, sum) in line.iter_mut().enumerate() {
                        *sum = first[t] * a + second[t] * b + third[t] * c + fourth[t] * d;
                    }
                }
                _ => {
                    line.iter_mut().zip(inputs).for_each(|(sum, input)| *sum = input * taps[0]);
                    for (first, tap) in taps.iter().enumerate().skip(1) {
                        line.iter_mut().zip(&inputs[first..]).for_each(|(sum, input)| *sum += input * tap);
                    }
                }
            }
            line.iter().zip(tile.iter_mut().step_by(CHANNELS)).for_each(|(sum, place)| *place = *sum);
        },
    );
}

/// Adds the bias and applies SiLU, where asked for.
pub(crate) fn finish(row: &mut [f32], bias: Option<&[f32]>, silu: bool) {
    match silu {
        true => simd::arch().dispatch(Silu { row, bias }),
        false => {
            if let Some(bias) = bias {
                row.iter_mut().zip(bias).for_each(|(value, offset)| *value += offset);
            }
        }
    }
}

struct Silu<'a> {
    row: &'a mut [f32],
    bias: Option<&'a [f32]>,
}

impl WithSimd for Silu<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Silu { row, bias } = self;
        let (values, rest) = S::as_mut_simd_f32s(row);
        let (offsets, rest_offsets) = S::as_simd_f32s(bias.unwrap_or_default());
        for (value, offset) in values.iter_mut().zip(offsets) {
            *value = simd.add_f32s(*value, *offset);
        }
        let (pairs, singles) = values.as_chunks_mut::<2>();
        for pair in pairs {
            *pair = vector::silu(simd, *pair);
        }
        for value in singles {
            [*value] = vector::silu(simd, [*value]);
        }
        if rest.is_empty() {
            return;
        }
        let mut last = simd.partial_load_f32s(rest);
        if bias.is_some() {
            last = simd.add_f32s(last, simd.partial_load_f32s(rest_offsets));
        }
        simd.partial_store_f32s(rest, vector::silu(simd, [last])[0]);
    }
}
