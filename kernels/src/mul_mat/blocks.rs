//! Products of q8_0 rows with rows of b rounded to the same blocks.
//!
//! A block of 32 products is formed in integers, exactly, as several partial sums; each partial sum is scaled
//! and added to a lane of its own, and the lanes are summed once at the end. How many partial sums there are
//! depends on the instruction set alone, never on the tile.

use super::cpu::{Part, TILE_ROWS, blocks_in_row};
use crate::kernel::Scratch;
use crate::shared::call::{Call, In, Shared, row_count, rows_of};
use crate::shared::pool::Worker;
use crate::shared::simd;
use half::f16;
use ssmgraph_ops::Layout;
use ssmgraph_ops::quant::{Q8_0_BLOCK, Q8_0_BYTES, quantize_q8_0};
use std::ops::Range;

/// Lanes of an output's accumulator in portable code.
const LANES: usize = 16;

/// Columns in a tile.
const TILE_COLUMNS: usize = 4;

/// Bytes of b that shall stay in the second-level cache.
const PANEL_BYTES: usize = 1 << 20;

/// A stored block of weights.
pub(super) type Block = [u8; Q8_0_BYTES];

/// A rounded row of b.
#[derive(Clone, Copy, Default)]
pub(super) struct Column<'a> {
    /// One scale per block.
    pub scales: &'a [f32],
    /// As many blocks of integers.
    pub integers: &'a [[i8; Q8_0_BLOCK]],
}

/// Scales of all rows of b, then their integers.
pub(crate) fn scratch(b: &Layout) -> Scratch {
    let scales = blocks_in_row(b).saturating_mul(row_count(b)).saturating_mul(size_of::<f32>());
    Scratch { shared_bytes: scales.saturating_add(b.elements()), own_floats: 0 }
}

/// Bytes of the scales of one row of b and of its integers, by the row's running number.
fn places(b: &Layout, number: usize) -> (Range<usize>, Range<usize>) {
    let row_len = b.ne[0];
    let scale_bytes = blocks_in_row(b) * size_of::<f32>();
    let integers = scale_bytes * row_count(b);
    (
        number * scale_bytes..(number + 1) * scale_bytes,
        integers + number * row_len..integers + (number + 1) * row_len,
    )
}

/// Rounds this worker's rows of b.
pub(crate) fn prepare(b: &In, shared: &Shared, worker: &Worker<'_>) {
    let first = worker.share(row_count(b.layout())).start;
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

/// Computes one part of the result.
pub(crate) fn multiply(call: &Call, part: &Part<'_>) {
    let row_len = call.inputs[1].ne()[0];
    let panel = (PANEL_BYTES / row_len.max(1) / TILE_COLUMNS * TILE_COLUMNS).max(TILE_COLUMNS);
    for first_column in part.columns.clone().step_by(panel) {
        let columns = first_column..part.columns.end.min(first_column + panel);
        for first_row in part.rows.clone().step_by(TILE_ROWS) {
            if first_row + TILE_ROWS <= part.rows.end {
                multiply_rows::<TILE_ROWS>(call, part, first_row, columns.clone());
            } else {
                (first_row..part.rows.end)
                    .for_each(|row| multiply_rows::<1>(call, part, row, columns.clone()));
            }
        }
    }
}

/// M rows of a with the columns of a panel.
fn multiply_rows<const M: usize>(call: &Call, part: &Part<'_>, first_row: usize, columns: Range<usize>) {
    let weights: [&[Block]; M] = std::array::from_fn(|m| {
        let row = [first_row + m, part.weights[0], part.weights[1]];
        call.inputs[0].row_bytes(row).expect("blocks are packed").as_chunks().0
    });
    let store = |n: usize, values: &[f32; M]| {
        // SAFETY: the rows and columns of the part belong to this worker alone.
        let target = unsafe { call.results[0].f32_row(part.result_row(n), first_row..first_row + M) };
        target.copy_from_slice(values);
    };
    let whole = columns.start + columns.len() / TILE_COLUMNS * TILE_COLUMNS;
    for first in (columns.start..whole).step_by(TILE_COLUMNS) {
        let tile = std::array::from_fn(|n| column(call, part, first + n));
        let values = dots::<M, TILE_COLUMNS>(weights, tile);
        values.iter().enumerate().for_each(|(n, values)| store(first + n, values));
    }
    for n in whole..columns.end {
        store(n, &dots::<M, 1>(weights, [column(call, part, n)])[0]);
    }
}

fn column<'a>(call: &'a Call, part: &Part<'_>, n: usize) -> Column<'a> {
    let b = call.inputs[1].layout();
    let [first, batch2, batch3] = part.row_of_b(b, n);
    let number = first + b.ne[1] * (batch2 + b.ne[2] * batch3);
    let (scales, integers) = places(b, number);
    // SAFETY: all workers rounded their rows before the barrier, and nobody writes them since.
    let (scales, integers) = unsafe { (call.shared.bytes(scales), call.shared.bytes(integers)) };
    let integers: &[i8] = bytemuck::cast_slice(integers);
    Column { scales: bytemuck::cast_slice(scales), integers: integers.as_chunks().0 }
}

/// M rows of weights with N columns, column by column. All have equally many blocks.
fn dots<const M: usize, const N: usize>(weights: [&[Block]; M], columns: [Column<'_>; N]) -> [[f32; M]; N] {
    #[cfg(target_arch = "x86_64")]
    if super::vnni::available() {
        // SAFETY: the processor has the instructions.
        return unsafe { super::vnni::dots(weights, columns) };
    }
    let mut results = [[0.0; M]; N];
    for (m, row) in weights.iter().enumerate() {
        let sums = row_dots(row, &columns);
        for (result, sum) in results.iter_mut().zip(sums) {
            result[m] = sum;
        }
    }
    results
}

fn row_dots<const N: usize>(weights: &[Block], columns: &[Column<'_>; N]) -> [f32; N] {
    simd::vectorize(
        #[inline(always)]
        || {
            let mut sums = [[0.0; LANES]; N];
            for (index, block) in weights.iter().enumerate() {
                let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
                let mut a = [0i16; Q8_0_BLOCK];
                for (a, &byte) in a.iter_mut().zip(&block[2..]) {
                    *a = i16::from(byte as i8);
                }
                for (sums, column) in sums.iter_mut().zip(columns) {
                    add_block(sums, &a, &column.integers[index], scale * column.scales[index]);
                }
            }
            let mut totals = [0.0; N];
            for (result, lanes) in totals.iter_mut().zip(&sums) {
                *result = total(lanes);
            }
            totals
        },
    )
}

#[inline(always)]
fn add_block(sums: &mut [f32; LANES], a: &[i16; Q8_0_BLOCK], b: &[i8; Q8_0_BLOCK], scale: f32) {
    // A product of two bytes fits 16 bits; the sum of two does not.
    let mut products = [0i16; Q8_0_BLOCK];
    for i in 0..Q8_0_BLOCK {
        products[i] = a[i].wrapping_mul(i16::from(b[i]));
    }
    for i in 0..LANES {
        let pair = i32::from(products[i]) + i32::from(products[i + LANES]);
        sums[i] += pair as f32 * scale;
    }
}

/// Halves are added until one lane is left.
#[inline(always)]
fn total(lanes: &[f32; LANES]) -> f32 {
    let mut sums = *lanes;
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
    }
    sums[0]
}
