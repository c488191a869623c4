//! Launches of `qk_norm`.

use crate::Declined;
use crate::cuda::{CudaCall, CudaKernel, Image, Launch, Params, embedded};
use crate::l2_norm::cuda::scale_of;
use crate::rms_norm::cuda::{Entries, norm_form, norm_launch, norm_supported};
use ssmgraph_ops::gated_delta_net::Grouping;
use ssmgraph_ops::{L2Norm, Layout, QkNorm};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("qk_norm");

const ENTRIES: Entries = Entries { heads: "qk_norm_heads", warps: "qk_norm_warps", blocks: "qk_norm_blocks" };

impl CudaKernel for QkNorm {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        let [size, _, tokens, sequences] = inputs[0].ne;
        let rows = tokens.checked_mul(sequences).and_then(|rows| rows.checked_mul(self.heads));
        norm_supported(rows.and_then(|rows| rows.checked_mul(2)).unwrap_or(usize::MAX), size)
    }

    fn scratch_bytes(&self, _inputs: &[Layout], _results: &[Layout]) -> usize {
        0
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let ([q, k], [q_result, k_result]) = (call.inputs, call.results) else {
            unreachable!("the arity was checked")
        };
        if q_result.layout.is_empty() {
            return Vec::new();
        }
        let (rows, length) = (q_result.layout.rows(), q.layout.ne[0]);
        let params = [q, k, q_result, k_result].into_iter().fold(Params::new(), Params::tensor).size(rows);
        let heads_per_key = match self.grouping {
            Grouping::Tiled => 0,
            Grouping::Interleaved => self.heads / q.layout.ne[1],
        };
        let scale = scale_of(L2Norm { eps: self.eps, form: self.form });
        let params = scale.append(params).i32(heads_per_key as i32);
        let params = params.i32(norm_form(q, length)).i32(norm_form(k, length));
        let params = params.i32(norm_form(q_result, length).min(norm_form(k_result, length)));
        vec![norm_launch(&IMAGE, &ENTRIES, 2 * rows, length, params)]
    }
}
