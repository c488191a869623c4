//! Launches of `gated_delta_net`: a form by the size of the state, and as many launches as the snapshots need.

use crate::cuda::snapshots::{Part, append_snapshots, parts, state_after};
use crate::cuda::{
    CudaCall, CudaKernel, DeviceTensor, GRID_X_MAX, Image, Launch, Params, WARP, embedded, quad_form,
};
use crate::{Declined, Numerics, Variant};
use ssmgraph_ops::Layout;
use ssmgraph_ops::gated_delta_net::{GatedDeltaNet, Grouping};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("gated_delta_net");

const VARIANTS: [Variant; 4] = [
    Variant {
        name: "warp_tree",
        numerics: Numerics::Exact,
        about: "rows in the registers of a few lanes of a warp, sums by shuffles",
    },
    Variant {
        name: "shared_tree",
        numerics: Numerics::Exact,
        about: "a block a row, sums over shared memory with a barrier per round; rows of up to 256",
    },
    Variant {
        name: "unrolled_tree",
        numerics: Numerics::Exact,
        about: "the bits of shared_tree, its last six rounds within a warp; rows of up to 256",
    },
    Variant {
        name: "one_pass",
        numerics: Numerics::Fast,
        about: "as warp_tree with y = scale·(Σ decayed·q + δ·Σ k·q), two sums in one exchange; rows of up to 256",
    },
];
/// Places among [`VARIANTS`].
const SHARED_TREE: usize = 1;
const UNROLLED_TREE: usize = 2;
const ONE_PASS: usize = 3;

const WARPS: usize = 4;

/// Which kernel, and how rows are dealt out.
struct Form {
    entry: &'static str,
    threads: usize,
    /// Rows of one head that are counted together.
    rows_per_unit: usize,
    units_per_block: usize,
}

impl Form {
    /// Warps that have some rows of a head each.
    fn of_warps(entry: &'static str, rows_per_warp: usize) -> Form {
        Form { entry, threads: WARPS * WARP, rows_per_unit: rows_per_warp, units_per_block: WARPS }
    }
}

/// The form of states of this size: the smallest that holds a row, with one gate or a vector of them; a row's bits
/// depend on the size alone. Only the first variant has one for every size.
fn form(variant: usize, size: usize, vector_gate: bool) -> Option<Form> {
    const FORMS: [(usize, usize, [&str; 2]); 7] = [
        (16, 8, ["gated_delta_net_16", "gated_delta_net_16_vector"]),
        (32, 4, ["gated_delta_net_32", "gated_delta_net_32_vector"]),
        (64, 4, ["gated_delta_net_64", "gated_delta_net_64_vector"]),
        (96, 4, ["gated_delta_net_96", "gated_delta_net_96_vector"]),
        (128, 4, ["gated_delta_net_128", "gated_delta_net_128_vector"]),
        (192, 2, ["gated_delta_net_192", "gated_delta_net_192_vector"]),
        (256, 2, ["gated_delta_net_256", "gated_delta_net_256_vector"]),
    ];
    const ONE_PASS_FORMS: [(usize, usize, [&str; 2]); 4] = [
        (16, 8, ["gated_delta_net_16_one_pass", "gated_delta_net_16_vector_one_pass"]),
        (64, 4, ["gated_delta_net_64_one_pass", "gated_delta_net_64_vector_one_pass"]),
        (128, 4, ["gated_delta_net_128_one_pass", "gated_delta_net_128_vector_one_pass"]),
        (256, 2, ["gated_delta_net_256_one_pass", "gated_delta_net_256_vector_one_pass"]),
    ];
    const TREES: [(usize, [&str; 2]); 3] = [
        (64, ["gated_delta_net_64_shared_tree", "gated_delta_net_64_unrolled_tree"]),
        (128, ["gated_delta_net_128_shared_tree", "gated_delta_net_128_unrolled_tree"]),
        (256, ["gated_delta_net_256_shared_tree", "gated_delta_net_256_unrolled_tree"]),
    ];
    if variant == SHARED_TREE || variant == UNROLLED_TREE {
        let (threads, entries) = TREES.into_iter().find(|&(largest, _)| size <= largest)?;
        let entry = entries[usize::from(variant == UNROLLED_TREE)];
        return Some(Form { entry, threads, rows_per_unit: 1, units_per_block: 1 });
    }
    let forms: &[_] = if variant == ONE_PASS { &ONE_PASS_FORMS } else { &FORMS };
    match forms.iter().find(|&&(largest, ..)| size <= largest) {
        Some(&(_, rows, entries)) => Some(Form::of_warps(entries[usize::from(vector_gate)], rows)),
        None if variant == ONE_PASS => None,
        None => Some(Form::of_warps("gated_delta_net_rows", 1)),
    }
}

/// Blocks of a launch: one at least, which looks at the ids.
///
/// Errors: rows that are too long for the variant, more of them than a launch reaches.
fn blocks(variant: usize, inputs: &[Layout]) -> Result<usize, Declined> {
    let [size, heads, _, sequences] = inputs[3].ne;
    let form = form(variant, size, inputs[4].ne[0] != 1).ok_or_else(|| {
        let name = VARIANTS[variant].name;
        Declined(format!("{name} holds rows of up to 256 elements, the state has ne[0] = {size}"))
    })?;
    let per_head = size.div_ceil(form.rows_per_unit);
    let units = per_head.checked_mul(heads).and_then(|units| units.checked_mul(sequences));
    units
        .map(|units| units.div_ceil(form.units_per_block).max(1))
        .filter(|&blocks| blocks <= GRID_X_MAX)
        .ok_or_else(|| Declined("more rows of states than one launch reaches".into()))
}

impl CudaKernel for GatedDeltaNet {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        blocks(0, inputs).map(|_| ())
    }

    fn variants(&self) -> &'static [Variant] {
        &VARIANTS
    }

    fn covers(&self, variant: usize, inputs: &[Layout]) -> Result<(), Declined> {
        blocks(variant, inputs).map(|_| ())
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
        let blocks = blocks(call.variant, &layouts).expect("`covers` has said so");
        let form = form(call.variant, size, layouts[4].ne[0] != 1).expect("as for the blocks");
        let pool_rows = layouts[0].ne[3];
        let parts = parts(tokens, call.results.len() - 1);
        let launch = |(index, part): (usize, &Part)| {
            let continued =
                index.checked_sub(1).map(|before| state_after(call, tokens, parts[before].last()));
            let params = parameters(self, call, part, continued);
            Launch::line(&IMAGE, form.entry, blocks, form.threads, params).guarded("ids", pool_rows)
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
