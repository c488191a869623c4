//! Launches of `argmax`.

use crate::Declined;
use crate::cuda::{CudaCall, CudaKernel, GRID_X_MAX, Image, Launch, Params, WARP, embedded, quad_form};
use ssmgraph_ops::{Argmax, Layout};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("argmax");

/// Longest row that one warp searches.
const WARP_ROW_MAX: usize = 1024;
/// Elements of a piece, where rows are cut.
const PIECE: usize = 8192;
/// So many rows keep a device busy with a block each.
const ROWS_UNCUT: usize = 512;
const BLOCK_THREADS: usize = 256;
const WARPS: usize = 4;

impl CudaKernel for Argmax {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        match inputs[0].rows() <= GRID_X_MAX {
            true => Ok(()),
            false => Err(Declined("more rows than one launch reaches".into())),
        }
    }

    fn scratch_bytes(&self, inputs: &[Layout], _results: &[Layout]) -> usize {
        let pieces = pieces(&inputs[0]);
        if pieces > 1 { inputs[0].rows() * pieces * 8 } else { 0 }
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let (x, y) = (&call.inputs[0], &call.results[0]);
        let (rows, length) = (x.layout.rows(), x.layout.ne[0]);
        if rows == 0 {
            return Vec::new();
        }
        let pieces = pieces(&x.layout);
        let piece = if pieces > 1 { PIECE } else { length };
        let params = Params::new()
            .tensor(x)
            .tensor(y)
            .address(call.scratch)
            .size(rows)
            .size(pieces)
            .size(piece)
            .i32(quad_form(x));
        let warps = |entry| Launch::line(&IMAGE, entry, rows.div_ceil(WARPS), WARPS * WARP, params.clone());
        if length <= WARP_ROW_MAX {
            return vec![warps("argmax_warps")];
        }
        let blocks = Launch::line(&IMAGE, "argmax_blocks", rows * pieces, BLOCK_THREADS, params.clone());
        match pieces {
            1 => vec![blocks],
            _ => vec![blocks, warps("argmax_finish")],
        }
    }
}

fn pieces(x: &Layout) -> usize {
    if x.rows() < ROWS_UNCUT { x.ne[0].div_ceil(PIECE).max(1) } else { 1 }
}
