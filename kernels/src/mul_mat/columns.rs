//! Rows of b rounded to blocks, as the kernels of block formats read them: up to 16 columns side by side.
//!
//! For each block of 32 k a group has the 32 integers of each of its columns; then for each block the columns'
//! scales; then for each block the columns' sums of integers, in the form that the weights' format wants (see
//! [`Sums`]). The integers of a block of 16 columns are the first operand of an AMX product of bytes.

use super::formats::Blocks;
use super::panels::PANEL_ROWS;
use crate::shared::call::{In, Row, Shared};
use crate::shared::pool::Worker;
use crate::shared::simd;
use ssmgraph_ops::Layout;
use ssmgraph_ops::quant::{Q8_0_BLOCK, quantize_q8_0};
use std::ops::Range;

/// Most columns in a group.
pub(super) const GROUP_COLUMNS: usize = PANEL_ROWS;

/// A group of columns.
#[derive(Clone, Copy)]
pub(super) struct Group<'a> {
    /// How many columns lie side by side.
    pub width: usize,
    /// `width` times 32 for each block.
    pub integers: &'a [i8],
    /// `width` for each block.
    pub scales: &'a [f32],
    /// `width` for each block, or for each half of one.
    pub sums: &'a [i32],
}

/// What the kernels of a format want to know of the sum of a block's integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sums {
    /// The sum times this: what weights that are held as unsigned bytes have too much, to be taken off.
    Times(i32),
    /// The same for each half of the block.
    HalvesTimes(i32),
    /// The sum times the block's scale, as the bits of an `f32`: what a common minimum of weights is multiplied with.
    Scaled,
}

impl Sums {
    /// How many there are for a block.
    pub(super) fn count(self) -> usize {
        if let Sums::HalvesTimes(_) = self { 2 } else { 1 }
    }

    #[inline(always)]
    fn of(self, scale: f32, halves: [i32; 2]) -> [i32; 2] {
        match self {
            Sums::Times(factor) => [factor * (halves[0] + halves[1]), 0],
            Sums::HalvesTimes(factor) => halves.map(|sum| factor * sum),
            Sums::Scaled => [(scale * (halves[0] + halves[1]) as f32).to_bits() as i32, 0],
        }
    }
}

/// Where the parts of a group of so many columns of so many blocks lie from its start, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Places {
    blocks: usize,
    width: usize,
    sums: Sums,
}

impl Places {
    pub(super) fn new(blocks: usize, width: usize, sums: Sums) -> Places {
        Places { blocks, width, sums }
    }

    /// Bytes of a group.
    pub(super) fn bytes(self) -> usize {
        let column =
            self.blocks.saturating_mul(Q8_0_BLOCK + size_of::<f32>() + self.sums.count() * size_of::<i32>());
        column.saturating_mul(self.width)
    }

    fn integers(self, block: usize, column: usize) -> Range<usize> {
        let start = (block * self.width + column) * Q8_0_BLOCK;
        start..start + Q8_0_BLOCK
    }

    fn scale(self, block: usize, column: usize) -> Range<usize> {
        let start = self.blocks * self.width * Q8_0_BLOCK + (block * self.width + column) * size_of::<f32>();
        start..start + size_of::<f32>()
    }

    /// The number counts the sums of a block.
    fn sum(self, block: usize, number: usize, column: usize) -> Range<usize> {
        let before = self.blocks * self.width * (Q8_0_BLOCK + size_of::<f32>());
        let at = (block * self.sums.count() + number) * self.width + column;
        let start = before + at * size_of::<i32>();
        start..start + size_of::<i32>()
    }

    /// The group in these bytes, which are aligned to 4.
    pub(super) fn group(self, bytes: &[u8]) -> Group<'_> {
        let count = self.blocks * self.width;
        let (integers, rest) = bytes[..self.bytes()].split_at(count * Q8_0_BLOCK);
        let (scales, sums) = rest.split_at(count * size_of::<f32>());
        Group {
            width: self.width,
            integers: bytemuck::cast_slice(integers),
            scales: bytemuck::cast_slice(scales),
            sums: bytemuck::cast_slice(sums),
        }
    }

    /// Copies a column of a group of as many blocks to a place in the group in `target`.
    pub(super) fn copy(self, source: Group<'_>, from: usize, target: &mut [u8], to: usize) {
        for block in 0..self.blocks {
            let at = block * source.width + from;
            let integers = &source.integers[at * Q8_0_BLOCK..][..Q8_0_BLOCK];
            target[self.integers(block, to)].copy_from_slice(bytemuck::cast_slice(integers));
            target[self.scale(block, to)].copy_from_slice(&source.scales[at].to_ne_bytes());
            for number in 0..self.sums.count() {
                let sum = source.sums[(block * self.sums.count() + number) * source.width + from];
                target[self.sum(block, number, to)].copy_from_slice(&sum.to_ne_bytes());
            }
        }
    }
}

