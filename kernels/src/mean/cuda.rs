//! The row sums of `sum_rows`, divided before they are rounded.

use crate::Declined;
use crate::cuda::{CudaCall, CudaKernel, Launch};
use crate::sum_rows::cuda::{row_sums, row_sums_scratch, row_sums_supported};
use ssmgraph_ops::{Layout, Mean};

impl CudaKernel for Mean {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        row_sums_supported(&inputs[0])
    }

    fn scratch_bytes(&self, inputs: &[Layout], results: &[Layout]) -> usize {
        row_sums_scratch(&inputs[0], &results[0])
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        row_sums(call, call.inputs[0].layout.ne[0] as f64)
    }
}
