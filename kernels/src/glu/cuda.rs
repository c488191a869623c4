//! Launches of `glu`.

use crate::Declined;
use crate::cuda::walk::{ELEMENTWISE_SPAN, ELEMENTWISE_THREADS, in_quads, merged, reached};
use crate::cuda::{CudaCall, CudaKernel, DeviceTensor, Image, Launch, Params, embedded};
use ssmgraph_ops::Layout;
use ssmgraph_ops::glu::{Glu, GluFunction};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("glu");

impl CudaKernel for Glu {
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
        let (activated, other) = match (call.inputs, self.swapped) {
            ([a, b], _) => (*a, *b),
            ([x, ..], false) => (half(x, 0), half(x, 1)),
            ([x, ..], true) => (half(x, 1), half(x, 0)),
            ([], _) => unreachable!("the arity was checked"),
        };
        let [a, b, y] = merged([activated, other, call.results[0]]);
        let quads = in_quads(&[a, b, y]);
        let params = Params::new()
            .tensor(&a)
            .tensor(&b)
            .tensor(&y)
            .size(elements)
            .i32(code(self.function))
            .i32(quads.into());
        vec![Launch::line(&IMAGE, "glu", elements.div_ceil(ELEMENTWISE_SPAN), ELEMENTWISE_THREADS, params)]
    }
}

/// One half of each row, 0 or 1.
fn half(x: &DeviceTensor, which: usize) -> DeviceTensor {
    let mut layout = x.layout;
    layout.ne[0] /= 2;
    DeviceTensor { address: x.address + (which * layout.ne[0] * layout.nb[0]) as u64, layout }
}

/// The function's number in the kernel.
fn code(function: GluFunction) -> i32 {
    match function {
        GluFunction::Reglu => 0,
        GluFunction::Geglu => 1,
        GluFunction::Swiglu => 2,
    }
}
