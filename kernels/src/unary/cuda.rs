//! Launches of `unary`.

use crate::Declined;
use crate::cuda::walk::{ELEMENTWISE_SPAN, ELEMENTWISE_THREADS, in_quads, merged, reached};
use crate::cuda::{CudaCall, CudaKernel, Image, Launch, Params, embedded};
use ssmgraph_ops::Layout;
use ssmgraph_ops::unary::{Function, Unary};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("unary");

impl CudaKernel for Unary {
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
        let params =
            Params::new().tensor(&x).tensor(&y).size(elements).i32(code(self.function)).i32(quads.into());
        vec![Launch::line(&IMAGE, "unary", elements.div_ceil(ELEMENTWISE_SPAN), ELEMENTWISE_THREADS, params)]
    }
}

/// The function's number in the kernel.
fn code(function: Function) -> i32 {
    match function {
        Function::Silu => 0,
        Function::Sigmoid => 1,
        Function::Softplus => 2,
        Function::Exp => 3,
        Function::Neg => 4,
        Function::Relu => 5,
        Function::Tanh => 6,
        Function::Gelu => 7,
    }
}
