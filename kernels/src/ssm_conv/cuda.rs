//! Launches of `ssm_conv`: one, in a form chosen by which axis of sx is packed. Every form gives the same bits.

use crate::Declined;
use crate::cuda::{CudaCall, CudaKernel, GRID_X_MAX, Image, Launch, Params, WARP, embedded};
use ssmgraph_ops::{Layout, SsmConv};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("ssm_conv");

/// Channels of a block and tokens of a thread that walks.
const WALKERS: usize = 128;
const TOKENS: usize = 16;
/// Threads of a block with a tile in shared memory, and the tile's tokens; it has a channel per lane.
const TILE_THREADS: usize = 256;
const TOKENS_TILED: usize = 64;
/// Fewer tokens than this do not repay the copy into shared memory.
const TILED_MIN: usize = 8;
/// Taps of a channel and its tile must fit in 48 KiB.
const TILED_WIDTH_MAX: usize = 128;
/// The width that has its own kernels.
const FOUR: usize = 4;

/// How a call is cut into blocks.
struct Form {
    tiled: bool,
    channel_tiles: usize,
    token_tiles: usize,
}

impl Form {
    fn of(sx: &Layout, w: &Layout) -> Form {
        let [columns, channels, ..] = sx.ne;
        let width = w.ne[0];
        let tokens = columns + 1 - width;
        let time_packed = sx.nb[0] == size_of::<f32>() && sx.nb[1] != size_of::<f32>();
        let tiled = time_packed && tokens >= TILED_MIN && width <= TILED_WIDTH_MAX;
        let (along_channels, along_tokens) = if tiled { (WARP, TOKENS_TILED) } else { (WALKERS, TOKENS) };
        let channel_tiles = channels.div_ceil(along_channels);
        Form { tiled, channel_tiles, token_tiles: tokens.div_ceil(along_tokens) }
    }

    fn blocks(&self, sequences: usize) -> Option<usize> {
        self.channel_tiles.checked_mul(self.token_tiles)?.checked_mul(sequences)
    }
}

impl CudaKernel for SsmConv {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        let blocks = Form::of(&inputs[0], &inputs[1]).blocks(inputs[0].ne[2]);
        match blocks.is_some_and(|blocks| blocks <= GRID_X_MAX) {
            true => Ok(()),
            false => Err(Declined("more outputs than one launch reaches".into())),
        }
    }

    fn scratch_bytes(&self, _inputs: &[Layout], _results: &[Layout]) -> usize {
        0
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let (sx, w, y) = (&call.inputs[0], &call.inputs[1], &call.results[0]);
        if y.layout.is_empty() {
            return Vec::new();
        }
        let [channels, tokens, sequences, _] = y.layout.ne;
        let width = w.layout.ne[0];
        let form = Form::of(&sx.layout, &w.layout);
        // Odd, so that the lanes of a warp, one channel each, meet different banks.
        let (stride, weight_stride) = match form.tiled {
            true => ((TOKENS_TILED + width - 1) | 1, width | 1),
            false => (0, 0),
        };
        let params = Params::new().tensor(sx).tensor(w).optional(call.inputs.get(2)).address(y.address);
        let params = params.size(tokens).size(channels).size(form.token_tiles).size(form.channel_tiles);
        let params = params.size(width).i32(stride as i32).i32(weight_stride as i32);
        let params = params.i32(self.bias.into()).i32(self.silu.into());
        let blocks = form.blocks(sequences).expect("`supports` has multiplied them");
        let entry = match (form.tiled, width == FOUR) {
            (true, true) => "ssm_conv_tile_4",
            (true, false) => "ssm_conv_tile",
            (false, true) => "ssm_conv_walk_4",
            (false, false) => "ssm_conv_walk",
        };
        let threads = if form.tiled { TILE_THREADS } else { WALKERS };
        let shared = WARP * (stride + weight_stride) * size_of::<f32>();
        vec![Launch::line(&IMAGE, entry, blocks, threads, params).with_shared(shared)]
    }
}
