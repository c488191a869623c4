//! Launches of `scale`.

use crate::Declined;
use crate::cuda::walk::{ELEMENTWISE_SPAN, ELEMENTWISE_THREADS, in_quads, merged, reached};
use crate::cuda::{CudaCall, CudaKernel, Image, Launch, Params, embedded};
use ssmgraph_ops::Layout;
use ssmgraph_ops::scale::Scale;

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("scale");

impl CudaKernel for Scale {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        reached(inputs[0].elements(), ELEMENTWISE_SPAN)
    }

    fn scratch_bytes(&self, _inputs: &[Layout], _results: &[Layout]) -> usize {
        0
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let elements = call.results[0].layout.elements();
        if elements == 0 {
            return Vec::new();
        }
        let [x, y] = merged([call.inputs[0], call.results[0]]);
        let quads = in_quads(&[x, y]);
        let params = Params::new()
            .tensor(&x)
            .tensor(&y)
            .size(elements)
            .f32(self.scale)
            .f32(self.bias)
            .i32(quads.into());
        vec![Launch::line(&IMAGE, "scale", elements.div_ceil(ELEMENTWISE_SPAN), ELEMENTWISE_THREADS, params)]
    }
}
