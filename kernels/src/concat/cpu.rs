//! Part by part, rows shared out among the workers.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, Row, row_count};
use crate::shared::copy::copy_rows;
use crate::shared::pool::Worker;
use ssmgraph_ops::{Concat, Layout, OpError};

impl CpuKernel for Concat {
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
        let mut before = 0;
        for part in &call.inputs {
            let place = |mut row: Row| {
                if self.axis == 0 {
                    return (row, before);
                }
                row[self.axis - 1] += before;
                (row, 0)
            };
            // SAFETY: rows are shared out among the workers, and each goes to a place of its own.
            unsafe { copy_rows(part, worker.share(row_count(part.layout())), &call.results[0], place) }
            before += part.layout().blocks()[self.axis];
        }
        Ok(())
    }
}
