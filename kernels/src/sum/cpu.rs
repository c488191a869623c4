//! A sum in `f64` over units of a fixed size: pieces of long rows, or blocks of short rows. Units are shared
//! out among the workers and their sums are added in order, so that the number of workers changes no bit.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, In};
use crate::shared::pool::Worker;
use crate::shared::reduce::sum_row;
use crate::sum_rows::cpu::LONG;
use ssmgraph_ops::{Layout, OpError, Sum};

/// How the elements are cut into units.
struct Units {
    /// Pieces per row; 1 for short rows.
    pieces: usize,
    /// Rows per unit; 1 for long rows.
    rows: usize,
    /// Number of units.
    count: usize,
}

impl Units {
    fn new(x: &Layout) -> Units {
        if x.is_empty() {
            return Units { pieces: 1, rows: 1, count: 0 };
        }
        let length = if x.is_contiguous() { x.elements() } else { x.ne[0] };
        let all_rows = x.elements() / length;
        let pieces = length.div_ceil(LONG);
        let rows = (LONG / length).max(1);
        Units { pieces, rows, count: if pieces > 1 { all_rows * pieces } else { all_rows.div_ceil(rows) } }
    }

    fn sum(&self, x: &In, unit: usize) -> f64 {
        let length = x.ne()[0];
        if self.pieces > 1 {
            let first = unit % self.pieces * LONG;
            let row = x.layout().row_index(unit / self.pieces);
            return sum_row(x, row, first..length.min(first + LONG));
        }
        let rows = unit * self.rows..x.layout().rows().min((unit + 1) * self.rows);
        rows.fold(0.0, |sum, row| sum + sum_row(x, x.layout().row_index(row), 0..length))
    }
}

impl CpuKernel for Sum {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], _results: &[Layout]) -> usize {
        let rows = if inputs[0].is_contiguous() { 1 } else { inputs[0].rows() };
        inputs[0].elements() / 8 + rows * 16
    }

    fn scratch(&self, inputs: &[Layout], _results: &[Layout]) -> Scratch {
        Scratch { shared_bytes: Units::new(&inputs[0]).count * 8, own_floats: 0 }
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, _own: &mut [f32]) -> Result<(), OpError> {
        let units = Units::new(call.inputs[0].layout());
        let x = call.inputs[0].flat().unwrap_or(call.inputs[0]);
        for unit in worker.share(units.count) {
            // SAFETY: each unit is one worker's.
            unsafe { call.shared.set_f64(unit, units.sum(&x, unit)) }
        }
        worker.barrier();
        if worker.index == 0 {
            // SAFETY: all units were written before the barrier; only this worker writes the result.
            unsafe {
                let sum = call.shared.f64s(0..units.count).fold(0.0, |sum, unit| sum + unit);
                call.results[0].store([0; 3], 0, &[sum as f32]);
            }
        }
        Ok(())
    }
}
