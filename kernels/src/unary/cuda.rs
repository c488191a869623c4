//! Launches of `unary`.

use crate::Declined;
use crate::cuda::{CudaCall, CudaKernel, GRID_X_MAX, Image, Launch, Params, embedded};
use ssmgraph_ops::Layout;
use ssmgraph_ops::unary::{Function, Unary};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("unary");

const THREADS: usize = 256;

impl CudaKernel for Unary {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        match inputs[0].elements().div_ceil(THREADS) <= GRID_X_MAX {
            true => Ok(()),
            false => Err(Declined("more elements than one launch reaches".into())),
        }
    }

    fn scratch_bytes(&self, _inputs: &[Layout], _results: &[Layout]) -> usize {
        0
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let (x, y) = (&call.inputs[0], &call.results[0]);
        let elements = x.layout.elements();
        if elements == 0 {
            return Vec::new();
        }
        let packed = x.layout.is_contiguous() && y.layout.is_contiguous();
        let params =
            Params::new().tensor(x).tensor(y).size(elements).i32(code(self.function)).i32(packed.into());
        vec![Launch::line(&IMAGE, "unary", elements.div_ceil(THREADS), THREADS, params)]
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