/// The rounded b in shared scratch: for each matrix its groups, one after another.
#[derive(Clone, Copy)]
pub(super) struct Rounded {
    blocks: usize,
    per_matrix: usize,
    b2: usize,
    matrices: usize,
    places: Places,
}

impl Rounded {
    /// For weights of this format.
    pub(super) fn of(b: &Layout, format: Blocks) -> Rounded {
        let [row_len, columns, b2, b3] = b.ne;
        let blocks = row_len / Q8_0_BLOCK;
        let places = Places::new(blocks, columns.min(GROUP_COLUMNS), format.sums());
        let matrices = if b.is_empty() { 0 } else { b2 * b3 };
        Rounded { blocks, per_matrix: columns.div_ceil(GROUP_COLUMNS), b2, matrices, places }
    }

    pub(super) fn bytes(self) -> usize {
        self.places.bytes().saturating_mul(self.per_matrix).saturating_mul(self.matrices)
    }

    fn start(self, [column, batch2, batch3]: Row) -> usize {
        (column / GROUP_COLUMNS + self.per_matrix * (batch2 + self.b2 * batch3)) * self.places.bytes()
    }

    /// The group that a row of b lies in.
    ///
    /// # Safety
    /// All workers have rounded their share, and nobody writes it until the next barrier.
    pub(super) unsafe fn group(self, shared: &Shared, row: Row) -> Group<'_> {
        let start = self.start(row);
        // SAFETY: by the function's contract.
        self.places.group(unsafe { shared.bytes(start..start + self.places.bytes()) })
    }

    /// Rounds this worker's share of b, block by block: the blocks of a single column are shared out too.
    pub(super) fn round(self, b: &In, shared: &Shared, worker: &Worker<'_>) {
        let columns = if b.layout().is_empty() { 0 } else { b.layout().rows() };
        let units = worker.share(columns * self.blocks);
        let mut next = units.start;
        while next < units.end {
            let (number, first) = (next / self.blocks, next % self.blocks);
            let last = self.blocks.min(first + units.end - next);
            self.round_row(b, b.layout().row_index(number), first..last, shared);
            next += last - first;
        }
    }

    fn round_row(self, b: &In, row: Row, blocks: Range<usize>, shared: &Shared) {
        let (start, column) = (self.start(row), row[0] % GROUP_COLUMNS);
        let at = |place: Range<usize>| start + place.start..start + place.end;
        let mut values = [0.0; Q8_0_BLOCK];
        for block in blocks {
            b.load(row, block * Q8_0_BLOCK, &mut values);
            let (scale, integers, halves) = round_block(&values);
            let sums = self.places.sums.of(scale, halves);
            // SAFETY: each block of a column has places of its own, and belongs to one worker.
            unsafe {
                let target = shared.bytes_mut(at(self.places.integers(block, column)));
                target.copy_from_slice(bytemuck::cast_slice(&integers));
                let target = shared.bytes_mut(at(self.places.scale(block, column)));
                target.copy_from_slice(&scale.to_ne_bytes());
                for (number, sum) in sums.iter().enumerate().take(self.places.sums.count()) {
                    let target = shared.bytes_mut(at(self.places.sum(block, number, column)));
                    target.copy_from_slice(&sum.to_ne_bytes());
                }
            }
        }
    }
}

/// The scale of 32 numbers, the integers, and the sums of their halves.
fn round_block(values: &[f32; Q8_0_BLOCK]) -> (f32, [i8; Q8_0_BLOCK], [i32; 2]) {
    simd::vectorize(
        #[inline(always)]
        || {
            let mut block = quantize_q8_0(values);
            let mut sums = [0; 2];
            for (half, sum) in block.q.as_chunks_mut::<16>().0.iter_mut().zip(&mut sums) {
                for q in half {
                    // −128 comes from numbers that are not finite alone, beside a scale that is not either. Kernels
                    // count on sums of two products that fit 16 bits.
                    *q = (*q).max(-127);
                    *sum += i32::from(*q);
                }
            }
            (block.scale.to_f32(), block.q, sums)
        },
    )
}
