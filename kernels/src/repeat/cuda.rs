//! Launches of `repeat`.

use crate::Declined;
use crate::cuda::moves::{MOVE_THREADS, Move};
use crate::cuda::{CudaCall, CudaKernel, Image, Launch, Params, embedded};
use ssmgraph_ops::Layout;
use ssmgraph_ops::repeat::Repeat;

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("repeat");

impl CudaKernel for Repeat {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn scratch_bytes(&self, _inputs: &[Layout], _results: &[Layout]) -> usize {
        0
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        if call.results[0].layout.is_empty() {
            return Vec::new();
        }
        let repeating = Move::repeating(&call.inputs[0], &call.results[0]);
        vec![Launch::line(&IMAGE, "repeat", repeating.blocks, MOVE_THREADS, repeating.append(Params::new()))]
    }
}
