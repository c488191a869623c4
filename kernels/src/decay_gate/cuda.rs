//! Launches of `decay_gate`.

use crate::Declined;
use crate::cuda::walk::{ELEMENTWISE_SPAN, ELEMENTWISE_THREADS, in_quads, merged, reached, stretched};
use crate::cuda::{CudaCall, CudaKernel, Image, Launch, Params, embedded};
use ssmgraph_ops::{DecayGate, Layout};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("decay_gate");

impl CudaKernel for DecayGate {
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
        let (alpha, y) = (call.inputs[0], call.results[0]);
        let ne = alpha.layout.ne;
        let wide = stretched(&call.inputs[1], ne).zip(stretched(&call.inputs[2], ne));
        let (tensors, quads, repeats) = match wide {
            Some((a, bias)) => {
                let tensors = merged([alpha, a, bias, y]);
                (tensors, in_quads(&tensors), false)
            }
            None => ([alpha, call.inputs[1], call.inputs[2], y], false, true),
        };
        let params = tensors.iter().fold(Params::new(), Params::tensor);
        let params = params.size(elements).i32(quads.into()).i32(repeats.into());
        let blocks = elements.div_ceil(ELEMENTWISE_SPAN);
        vec![Launch::line(&IMAGE, "decay_gate", blocks, ELEMENTWISE_THREADS, params)]
    }
}
