//! Copies of whole blocks (elements of plain types) from operands to results, bit for bit.

use super::call::{In, Out, Row};
use std::ops::Range;

/// A place in a row: its indices on axes 1, 2 and 3, and a block in it.
pub type Spot = (Row, usize);

/// Rows copied together when elements are spread: neighbouring rows then share cache lines.
const TILE_ROWS: usize = 16;

/// Blocks of each row copied at a time then; with the rows above, a few hundred cache lines.
const TILE_BLOCKS: usize = 256;

/// Copies `count` blocks of one row.
///
/// # Safety
/// No other worker touches the blocks written until the next barrier, and nobody writes those read.
pub unsafe fn copy_blocks(from: &In, from_at: Spot, to: &Out, to_at: Spot, count: usize) {
    if count == 0 {
        return;
    }
    // SAFETY: by the function's contract; both strides are those of the layouts.
    unsafe { spread(from, from_at, from.layout().nb[0], to, to_at, count) }
}

/// Writes one block `count` times.
///
/// # Safety
/// As [`copy_blocks`].
pub unsafe fn repeat_block(from: &In, from_at: Spot, to: &Out, to_at: Spot, count: usize) {
    if count == 0 {
        return;
    }
    // SAFETY: by the function's contract; without a stride the same block is read again and again.
    unsafe { spread(from, from_at, 0, to, to_at, count) }
}

/// Copies whole rows, given by their running numbers in `from`, to where `place` sends each row's first block.
///
/// # Safety
/// As [`copy_blocks`], for all the rows.
pub unsafe fn copy_rows(from: &In, rows: Range<usize>, to: &Out, place: impl Fn(Row) -> Spot) {
    let blocks = from.layout().row_blocks();
    let packed = from.layout().rows_packed() && to.layout().rows_packed();
    let (tile_rows, tile_blocks) = if packed { (1, blocks.max(1)) } else { (TILE_ROWS, TILE_BLOCKS) };
    for first_row in rows.clone().step_by(tile_rows) {
        for first in (0..blocks).step_by(tile_blocks) {
            for number in first_row..rows.end.min(first_row + tile_rows) {
                let row = from.layout().row_index(number);
                let (to_row, to_first) = place(row);
                let count = tile_blocks.min(blocks - first);
                // SAFETY: by the function's contract.
                unsafe { copy_blocks(from, (row, first), to, (to_row, to_first + first), count) }
            }
        }
    }
}

/// # Safety
/// As [`copy_blocks`]; `count` is not 0 and `from_stride` is 0 or that of `from`.
unsafe fn spread(from: &In, from_at: Spot, from_stride: usize, to: &Out, to_at: Spot, count: usize) {
    let dtype = from.layout().dtype;
    assert_eq!(dtype, to.layout().dtype, "a copy without conversion");
    let last = if from_stride == 0 { 0 } else { count - 1 };
    // Asking for the last block checks the whole range.
    from.block(from_at.1 + last, from_at.0);
    to.block(to_at.1 + count - 1, to_at.0);
    let (source, target) = (from.block(from_at.1, from_at.0), to.block(to_at.1, to_at.0));
    let (bytes, to_stride) = (dtype.block_bytes(), to.layout().nb[0]);
    // SAFETY: `count` blocks lie inside both spans with these strides, as checked above; layouts keep
    // elements aligned for their size; unshared by the function's contract.
    unsafe {
        match bytes {
            _ if count == 1 || (from_stride == bytes && to_stride == bytes) => {
                target.copy_from_nonoverlapping(source, count * bytes)
            }
            2 => strided::<u16>(source, from_stride, target, to_stride, count),
            4 => strided::<u32>(source, from_stride, target, to_stride, count),
            8 if dtype.block_len() == 1 => strided::<u64>(source, from_stride, target, to_stride, count),
            _ => {
                for block in 0..count {
                    target
                        .add(block * to_stride)
                        .copy_from_nonoverlapping(source.add(block * from_stride), bytes)
                }
            }
        }
    }
}

/// # Safety
/// `count` aligned elements with these strides in bytes are readable and writable.
unsafe fn strided<T: Copy>(
    source: *const u8,
    from_stride: usize,
    target: *mut u8,
    to_stride: usize,
    count: usize,
) {
    for i in 0..count {
        // SAFETY: by the function's contract.
        unsafe { target.add(i * to_stride).cast::<T>().write(source.add(i * from_stride).cast::<T>().read()) }
    }
}
