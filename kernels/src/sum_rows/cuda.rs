//! Launches of `sum_rows`, and of `mean` with them.

use crate::Declined;
use crate::cuda::{CudaCall, CudaKernel, GRID_X_MAX, Image, Launch, Params, WARP, embedded, quad_form};
use ssmgraph_ops::{Layout, SumRows};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("sum_rows");

/// Longest row that one warp adds.
const WARP_ROW_MAX: usize = 1024;
/// Elements of a row that one block adds.
const PIECE: usize = 8192;
const BLOCK_THREADS: usize = 256;
const WARPS: usize = 4;

impl CudaKernel for SumRows {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        row_sums_supported(&inputs[0])
    }

    fn scratch_bytes(&self, inputs: &[Layout], results: &[Layout]) -> usize {
        row_sums_scratch(&inputs[0], &results[0])
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        row_sums(call, 1.0)
    }
}

/// Whether [`row_sums`] can be launched.
pub(crate) fn row_sums_supported(x: &Layout) -> Result<(), Declined> {
    match x.rows().saturating_mul(x.ne[0].div_ceil(PIECE)) <= GRID_X_MAX && x.rows() <= GRID_X_MAX {
        true => Ok(()),
        false => Err(Declined("more rows than one launch reaches".into())),
    }
}

/// Scratch of [`row_sums`]: one number per piece of a long row.
pub(crate) fn row_sums_scratch(x: &Layout, y: &Layout) -> usize {
    let pieces = x.ne[0].div_ceil(PIECE);
    if pieces > 1 { y.elements() * pieces * 8 } else { 0 }
}

/// The sum of each row divided by `divisor`.
pub(crate) fn row_sums(call: &CudaCall<'_>, divisor: f64) -> Vec<Launch> {
    let (x, y) = (&call.inputs[0], &call.results[0]);
    let (rows, length) = (y.layout.elements(), x.layout.ne[0]);
    if rows == 0 {
        return Vec::new();
    }
    let pieces = length.div_ceil(PIECE).max(1);
    let params = Params::new()
        .tensor(x)
        .tensor(y)
        .address(call.scratch)
        .size(rows)
        .size(pieces)
        .size(PIECE)
        .f64(divisor)
        .i32(quad_form(x));
    let warps = |entry| Launch::line(&IMAGE, entry, rows.div_ceil(WARPS), WARPS * WARP, params.clone());
    if length <= WARP_ROW_MAX {
        return vec![warps("sum_rows_warps")];
    }
    let blocks = Launch::line(&IMAGE, "sum_rows_blocks", rows * pieces, BLOCK_THREADS, params.clone());
    match pieces {
        1 => vec![blocks],
        _ => vec![blocks, warps("sum_rows_finish")],
    }
}
