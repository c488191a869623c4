//! Launches of `gated_norm`: each group is a row to the kernel.

use crate::Declined;
use crate::cuda::{CudaCall, CudaKernel, DeviceTensor, Image, Launch, Params, embedded, quad_form};
use crate::rms_norm::cuda::{Entries, NormScale, norm_launch, norm_supported};
use ssmgraph_ops::Layout;
use ssmgraph_ops::gated_norm::{Gate, GatedNorm, Order};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("gated_norm");

const ENTRIES: Entries =
    Entries { heads: "gated_norm_heads", warps: "gated_norm_warps", blocks: "gated_norm_blocks" };

impl CudaKernel for GatedNorm {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        norm_supported(inputs[0].elements() / self.group_size, self.group_size)
    }

    fn scratch_bytes(&self, _inputs: &[Layout], _results: &[Layout]) -> usize {
        0
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let [x, z, w] = call.inputs else { unreachable!("the arity was checked") };
        let y = &call.results[0];
        if x.layout.is_empty() {
            return Vec::new();
        }
        let groups = x.layout.elements() / self.group_size;
        let form = |tensor: &DeviceTensor| {
            if self.group_size.is_multiple_of(4) { quad_form(tensor) } else { 0 }
        };
        let params = Params::new()
            .tensor(x)
            .tensor(z)
            .tensor(w)
            .tensor(y)
            .size(groups)
            .size(x.layout.ne[0] / self.group_size)
            .size(self.group_size);
        let params = NormScale::rms(self.group_size, self.eps)
            .append(params)
            .i32((self.order == Order::GateThenNorm).into())
            .i32((self.gate == Gate::Sigmoid).into())
            .i32((w.layout.ne[0] == self.group_size).into())
            .i32(form(x).min(form(z)))
            .i32(form(w))
            .i32(form(y));
        vec![norm_launch(&IMAGE, &ENTRIES, groups, self.group_size, params)]
    }
}
