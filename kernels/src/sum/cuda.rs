//! Launches of `sum`.

use crate::Declined;
use crate::cuda::{
    CudaCall, CudaKernel, DeviceTensor, GRID_X_MAX, Image, Launch, Params, embedded, quad_form,
};
use ssmgraph_ops::{Layout, Sum};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("sum");

/// Elements that one block adds.
const PIECE: usize = 8192;
const THREADS: usize = 256;

impl CudaKernel for Sum {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        match inputs[0].elements().div_ceil(PIECE) <= GRID_X_MAX {
            true => Ok(()),
            false => Err(Declined("more elements than one launch reaches".into())),
        }
    }

    fn scratch_bytes(&self, inputs: &[Layout], _results: &[Layout]) -> usize {
        let pieces = inputs[0].elements().div_ceil(PIECE);
        if pieces > 1 { pieces * 8 } else { 0 }
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let (x, y) = (&call.inputs[0], &call.results[0]);
        let elements = x.layout.elements();
        let pieces = elements.div_ceil(PIECE).max(1);
        let params = Params::new()
            .tensor(x)
            .address(y.address)
            .address(call.scratch)
            .size(elements)
            .size(pieces)
            .size(PIECE)
            .i32(flat_form(x));
        let sum = Launch::line(&IMAGE, "sum_pieces", pieces, THREADS, params.clone());
        match pieces {
            1 => vec![sum],
            _ => vec![sum, Launch::line(&IMAGE, "sum_finish", 1, THREADS, params)],
        }
    }
}

/// How the tensor's elements, in index order, are read as one row.
fn flat_form(x: &DeviceTensor) -> i32 {
    match x.layout.is_contiguous().then(|| x.layout.reshape(&[x.layout.elements()])) {
        Some(Ok(layout)) => quad_form(&DeviceTensor { layout, ..*x }),
        _ => 0,
    }
}
