//! Launches of `soft_max`.

use crate::Declined;
use crate::cuda::walk::{reached, stretched};
use crate::cuda::{CudaCall, CudaKernel, Image, Launch, Params, WARP, embedded};
use ssmgraph_ops::{Layout, SoftMax};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("soft_max");

const THREADS: usize = 256;
const LONG_THREADS: usize = 512;
/// The longest row with 4 values in each lane of a warp.
const SHORT_MAX: usize = 4 * WARP;
/// The longest row with 32.
const MEDIUM_MAX: usize = 32 * WARP;

impl CudaKernel for SoftMax {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        reached(inputs[0].rows(), if inputs[0].ne[0] <= MEDIUM_MAX { THREADS / WARP } else { 1 })
    }

    fn scratch_bytes(&self, _inputs: &[Layout], _results: &[Layout]) -> usize {
        0
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let (x, y) = (&call.inputs[0], &call.results[0]);
        if y.layout.is_empty() {
            return Vec::new();
        }
        let mask = call.inputs.get(1);
        let wide = mask.and_then(|mask| stretched(mask, x.layout.ne));
        let repeats = mask.is_some() && wide.is_none();
        let rows = x.layout.rows();
        let params = Params::new()
            .tensor(x)
            .optional(wide.as_ref().or(mask))
            .tensor(y)
            .size(rows)
            .f32(self.scale)
            .i32(repeats.into());
        let warps = rows.div_ceil(THREADS / WARP);
        vec![match x.layout.ne[0] {
            length if length <= SHORT_MAX => Launch::line(&IMAGE, "soft_max_short", warps, THREADS, params),
            length if length <= MEDIUM_MAX => Launch::line(&IMAGE, "soft_max_medium", warps, THREADS, params),
            _ => Launch::line(&IMAGE, "soft_max_long", rows, LONG_THREADS, params),
        }]
    }
}
