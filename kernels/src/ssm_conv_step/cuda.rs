//! Launches of `ssm_conv_step`: one, and one more for each further eight windows.

use crate::Declined;
use crate::cuda::{CudaCall, CudaKernel, DeviceTensor, GRID_X_MAX, Image, Launch, Params, embedded};
use ssmgraph_ops::{Layout, SsmConvStep};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("ssm_conv_step");

/// Channels of a block, and tokens of each thread.
const THREADS: usize = 128;
const TOKENS: usize = 16;
/// Windows that one launch writes.
const STATES: usize = 8;

/// Blocks along the channels and along the tokens. At least one: without channels there are still ids to look at,
/// without tokens still windows to write.
fn tiles(x: &Layout) -> [usize; 2] {
    [x.ne[0].div_ceil(THREADS).max(1), x.ne[1].div_ceil(TOKENS).max(1)]
}

/// The parameters of launch number `index`, which writes `states`.
fn params(
    op: &SsmConvStep,
    call: &CudaCall<'_>,
    index: usize,
    states: &[DeviceTensor],
    token_tiles: usize,
) -> Params {
    let (inputs, ids) = (call.inputs, call.inputs.len() - 1);
    let params = Params::new().tensor(&inputs[0]).tensor(&inputs[1]).tensor(&inputs[2]);
    let params = params.optional(op.bias.then(|| &inputs[3])).tensor(&inputs[ids]).tensor(&call.results[0]);
    let params = (0..STATES).fold(params, |params, index| params.optional(states.get(index)));
    let params = params.size(states.len()).size(index * STATES);
    let params = params.size(tiles(&inputs[1].layout)[0]).size(token_tiles).address(call.fault);
    params.i32(op.bias.into()).i32(op.silu.into())
}

impl CudaKernel for SsmConvStep {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        let [channel_tiles, token_tiles] = tiles(&inputs[1]);
        let blocks = channel_tiles.checked_mul(token_tiles);
        let blocks = blocks.and_then(|blocks| blocks.checked_mul(inputs[1].ne[2]));
        match blocks.is_some_and(|blocks| blocks <= GRID_X_MAX) {
            true => Ok(()),
            false => Err(Declined("more outputs than one launch reaches".into())),
        }
    }

    fn scratch_bytes(&self, _inputs: &[Layout], _results: &[Layout]) -> usize {
        0
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let (sequences, rows) = (call.inputs[1].layout.ne[2], call.inputs[0].layout.ne[3]);
        if sequences == 0 {
            return Vec::new();
        }
        let [channel_tiles, token_tiles] = tiles(&call.inputs[1].layout);
        let launch = |(index, states): (usize, &[DeviceTensor])| {
            let (entry, token_tiles) = match index {
                0 => ("ssm_conv_step", token_tiles),
                _ => ("ssm_conv_step_windows", 1),
            };
            let params = params(self, call, index, states, token_tiles);
            let blocks = channel_tiles * token_tiles * sequences;
            Launch::line(&IMAGE, entry, blocks, THREADS, params).guarded("ids", rows)
        };
        call.results[1..].chunks(STATES).enumerate().map(launch).collect()
    }
}
