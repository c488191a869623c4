//! Launches of `concat`.

use crate::Declined;
use crate::cuda::moves::{MOVE_THREADS, Move};
use crate::cuda::{CudaCall, CudaKernel, DeviceTensor, Image, Launch, Params, embedded};
use ssmgraph_ops::Layout;
use ssmgraph_ops::concat::Concat;

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("concat");

impl CudaKernel for Concat {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn scratch_bytes(&self, _inputs: &[Layout], _results: &[Layout]) -> usize {
        0
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let y = &call.results[0];
        let mut moves = Vec::new();
        let mut address = y.address;
        for part in call.inputs {
            let layout = Layout { ne: part.layout.ne, ..y.layout };
            if !layout.is_empty() {
                moves.push(Move::between(part, &DeviceTensor { address, layout }));
            }
            address += (layout.blocks()[self.axis] * layout.nb[self.axis]) as u64;
        }
        moves.chunks(2).map(launch).collect()
    }
}

/// One launch for one or two parts.
fn launch(moves: &[Move]) -> Launch {
    let first = moves[0].append(Params::new());
    let both = match moves.get(1) {
        Some(second) => second.append(first),
        None => Move::append_none(first),
    };
    let blocks = moves.iter().map(|part| part.blocks).sum();
    Launch::line(&IMAGE, "concat", blocks, MOVE_THREADS, both.size(moves[0].blocks))
}
