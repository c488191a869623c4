//! The row sums of `sum_rows`, divided before they are rounded.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::Call;
use crate::shared::pool::Worker;
use crate::sum_rows::cpu::{row_sums, row_sums_scratch, row_sums_work};
use ssmgraph_ops::{Layout, Mean, OpError};

impl CpuKernel for Mean {
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
        let count = call.inputs[0].ne()[0] as f64;
        row_sums(call, worker, |sum| sum / count);
        Ok(())
    }
}
