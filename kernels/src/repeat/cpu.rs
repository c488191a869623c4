//! Row by row of the result; rows of one block are spread, longer ones copied one after another.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, repeat_row, rows_of};
use crate::shared::copy::{copy_blocks, repeat_block};
use crate::shared::pool::Worker;
use ssmgraph_ops::{Layout, OpError, Repeat};

impl CpuKernel for Repeat {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, _inputs: &[Layout], results: &[Layout]) -> usize {
        results[0].elements() / 2
    }

    fn scratch(&self, _inputs: &[Layout], _results: &[Layout]) -> Scratch {
        Scratch::default()
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, _own: &mut [f32]) -> Result<(), OpError> {
        let (x, y) = (&call.inputs[0], &call.results[0]);
        let (count, total) = (x.layout().row_blocks(), y.layout().row_blocks());
        if y.layout().is_empty() {
            return Ok(());
        }
        for row in rows_of(y.layout(), worker) {
            let from = repeat_row(row, x.ne());
            // SAFETY: rows are shared out among the workers, each to one.
            unsafe {
                if count == 1 {
                    repeat_block(x, (from, 0), y, (row, 0), total);
                    continue;
                }
                for first in (0..total).step_by(count) {
                    copy_blocks(x, (from, 0), y, (row, first), count);
                }
            }
        }
        Ok(())
    }
}
