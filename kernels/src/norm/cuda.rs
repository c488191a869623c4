//! Launches of `norm`.

use crate::Declined;
use crate::cuda::{CudaCall, CudaKernel, Image, Launch, Params, embedded};
use crate::rms_norm::cuda::{Entries, NormScale, norm_form, norm_launch, norm_supported};
use ssmgraph_ops::{Layout, Norm};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("norm");

const ENTRIES: Entries = Entries { heads: "norm_heads", warps: "norm_warps", blocks: "norm_blocks" };

impl CudaKernel for Norm {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        norm_supported(inputs[0].rows(), inputs[0].ne[0])
    }

    fn scratch_bytes(&self, _inputs: &[Layout], _results: &[Layout]) -> usize {
        0
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let (x, y) = (&call.inputs[0], &call.results[0]);
        if x.layout.is_empty() {
            return Vec::new();
        }
        let (rows, length) = (x.layout.rows(), x.layout.ne[0]);
        let params = NormScale::rms(length, self.eps).append(Params::new().tensor(x).tensor(y).size(rows));
        let params = params.i32(norm_form(x, length)).i32(norm_form(y, length));
        vec![norm_launch(&IMAGE, &ENTRIES, rows, length, params)]
    }
}
