//! Sums in `f64`. Rows are shared out among the workers; rows too long for that are cut into pieces of a
//! fixed length, whose sums are added in order, so that the number of workers changes no bit.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, rows_of};
use crate::shared::pool::Worker;
use crate::shared::reduce::sum_row;
use ssmgraph_ops::{Layout, OpError, SumRows};

/// Elements of a row that one worker adds up: longer rows are cut.
pub(crate) const LONG: usize = 32_768;

impl CpuKernel for SumRows {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], results: &[Layout]) -> usize {
        row_sums_work(&inputs[0], &results[0])
    }

    fn scratch(&self, inputs: &[Layout], results: &[Layout]) -> Scratch {
        row_sums_scratch(&inputs[0], &results[0])
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, _own: &mut [f32]) -> Result<(), OpError> {
        row_sums(call, worker, |sum| sum);
        Ok(())
    }
}

/// Rough cost of [`row_sums`].
pub(crate) fn row_sums_work(x: &Layout, y: &Layout) -> usize {
    x.elements() / 8 + y.elements() * 16
}

/// Scratch of [`row_sums`]: one number per piece of a long row.
pub(crate) fn row_sums_scratch(x: &Layout, y: &Layout) -> Scratch {
    let pieces = x.ne[0].div_ceil(LONG);
    Scratch { shared_bytes: if pieces > 1 { y.elements() * pieces * 8 } else { 0 }, own_floats: 0 }
}

/// Writes `finish(Σ row)` for every row.
pub(crate) fn row_sums(call: &Call, worker: &Worker<'_>, finish: impl Fn(f64) -> f64) {
    let (x, y) = (&call.inputs[0], &call.results[0]);
    let length = x.ne()[0];
    let pieces = length.div_ceil(LONG);
    if pieces <= 1 {
        for row in rows_of(y.layout(), worker) {
            let sum = finish(sum_row(x, row, 0..length));
            // SAFETY: rows are shared out among the workers, each to one.
            unsafe { y.store(row, 0, &[sum as f32]) }
        }
        return;
    }
    let rows = y.layout().elements();
    for unit in worker.share(rows * pieces) {
        let (row, first) = (y.layout().row_index(unit / pieces), unit % pieces * LONG);
        let sum = sum_row(x, row, first..length.min(first + LONG));
        // SAFETY: each piece is one worker's.
        unsafe { call.shared.set_f64(unit, sum) }
    }
    worker.barrier();
    for row in worker.share(rows) {
        // SAFETY: all pieces were written before the barrier; each row is one worker's.
        unsafe {
            let sum = call.shared.f64s(row * pieces..(row + 1) * pieces).fold(0.0, |sum, piece| sum + piece);
            y.store(y.layout().row_index(row), 0, &[finish(sum) as f32]);
        }
    }
}
