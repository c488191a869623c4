//! Products of q8_0 rows with rows of b rounded to the same blocks.
//!
//! A block of 32 products is formed in integers, exactly, as 16 sums of two; each of the 16 is scaled and
//! added to a lane of its own, and the lanes are summed once at the end.

use super::cpu::{Part, TILE_ROWS, blocks_in_row};
use crate::kernel::Scratch;
use crate::shared::call::{Call, In, Shared, rows_of};
use crate::shared::pool::Worker;
use crate::shared::simd;
use ssmgraph_ops::Layout;
use ssmgraph_ops::quant::{BlockQ8_0, Q8_0_BLOCK, Q8_0_BYTES, quantize_q8_0};
use std::ops::Range;

/// Lanes of an output's accumulator.
const LANES: usize = 16;

/// Columns that share one pass over a tile's weights.
const COLUMNS: usize = 4;

/// Bytes of b that shall stay in the second-level cache.
const PANEL_BYTES: usize = 1 << 20;

/// Scales of all rows of b, then their integers.
pub(super) fn scratch(b: &Layout) -> Scratch {
    let scales = blocks_in_row(b) * b.rows() * size_of::<f32>();
    Scratch { shared_bytes: scales + b.elements(), own_floats: 0 }
}

/// Bytes of the scales of one row of b and of its integers, by the row's running number.
fn places(b: &Layout, number: usize) -> (Range<usize>, Range<usize>) {
    let row_len = b.ne[0];
    let scale_bytes = blocks_in_row(b) * size_of::<f32>();
    let integers = scale_bytes * b.rows();
    (
        number * scale_bytes..(number + 1) * scale_bytes,
        integers + number * row_len..integers + (number + 1) * row_len,
    )
}

/// Rounds this worker's rows of b.
pub(super) fn prepare(b: &In, shared: &Shared, worker: &Worker<'_>) {
    let first = worker.share(b.layout().rows()).start;
    for (number, row) in (first..).zip(rows_of(b.layout(), worker)) {
        let (scales, integers) = places(b.layout(), number);
        // SAFETY: each row has places of its own, which do not overlap, and belongs to one worker.
        let (scales, integers) = unsafe { (shared.bytes_mut(scales), shared.bytes_mut(integers)) };
        let scales: &mut [f32] = bytemuck::cast_slice_mut(scales);
        let integers: &mut [i8] = bytemuck::cast_slice_mut(integers);
        let mut values = [0.0; Q8_0_BLOCK];
        for (index, scale) in scales.iter_mut().enumerate() {
            b.load(row, index * Q8_0_BLOCK, &mut values);
            let block = simd::vectorize(
                #[inline(always)]
                || quantize_q8_0(&values),
            );
            *scale = block.scale.to_f32();
            integers[index * Q8_0_BLOCK..][..Q8_0_BLOCK].copy_from_slice(&block.q);
        }
    }
}

/// A rounded row of b.
#[derive(Clone, Copy)]
struct Column<'a> {
    scales: &'a [f32],
    integers: &'a [[i8; Q8_0_BLOCK]],
}

/// Computes one part of the result.
pub(super) fn multiply(call: &Call, part: &Part) {
    let row_len = call.inputs[1].ne()[0];
    let panel = (PANEL_BYTES / row_len.max(1) / COLUMNS * COLUMNS).max(COLUMNS);
    for first_column in part.columns.clone().step_by(panel) {
        let columns = first_column..part.columns.end.min(first_column + panel);
        for first_row in part.rows.clone().step_by(TILE_ROWS) {
            let rows = first_row..part.rows.end.min(first_row + TILE_ROWS);
            multiply_rows(call, part, rows, columns.clone());
        }
    }
}

fn multiply_rows(call: &Call, part: &Part, rows: Range<usize>, columns: Range<usize>) {
    let [batch2, batch3] = part.batch;
    let whole = columns.len() / COLUMNS * COLUMNS;
    for m in rows {
        let row = call.inputs[0].row_bytes([m, part.weights[0], part.weights[1]]).expect("blocks are packed");
        let (weights, _) = row.as_chunks::<Q8_0_BYTES>();
        let store = |n: usize, value: f32| {
            // SAFETY: the rows and columns of the part belong to this worker alone.
            unsafe { call.results[0].f32_row([n, batch2, batch3], m..m + 1)[0] = value }
        };
        for at in (0..whole).step_by(COLUMNS) {
            let first = columns.start + at;
            let values = dots::<COLUMNS>(weights, std::array::from_fn(|n| column(call, part, first + n)));
            values.into_iter().enumerate().for_each(|(n, value)| store(first + n, value));
        }
        for n in columns.start + whole..columns.end {
            store(n, dots(weights, [column(call, part, n)])[0]);
        }
    }
}

fn column<'a>(call: &'a Call, part: &Part, n: usize) -> Column<'a> {
    let b = call.inputs[1].layout();
    let number = n + b.ne[1] * (part.batch[0] + b.ne[2] * part.batch[1]);
    let (scales, integers) = places(b, number);
    // SAFETY: all workers rounded their rows before the barrier, and nobody writes them since.
    let (scales, integers) = unsafe { (call.shared.bytes(scales), call.shared.bytes(integers)) };
    let integers: &[i8] = bytemuck::cast_slice(integers);
    Column { scales: bytemuck::cast_slice(scales), integers: integers.as_chunks().0 }
}

/// One row of weights with N columns. An output's sum has the same order for every N.
fn dots<const N: usize>(weights: &[[u8; Q8_0_BYTES]], columns: [Column<'_>; N]) -> [f32; N] {
    simd::vectorize(
        #[inline(always)]
        || {
            let mut sums = [[0.0; LANES]; N];
            for (index, weights) in weights.iter().enumerate() {
                let block = BlockQ8_0::from_bytes(weights);
                let scale = block.scale.to_f32();
                for (sums, column) in sums.iter_mut().zip(&columns) {
                    add_block(sums, &block.q, &column.integers[index], scale * column.scales[index]);
                }
            }
            sums.map(|lanes| total(&lanes))
        },
    )
}

#[inline(always)]
fn add_block(sums: &mut [f32; LANES], a: &[i8; Q8_0_BLOCK], b: &[i8; Q8_0_BLOCK], scale: f32) {
    // A product of two bytes fits 16 bits; the sum of two does not.
    let products: [i16; Q8_0_BLOCK] = std::array::from_fn(|i| i16::from(a[i]) * i16::from(b[i]));
    for (i, sum) in sums.iter_mut().enumerate() {
        let pair = i32::from(products[i]) + i32::from(products[i + LANES]);
        *sum += pair as f32 * scale;
    }
}

/// Halves are added until one lane is left.
#[inline(always)]
fn total(lanes: &[f32; LANES]) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|i| lanes[i] + lanes[i + 8]);
    let four: [f32; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}
