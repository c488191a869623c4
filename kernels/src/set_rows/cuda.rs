//! Launches of `set_rows`.

use crate::Declined;
use crate::cuda::walk::{in_quads, reached};
use crate::cuda::{CudaCall, CudaKernel, Image, Launch, Params, WARP, embedded};
use ssmgraph_ops::{Layout, SetRows};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("set_rows");

const THREADS: usize = 256;
const CHECK_THREADS: usize = 1024;
/// The longest row of one warp.
const SHORT_SPAN: usize = 1024;
/// Elements of a longer row that one block writes.
const LONG_SPAN: usize = 4096;
/// So many ids each block looks through itself, which is cheaper than another launch.
const OWN_CHECK_MAX: usize = 1024;

impl CudaKernel for SetRows {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        let src = &inputs[1];
        match src.ne[0] <= SHORT_SPAN {
            true => reached(src.rows(), THREADS / WARP),
            false => reached(src.rows().saturating_mul(src.ne[0].div_ceil(LONG_SPAN)), 1),
        }
    }

    fn scratch_bytes(&self, _inputs: &[Layout], _results: &[Layout]) -> usize {
        0
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let (dst, src, ids) = (&call.results[0], &call.inputs[1], &call.inputs[2]);
        let (row, rows, id_count) = (src.layout.ne[0], src.layout.rows(), ids.layout.elements());
        if src.layout.is_empty() {
            return Vec::new();
        }
        let pieces = row.div_ceil(LONG_SPAN);
        let checked = id_count > OWN_CHECK_MAX;
        // An empty dst has strides of any kind, but then no id names a row of it.
        let quads = row.is_multiple_of(4) && dst.layout.nb[0] != 0 && in_quads(&[*dst, *src]);
        let params = Params::new()
            .tensor(dst)
            .tensor(src)
            .tensor(ids)
            .size(rows)
            .size(pieces)
            .size(id_count)
            .address(call.fault)
            .i32(checked.into())
            .i32(quads.into());
        let check = checked.then(|| Launch::line(&IMAGE, "set_rows_check", 1, CHECK_THREADS, params.clone()));
        let write = match row <= SHORT_SPAN {
            true => Launch::line(&IMAGE, "set_rows_short", rows.div_ceil(THREADS / WARP), THREADS, params),
            false => Launch::line(&IMAGE, "set_rows_long", rows * pieces, THREADS, params),
        };
        check.into_iter().chain([write]).map(|launch| launch.guarded("ids", dst.layout.ne[1])).collect()
    }
}
