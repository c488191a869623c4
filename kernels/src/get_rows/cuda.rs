//! Launches of `get_rows`.

use crate::Declined;
use crate::cuda::walk::{ELEMENTWISE_SPAN, ELEMENTWISE_THREADS, in_quads, reached};
use crate::cuda::{CudaCall, CudaKernel, Image, Launch, Params, embedded};
use crate::kernel::expect_plain_or_q8_0;
use ssmgraph_ops::{DType, GetRows, Layout};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("get_rows");

impl CudaKernel for GetRows {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        expect_plain_or_q8_0(inputs)?;
        let (a, ids) = (&inputs[0], &inputs[1]);
        let elements = a.ne[0].checked_mul(ids.elements());
        reached(elements.unwrap_or(usize::MAX), ELEMENTWISE_SPAN)
    }

    fn scratch_bytes(&self, _inputs: &[Layout], _results: &[Layout]) -> usize {
        0
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let (a, ids, y) = (&call.inputs[0], &call.inputs[1], &call.results[0]);
        let elements = y.layout.elements();
        if elements == 0 {
            return Vec::new();
        }
        // A quad never spans two rows, because ids may send them apart.
        let whole = y.layout.ne[0].is_multiple_of(4) && in_quads(&[*y]);
        let quads = match a.layout.dtype {
            DType::Q8_0 => whole,
            DType::I32 | DType::I64 => false,
            _ => whole && in_quads(&[*a]),
        };
        let table_rows = a.layout.ne[1];
        let params = Params::new()
            .tensor(a)
            .tensor(ids)
            .tensor(y)
            .size(elements)
            .size(ids.layout.elements())
            .size(table_rows)
            .address(call.fault)
            .i32(quads.into())
            .i32(0);
        let blocks = elements.div_ceil(ELEMENTWISE_SPAN);
        let launch = Launch::line(&IMAGE, "get_rows", blocks, ELEMENTWISE_THREADS, params);
        vec![launch.guarded("ids", table_rows)]
    }
}
