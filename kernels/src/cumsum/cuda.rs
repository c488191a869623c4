//! Launches of `cumsum`.

use crate::Declined;
use crate::cuda::{CudaCall, CudaKernel, GRID_X_MAX, Image, Launch, Params, WARP, embedded, quad_form};
use ssmgraph_ops::{Cumsum, Layout};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("cumsum");

/// Longest row that one warp scans.
const WARP_ROW_MAX: usize = 2048;
/// `PIECE` of the kernel: what a block scans at a time.
const PIECE: usize = 4096;
/// So many rows keep a device busy with a block each.
const ROWS_UNCUT: usize = 256;
const BLOCK_THREADS: usize = 256;
const WARPS: usize = 4;

impl CudaKernel for Cumsum {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        let x = &inputs[0];
        match x.rows() <= GRID_X_MAX && x.rows().saturating_mul(pieces(x)) <= GRID_X_MAX {
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
        let rows = x.layout.rows();
        if x.layout.is_empty() {
            return Vec::new();
        }
        let pieces = pieces(&x.layout);
        let params = Params::new()
            .tensor(x)
            .tensor(y)
            .address(call.scratch)
            .size(rows)
            .size(pieces)
            .i32(quad_form(x))
            .i32(quad_form(y));
        let line = |entry, blocks, threads| Launch::line(&IMAGE, entry, blocks, threads, params.clone());
        if x.layout.ne[0] <= WARP_ROW_MAX {
            return vec![line("cumsum_warps", rows.div_ceil(WARPS), WARPS * WARP)];
        }
        if pieces == 1 {
            return vec![line("cumsum_rows", rows, BLOCK_THREADS)];
        }
        vec![
            line("cumsum_pieces", rows * pieces, BLOCK_THREADS),
            line("cumsum_carries", rows.div_ceil(WARP), WARP),
            line("cumsum_finish", rows * pieces, BLOCK_THREADS),
        ]
    }
}

/// Pieces that rows are cut into: 1 when a block takes a whole row.
fn pieces(x: &Layout) -> usize {
    if x.rows() < ROWS_UNCUT && x.ne[0] > WARP_ROW_MAX { x.ne[0].div_ceil(PIECE) } else { 1 }
}
