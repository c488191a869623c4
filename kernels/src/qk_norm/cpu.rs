//! Each row of q and of k is copied into the worker's scratch, divided there and stored for every head that
//! repeats it.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::l2_norm::cpu::divide;
use crate::shared::call::Call;
use crate::shared::pool::Worker;
use ssmgraph_ops::gated_delta_net::Grouping;
use ssmgraph_ops::{L2Norm, Layout, OpError, QkNorm};

impl CpuKernel for QkNorm {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], results: &[Layout]) -> usize {
        inputs[0].elements().saturating_add(results[0].elements())
    }

    fn scratch(&self, inputs: &[Layout], results: &[Layout]) -> Scratch {
        Scratch { shared_bytes: 0, own_floats: if results[0].is_empty() { 0 } else { inputs[0].ne[0] } }
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, own: &mut [f32]) -> Result<(), OpError> {
        if call.results[0].layout().is_empty() {
            return Ok(());
        }
        let [size, key_heads, ..] = call.inputs[0].ne();
        let values = &mut own[..size];
        let rows = call.inputs[0].layout().rows();
        let repeats = self.heads / key_heads;
        for unit in worker.share(2 * rows) {
            let (x, y) = (&call.inputs[unit / rows], &call.results[unit / rows]);
            let [key_head, token, sequence] = x.layout().row_index(unit % rows);
            x.load([key_head, token, sequence], 0, values);
            divide(values, L2Norm { eps: self.eps, form: self.form });
            for repeat in 0..repeats {
                let head = match self.grouping {
                    Grouping::Tiled => repeat * key_heads + key_head,
                    Grouping::Interleaved => key_head * repeats + repeat,
                };
                // SAFETY: rows are shared out among the workers, each with all heads that repeat it.
                unsafe { y.store([head, token, sequence], 0, values) }
            }
        }
        Ok(())
    }
}
