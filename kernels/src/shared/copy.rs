//! Copies of whole blocks (elements of plain types) from operands to results, bit for bit.

use super::call::{In, Out, Row};
use ssmgraph_ops::DType;
use std::ops::Range;

/// A place in a row: its indices on axes 1, 2 and 3, and a block in it.
pub type Spot = (Row, usize);

/// Rows copied together, and blocks of each at a time, when elements are spread: a tile that reads and
/// writes whole cache lines even in a transposition, and few enough of them whatever their distance.
const TILE: usize = 16;

/// Copies `count` blocks of one row.
///
/// # Safety
/// No other worker touches the blocks written until the next barrier, and nobody writes those read.
pub unsafe fn copy_blocks(from: &In, from_at: Spot, to: &Out, to_at: Spot, count: usize) {
    if count == 0 {
        return;
    }
    let (source, target) = ends(from, from_at, count, to, to_at, count);
    let (dtype, strides) = (from.layout().dtype, (from.layout().nb[0], to.layout().nb[0]));
    // SAFETY: `ends` found the blocks inside both spans; layouts keep them aligned; unshared by the contract.
    unsafe { spread(dtype, source, strides.0, target, strides.1, count) }
}

/// Writes one block `count` times.
///
/// # Safety
/// As [`copy_blocks`].
pub unsafe fn repeat_block(from: &In, from_at: Spot, to: &Out, to_at: Spot, count: usize) {
    if count == 0 {
        return;
    }
    let (source, target) = ends(from, from_at, 1, to, to_at, count);
    // SAFETY: as in `copy_blocks`; without a stride the same block is read again and again.
    unsafe { spread(from.layout().dtype, source, 0, target, to.layout().nb[0], count) }
}

/// Copies whole rows, given by their running numbers in `from`, to where `place` sends each row's first block.
///
/// # Safety
/// As [`copy_blocks`], for all the rows.
pub unsafe fn copy_rows(from: &In, rows: Range<usize>, to: &Out, place: impl Fn(Row) -> Spot) {
    let blocks = from.layout().row_blocks();
    if blocks == 0 {
        return;
    }
    if from.layout().rows_packed() && to.layout().rows_packed() {
        for number in rows {
            let row = from.layout().row_index(number);
            // SAFETY: by the function's contract.
            unsafe { copy_blocks(from, (row, 0), to, place(row), blocks) }
        }
        return;
    }
    let strides = (from.layout().nb[0], to.layout().nb[0]);
    for first_row in rows.clone().step_by(TILE) {
        let count = TILE.min(rows.end - first_row);
        let mut starts = [(std::ptr::null(), std::ptr::null_mut()); TILE];
        for (number, start) in (first_row..).zip(&mut starts[..count]) {
            let row = from.layout().row_index(number);
            *start = ends(from, (row, 0), blocks, to, place(row), blocks);
        }
        for first in (0..blocks).step_by(TILE) {
            for &(source, target) in &starts[..count] {
                let len = TILE.min(blocks - first);
                // SAFETY: `ends` found all blocks of the rows inside both spans; unshared by the contract.
                unsafe {
                    let (source, target) = (source.add(first * strides.0), target.add(first * strides.1));
                    spread(from.layout().dtype, source, strides.0, target, strides.1, len)
                }
            }
        }
    }
}

/// Where the first of `from_count` blocks is read and the first of `to_count` blocks is written.
///
/// Panics when the types differ or a block lies outside its row.
fn ends(
    from: &In,
    (from_row, from_first): Spot,
    from_count: usize,
    to: &Out,
    (to_row, to_first): Spot,
    to_count: usize,
) -> (*const u8, *mut u8) {
    assert_eq!(from.layout().dtype, to.layout().dtype, "a copy without conversion");
    from.block(from_first + from_count - 1, from_row);
    to.block(to_first + to_count - 1, to_row);
    (from.block(from_first, from_row), to.block(to_first, to_row))
}

/// # Safety
/// `count` blocks with these strides in bytes, aligned for the type, are readable and writable, and no other
/// worker touches those written until the next barrier.
#[inline(always)]
unsafe fn spread(
    dtype: DType,
    source: *const u8,
    from_stride: usize,
    target: *mut u8,
    to_stride: usize,
    count: usize,
) {
    let bytes = dtype.block_bytes();
    // SAFETY: by the function's contract.
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
#[inline(always)]
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
