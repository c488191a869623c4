//! Launches of `mul_mat_id`. Rows of b are rounded by `mul_mat`'s kernel.

use crate::Declined;
use crate::cuda::{CudaCall, CudaKernel, GRID_X_MAX, Image, Launch, Params, WARP, embedded};
use crate::kernel::expect_plain_or_q8_0;
use crate::mul_mat::cuda::{quantize, quantized_bytes, reads_fours};
use ssmgraph_ops::quant::Q8_0_BLOCK;
use ssmgraph_ops::{DType, Layout, MulMatId};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("mul_mat_id");

const WARPS: usize = 8;

impl CudaKernel for MulMatId {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        expect_plain_or_q8_0(inputs)?;
        let (a, b, ids) = (&inputs[0], &inputs[1], &inputs[2]);
        let blocks = a.ne[1].div_ceil(WARPS).checked_mul(ids.elements());
        let rounded = if self.quantize { b.elements() / Q8_0_BLOCK / WARPS } else { 0 };
        match blocks.is_some_and(|blocks| blocks <= GRID_X_MAX) && rounded < GRID_X_MAX {
            true => Ok(()),
            false => Err(Declined("more outputs than one launch reaches".into())),
        }
    }

    fn scratch_bytes(&self, inputs: &[Layout], results: &[Layout]) -> usize {
        if self.quantize && !results[0].is_empty() { quantized_bytes(&inputs[1]) } else { 0 }
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let [a, b, ids] = call.inputs else { unreachable!("the arity was checked") };
        let y = &call.results[0];
        if y.layout.is_empty() {
            return Vec::new();
        }
        let (quants, scales) = (call.scratch, call.scratch + b.layout.elements() as u64);
        let mut launches = Vec::new();
        if self.quantize {
            launches.extend(quantize(b, quants, scales));
        }
        let (pairs, experts) = (ids.layout.elements(), a.layout.ne[2]);
        let wide = reads_fours(a) && (self.quantize || reads_fours(b));
        let params = Params::new().tensor(a).tensor(b).tensor(ids).tensor(y).size(pairs).size(experts);
        let params = params.address(quants).address(scales).address(call.fault).i32(wide.into()).i32(0);
        let entry = match a.layout.dtype {
            DType::F16 => "mul_mat_id_f16",
            DType::BF16 => "mul_mat_id_bf16",
            DType::Q8_0 if self.quantize => "mul_mat_id_blocks",
            DType::Q8_0 => "mul_mat_id_q8_0",
            _ => "mul_mat_id_f32",
        };
        let blocks = a.layout.ne[1].div_ceil(WARPS) * pairs;
        let launch = Launch::line(&IMAGE, entry, blocks, WARPS * WARP, params);
        launches.push(launch.guarded("ids", experts));
        launches
    }
}
