//! Launches of `ssm_scan`: a form by the sizes of the state, and as many launches as the snapshots need.

use crate::Declined;
use crate::cuda::snapshots::{Part, append_snapshots, parts, state_after};
use crate::cuda::{CudaCall, CudaKernel, DeviceTensor, GRID_X_MAX, Image, Launch, Params, WARP, embedded};
use ssmgraph_ops::{Layout, SsmScan};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("ssm_scan");

const WARPS: usize = 4;
const THREADS: usize = WARPS * WARP;
/// Most states of a row that registers hold.
const STATES_MAX: usize = 256;
/// With this many warps of four rows, the device is busy; below, warps of one row use more of it.
const WIDE_WARPS_MIN: usize = 2048;

/// Which kernel, and how many rows of the state a block has.
struct Form {
    entry: &'static str,
    blocks: Option<usize>,
    /// Lanes that share a row's states.
    lanes: usize,
}

impl Form {
    fn of(inputs: &[Layout]) -> Form {
        let (s, x, a, b, c) = (&inputs[0], &inputs[1], &inputs[3], &inputs[4], &inputs[5]);
        let [states, head_dim, heads, _] = s.ne;
        let per_state = a.ne[0] != 1;
        let lanes = if per_state && states <= 64 { 8 } else { WARP };
        let packed = [b, c].iter().all(|layout| layout.nb[0] == size_of::<f32>());
        let heads_of_all = heads.checked_mul(x.ne[3]);
        let blocks = |rows: usize, per_block: usize| {
            // One block at least, which looks at the ids.
            Some(heads_of_all?.checked_mul(rows)?.div_ceil(per_block).max(1))
        };
        if states == 0 || states > STATES_MAX || !packed {
            return Form { entry: "ssm_scan_rows", blocks: blocks(head_dim, WARPS), lanes };
        }
        if per_state {
            return Form { entry: channel_entry(states), blocks: blocks(1, THREADS / lanes), lanes };
        }
        let groups = head_dim.div_ceil(4);
        let busy =
            heads_of_all.and_then(|heads| heads.checked_mul(groups)).is_some_and(|n| n >= WIDE_WARPS_MIN);
        match wide_head_entry(states).filter(|_| busy) {
            Some(entry) => Form { entry, blocks: blocks(groups, WARPS), lanes },
            None => Form { entry: head_entry(states), blocks: blocks(head_dim, WARPS), lanes },
        }
    }
}

fn head_entry(states: usize) -> &'static str {
    const ENTRIES: [&str; 8] = [
        "ssm_scan_head_1",
        "ssm_scan_head_2",
        "ssm_scan_head_3",
        "ssm_scan_head_4",
        "ssm_scan_head_5",
        "ssm_scan_head_6",
        "ssm_scan_head_7",
        "ssm_scan_head_8",
    ];
    ENTRIES[states.div_ceil(WARP) - 1]
}

/// The form of four rows a warp, for sizes whose rows fit in registers without crowding.
fn wide_head_entry(states: usize) -> Option<&'static str> {
    match states.div_ceil(WARP) {
        1 => Some("ssm_scan_head_1x4"),
        2 => Some("ssm_scan_head_2x4"),
        4 => Some("ssm_scan_head_4x4"),
        _ => None,
    }
}

fn channel_entry(states: usize) -> &'static str {
    match states {
        0..=8 => "ssm_scan_channel_1",
        9..=16 => "ssm_scan_channel_2",
        17..=32 => "ssm_scan_channel_4",
        33..=64 => "ssm_scan_channel_8",
        65..=128 => "ssm_scan_channel_4x32",
        _ => "ssm_scan_channel_8x32",
    }
}

impl CudaKernel for SsmScan {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        match Form::of(inputs).blocks.is_some_and(|blocks| blocks <= GRID_X_MAX) {
            true => Ok(()),
            false => Err(Declined("more rows of states than one launch reaches".into())),
        }
    }

    fn scratch_bytes(&self, _inputs: &[Layout], _results: &[Layout]) -> usize {
        0
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let [tokens, sequences] = [call.inputs[1].layout.ne[2], call.inputs[1].layout.ne[3]];
        if sequences == 0 {
            return Vec::new();
        }
        let layouts: Vec<Layout> = call.inputs.iter().map(|tensor| tensor.layout).collect();
        let form = Form::of(&layouts);
        let blocks = form.blocks.expect("`supports` has multiplied them");
        let pool_rows = call.inputs[0].layout.ne[3];
        let parts = parts(tokens, call.results.len() - 1);
        let launch = |(index, part): (usize, &Part)| {
            // Later launches go on from the last state that the one before wrote.
            let continued =
                index.checked_sub(1).map(|before| state_after(call, tokens, parts[before].last()));
            let params = parameters(call, &form, part, continued);
            Launch::line(&IMAGE, form.entry, blocks, THREADS, params).guarded("ids", pool_rows)
        };
        parts.iter().enumerate().map(launch).collect()
    }
}

fn parameters(call: &CudaCall<'_>, form: &Form, part: &Part, continued: Option<&DeviceTensor>) -> Params {
    let [s, x, dt, a, b, c, ids] = call.inputs else { unreachable!("the arity was checked") };
    let params = Params::new().tensor(continued.unwrap_or(s));
    let params = [x, dt, a, b, c, ids].into_iter().fold(params, |params, tensor| params.tensor(tensor));
    let params = params.address(call.results[0].address);
    let params = append_snapshots(params, call, x.layout.ne[2], part);
    let heads_per_group = s.layout.ne[2].checked_div(b.layout.ne[1]).unwrap_or(1).max(1);
    let params = params.size(part.tokens.start).size(part.tokens.end).size(part.kept.start);
    let params = params.size(heads_per_group).size(s.layout.ne[3]).address(call.fault);
    params.i32(part.kept.len() as i32).i32(continued.is_some().into()).i32(form.lanes as i32)
}
