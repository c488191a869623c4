//! Equal shapes are copied row by row; other shapes walk both tensors in index order, run by run, where a run
//! ends at the end of a row of either. Conversions go through small pieces.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, In, Out, Row, row_count};
use crate::shared::copy::{copy_blocks, copy_rows};
use crate::shared::pool::Worker;
use ssmgraph_ops::cpy::{Conversion, Cpy};
use ssmgraph_ops::quant::{BLOCK_LEN_MAX, Format};
use ssmgraph_ops::{DType, Layout, OpError};
use std::ops::Range;

/// Elements converted at a time: whole blocks of every format, and 1 KiB.
const PIECE: usize = BLOCK_LEN_MAX;

impl CpuKernel for Cpy {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], _results: &[Layout]) -> usize {
        inputs[0].elements()
    }

    fn scratch(&self, _inputs: &[Layout], _results: &[Layout]) -> Scratch {
        Scratch::default()
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, _own: &mut [f32]) -> Result<(), OpError> {
        let (x, y) = (&call.inputs[0], &call.results[0]);
        let conversion = Conversion::between(x.layout().dtype, y.layout().dtype);
        // SAFETY: the shares of the workers are disjoint, and so are the elements they write.
        unsafe {
            match conversion.expect("the shape rule checked the types") {
                Conversion::Bits if x.ne() == y.ne() => {
                    copy_rows(x, worker.share(row_count(x.layout())), y, |row| (row, 0))
                }
                Conversion::Bits => copy_runs(x, y, worker),
                Conversion::Int => convert(x, y, worker, convert_ints),
                Conversion::FloatToInt => convert(x, y, worker, truncate),
                Conversion::Quantize => convert(x, y, worker, quantize),
                Conversion::Float | Conversion::IntToFloat | Conversion::Expand => {
                    convert(x, y, worker, convert_floats)
                }
            }
        }
        Ok(())
    }
}

/// Splits running numbers of elements into runs inside one row: the row, the first element, how many.
fn runs(layout: &Layout, row_len: usize, range: Range<usize>) -> impl Iterator<Item = (Row, usize, usize)> {
    let (layout, mut next) = (*layout, range.start);
    std::iter::from_fn(move || {
        if next == range.end {
            return None;
        }
        let first = next % row_len;
        let count = (row_len - first).min(range.end - next);
        let row = layout.row_index(next / row_len);
        next += count;
        Some((row, first, count))
    })
}

/// Blocks in index order, whatever the two shapes.
///
/// # Safety
/// No other worker has the same share, nor touches the result before the next barrier.
unsafe fn copy_runs(x: &In, y: &Out, worker: &Worker<'_>) {
    let (from_len, to_len) = (x.layout().row_blocks(), y.layout().row_blocks());
    let total: usize = y.layout().blocks().iter().product();
    let share = worker.share(total);
    let mut next = share.start;
    for (row, first, count) in runs(y.layout(), to_len, share) {
        let mut done = 0;
        for (from_row, from_first, from_count) in runs(x.layout(), from_len, next..next + count) {
            // SAFETY: blocks of this worker's share.
            unsafe { copy_blocks(x, (from_row, from_first), y, (row, first + done), from_count) }
            done += from_count;
        }
        next += count;
    }
}

/// Calls `step` with ranges of running numbers, each up to [`PIECE`] elements, that make up this worker's
/// share. Ranges start at multiples of a block.
///
/// # Safety
/// As [`copy_runs`]; `step` writes the elements of its range alone.
unsafe fn convert(x: &In, y: &Out, worker: &Worker<'_>, step: unsafe fn(&In, &Out, Range<usize>)) {
    let total = y.layout().elements();
    for unit in worker.share(total.div_ceil(PIECE)) {
        let first = unit * PIECE;
        // SAFETY: by the function's contract.
        unsafe { step(x, y, first..total.min(first + PIECE)) }
    }
}

fn load(x: &In, range: Range<usize>, target: &mut [f32]) {
    let mut done = 0;
    for (row, first, count) in runs(x.layout(), x.ne()[0], range) {
        x.load(row, first, &mut target[done..done + count]);
        done += count;
    }
}

/// # Safety
/// No other worker touches these elements of `y` until the next barrier.
unsafe fn convert_floats(x: &In, y: &Out, range: Range<usize>) {
    let mut piece = [0.0; PIECE];
    load(x, range.clone(), &mut piece);
    let mut done = 0;
    for (row, first, count) in runs(y.layout(), y.ne()[0], range) {
        // SAFETY: by the function's contract.
        unsafe { y.store(row, first, &piece[done..done + count]) }
        done += count;
    }
}

/// # Safety
/// As [`convert_floats`].
unsafe fn truncate(x: &In, y: &Out, range: Range<usize>) {
    let mut piece = [0.0; PIECE];
    load(x, range.clone(), &mut piece);
    let narrow = y.layout().dtype == DType::I32;
    let mut values = piece.iter();
    for (row, first, count) in runs(y.layout(), y.ne()[0], range) {
        for (element, &value) in (first..first + count).zip(&mut values) {
            let value = if narrow { i64::from(value as i32) } else { value as i64 };
            // SAFETY: by the function's contract.
            unsafe { y.set_int(element, row, value) }
        }
    }
}

/// # Safety
/// As [`convert_floats`].
unsafe fn convert_ints(x: &In, y: &Out, range: Range<usize>) {
    let mut values = runs(x.layout(), x.ne()[0], range.clone())
        .flat_map(|(row, first, count)| (first..first + count).map(move |element| x.int(element, row)));
    for (row, first, count) in runs(y.layout(), y.ne()[0], range) {
        for (element, value) in (first..first + count).zip(&mut values) {
            // SAFETY: by the function's contract.
            unsafe { y.set_int(element, row, value) }
        }
    }
}

/// # Safety
/// As [`convert_floats`]; the range starts at a whole block.
unsafe fn quantize(x: &In, y: &Out, range: Range<usize>) {
    let mut piece = [0.0; PIECE];
    load(x, range.clone(), &mut piece);
    let format = Format::of(y.layout().dtype).expect("the shape rule checked the types");
    let blocks = range.start / format.block_len()..range.end / format.block_len();
    let mut values = piece.chunks_exact(format.block_len());
    for (row, first, count) in runs(y.layout(), y.layout().row_blocks(), blocks) {
        for (block, values) in (first..first + count).zip(&mut values) {
            // SAFETY: the blocks of the range, by the function's contract.
            format.encode(values, unsafe { y.row_bytes(row, block..block + 1) });
        }
    }
}
