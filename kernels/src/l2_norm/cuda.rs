//! Launches of `l2_norm`.

use crate::Declined;
use crate::cuda::{CudaCall, CudaKernel, Image, Launch, Params, embedded};
use crate::rms_norm::cuda::{Entries, NormScale, norm_form, norm_launch, norm_supported};
use ssmgraph_ops::Layout;
use ssmgraph_ops::l2_norm::{Form, L2Norm};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("l2_norm");

const ENTRIES: Entries = Entries { heads: "l2_norm_heads", warps: "l2_norm_warps", blocks: "l2_norm_blocks" };

/// From the sum of a row's squares to the factor of its elements.
pub(crate) fn scale_of(norm: L2Norm) -> NormScale {
    let eps = f64::from(norm.eps);
    match norm.form {
        Form::Max => NormScale { share: 1.0, eps: 0.0, length_min: eps },
        Form::Add => NormScale { share: 1.0, eps, length_min: 0.0 },
    }
}

impl CudaKernel for L2Norm {
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
        let params = scale_of(*self).append(Params::new().tensor(x).tensor(y).size(rows));
        let params = params.i32(norm_form(x, length)).i32(norm_form(y, length));
        vec![norm_launch(&IMAGE, &ENTRIES, rows, length, params)]
    }
}
