//! Launches of `binary`.

use crate::Declined;
use crate::cuda::walk::{ELEMENTWISE_SPAN, ELEMENTWISE_THREADS, in_quads, merged, reached, stretched};
use crate::cuda::{CudaCall, CudaKernel, Image, Launch, Params, embedded};
use ssmgraph_ops::Layout;
use ssmgraph_ops::binary::{Binary, BinaryFunction};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("binary");

impl CudaKernel for Binary {
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
        let (a, b, y) = (call.inputs[0], call.inputs[1], call.results[0]);
        let (a, b, y, quads, repeats) = match stretched(&b, a.layout.ne) {
            Some(b) => {
                let [a, b, y] = merged([a, b, y]);
                (a, b, y, in_quads(&[a, b, y]), false)
            }
            None => (a, b, y, false, true),
        };
        let params = Params::new()
            .tensor(&a)
            .tensor(&b)
            .tensor(&y)
            .size(elements)
            .i32(code(self.function))
            .i32(quads.into())
            .i32(repeats.into());
        vec![Launch::line(&IMAGE, "binary", elements.div_ceil(ELEMENTWISE_SPAN), ELEMENTWISE_THREADS, params)]
    }
}

/// The function's number in the kernel.
fn code(function: BinaryFunction) -> i32 {
    match function {
        BinaryFunction::Add => 0,
        BinaryFunction::Sub => 1,
        BinaryFunction::Mul => 2,
        BinaryFunction::Div => 3,
    }
}
