//! Launches of `ssm_scan`: a form by the sizes of the state, and as many launches as the snapshots need.

use crate::Declined;
use crate::cuda::{CudaCall, CudaKernel, DeviceTensor, GRID_X_MAX, Image, Launch, Params, WARP, embedded};
use ssmgraph_ops::{Layout, SsmScan};
use std::ops::Range;

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("ssm_scan");

const WARPS: usize = 4;
const THREADS: usize = WARPS * WARP;
/// States that one launch can write.
const SNAPSHOTS: usize = 8;
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

/// The tokens of one launch and those among them after which the state is a result. Without tokens, the
/// state as it starts is the result of token 0.
struct Part {
    tokens: Range<usize>,
    kept: Range<usize>,
}

impl Part {
    fn last(&self) -> usize {
        self.kept.end - 1
    }
}

/// Cuts a call so that each launch writes at most [`SNAPSHOTS`] of the last `states` states.
fn parts(tokens: usize, states: usize) -> Vec<Part> {
    if tokens == 0 {
        return vec![Part { tokens: 0..0, kept: 0..1 }];
    }
    let (mut parts, mut start, mut kept) = (Vec::new(), 0, tokens - states);
    while kept < tokens {
        let end = tokens.min(kept + SNAPSHOTS);
        parts.push(Part { tokens: start..end, kept: kept..end });
        (start, kept) = (end, end);
    }
    parts
}

/// The result that holds the state after a token.
fn state_after<'a>(call: &CudaCall<'a>, tokens: usize, token: usize) -> &'a DeviceTensor {
    &call.results[tokens.max(1) - token]
}

fn parameters(call: &CudaCall<'_>, form: &Form, part: &Part, continued: Option<&DeviceTensor>) -> Params {
    let [s, x, dt, a, b, c, ids] = call.inputs else { unreachable!("the arity was checked") };
    let params = Params::new().tensor(continued.unwrap_or(s));
    let params = [x, dt, a, b, c, ids].into_iter().fold(params, |params, tensor| params.tensor(tensor));
    let params = params.address(call.results[0].address);
    let params = (part.kept.start..part.kept.start + SNAPSHOTS).fold(params, |params, token| {
        let kept = part.kept.contains(&token);
        params.address(if kept { state_after(call, x.layout.ne[2], token).address } else { 0 })
    });
    let heads_per_group = s.layout.ne[2].checked_div(b.layout.ne[1]).unwrap_or(1).max(1);
    let params = params.size(part.tokens.start).size(part.tokens.end).size(part.kept.start);
    let params = params.size(heads_per_group).size(s.layout.ne[3]).address(call.fault);
    params.i32(part.kept.len() as i32).i32(continued.is_some().into()).i32(form.lanes as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_go_on_from_one_another() {
        let cut = |tokens, states| -> Vec<(Range<usize>, Range<usize>)> {
            parts(tokens, states).into_iter().map(|part| (part.tokens, part.kept)).collect()
        };
        assert_eq!(cut(0, 1), [(0..0, 0..1)]);
        assert_eq!(cut(5, 1), [(0..5, 4..5)]);
        assert_eq!(cut(20, 8), [(0..20, 12..20)]);
        assert_eq!(cut(20, 17), [(0..11, 3..11), (11..19, 11..19), (19..20, 19..20)]);
    }
}
