//! Launches of `l2_norm`.

use crate::Declined;
use crate::cuda::{CudaCall, CudaKernel, Image, Launch, Params, embedded, quad_form};
use crate::rms_norm::cuda::{Entries, NormScale, norm_launch, norm_supported};
use ssmgraph_ops::Layout;
use ssmgraph_ops::l2_norm::{Form, L2Norm};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("l2_norm");

const ENTRIES: Entries = Entries { heads: "l2_norm_heads", warps: "l2_norm_warps", blocks: "l2_norm_blocks" };

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
        let eps = f64::from(self.eps);
        let scale = match self.form {
            Form::Max => NormScale { share: 1.0, eps: 0.0, length_min: eps },
            Form::Add => NormScale { share: 1.0, eps, length_min: 0.0 },
        };
        let params = scale.append(Params::new().tensor(x).tensor(y).size(rows));
        let params = params.i32(quad_form(x)).i32(quad_form(y));
        vec![norm_launch(&IMAGE, &ENTRIES, rows, length, params)]
    }
}
