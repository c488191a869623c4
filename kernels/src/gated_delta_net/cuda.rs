//! Launches of `gated_delta_net`: a form by the size of the state, and as many launches as the snapshots need.

use crate::Declined;
use crate::cuda::snapshots::{Part, append_snapshots, parts, state_after};
use crate::cuda::{
    CudaCall, CudaKernel, DeviceTensor, GRID_X_MAX, Image, Launch, Params, WARP, embedded, quad_form,
};
use ssmgraph_ops::Layout;
use ssmgraph_ops::gated_delta_net::{GatedDeltaNet, Grouping};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("gated_delta_net");

const WARPS: usize = 4;
const THREADS: usize = WARPS * WARP;

/// Which kernel, and how many rows a warp has.
struct Form {
    entry: &'static str,
    rows_per_warp: usize,
}

/// The form of states of this size: the smallest that holds a row in registers, with one gate or a vector of
/// them; a row's bits depend on the size alone.
fn form(size: usize, vector_gate: bool) -> Form {
    const FORMS: [(usize, usize, [&str; 2]); 7] = [
        (16, 8, ["gated_delta_net_16", "gated_delta_net_16_vector"]),
        (32, 4, ["gated_delta_net_32", "gated_delta_net_32_vector"]),
        (64, 4, ["gated_delta_net_64", "gated_delta_net_64_vector"]),
        (96, 4, ["gated_delta_net_96", "gated_delta_net_96_vector"]),
        (128, 4, ["gated_delta_net_128", "gated_delta_net_128_vector"]),
        (192, 2, ["gated_delta_net_192", "gated_delta_net_192_vector"]),
        (256, 2, ["gated_delta_net_256", "gated_delta_net_256_vector"]),
    ];
    match FORMS.into_iter().find(|&(largest, ..)| size <= largest) {
        Some((_, rows_per_warp, entries)) => Form { entry: entries[usize::from(vector_gate)], rows_per_warp },
        None => Form { entry: "gated_delta_net_rows", rows_per_warp: 1 },
    }
}

/// Blocks of a launch: one at least, which looks at the ids.
fn blocks(inputs: &[Layout]) -> Option<usize> {
    let [size, heads, _, sequences] = inputs[3].ne;
    let form = form(size, inputs[4].ne[0] != 1);
    let warps = size.div_ceil(form.rows_per_warp).checked_mul(heads)?.checked_mul(sequences)?;
    Some(warps.div_ceil(WARPS).max(1))
}

impl CudaKernel for GatedDeltaNet {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        match blocks(inputs).is_some_and(|blocks| blocks <= GRID_X_MAX) {
            true => Ok(()),
            false => Err(Declined("more rows of states than one launch reaches".into())),
        }
    }

    fn scratch_bytes(&self, _inputs: &[Layout], _results: &[Layout]) -> usize {
        0
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let [size, _, tokens, sequences] = call.inputs[3].layout.ne;
        if sequences == 0 {
            return Vec::new();
        }
        let layouts: Vec<Layout> = call.inputs.iter().map(|tensor| tensor.layout).collect();
        let blocks = blocks(&layouts).expect("`supports` has multiplied them");
        let entry = form(size, layouts[4].ne[0] != 1).entry;
        let pool_rows = layouts[0].ne[3];
        let parts = parts(tokens, call.results.len() - 1);
        let launch = |(index, part): (usize, &Part)| {
            let continued =
                index.checked_sub(1).map(|before| state_after(call, tokens, parts[before].last()));
            let params = parameters(self, call, part, continued);
            Launch::line(&IMAGE, entry, blocks, THREADS, params).guarded("ids", pool_rows)
        };
        parts.iter().enumerate().map(launch).collect()
    }
}

fn parameters(
    op: &GatedDeltaNet,
    call: &CudaCall<'_>,
    part: &Part,
    continued: Option<&DeviceTensor>,
) -> Params {
    let [state, q, k, v, g, beta, ids] = call.inputs else { unreachable!("the arity was checked") };
    let from = continued.unwrap_or(state);
    let [size, heads, tokens, _] = v.layout.ne;
    let params = [from, q, k, v, g, beta, ids].into_iter().fold(Params::new(), Params::tensor);
    let params = append_snapshots(params.address(call.results[0].address), call, tokens, part);
    let params = params.size(part.tokens.start).size(part.tokens.end).size(part.kept.start);
    let params = params.size(state.layout.ne[3]).address(call.fault);
    let heads_per_key = match op.grouping {
        Grouping::Tiled => 0,
        Grouping::Interleaved => heads.checked_div(k.layout.ne[1]).unwrap_or(1).max(1),
    };
    let params = params.f32(1.0 / (size as f32).sqrt()).i32(heads_per_key as i32);
    let params = params.i32(part.kept.len() as i32).i32(continued.is_some().into());
    [from, q, k, g].into_iter().fold(params, |params, tensor| params.i32(quad_form(tensor)))
}
