//! Each group is copied into the worker's scratch with its gate, normalised and gated there, and stored. The
//! unit of work is a group, so that few long rows keep all workers busy.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::Call;
use crate::shared::pool::Worker;
use crate::shared::{math, reduce, simd};
use ssmgraph_ops::gated_norm::{Gate, GatedNorm, Order};
use ssmgraph_ops::{Layout, OpError};

impl CpuKernel for GatedNorm {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], _results: &[Layout]) -> usize {
        inputs[0].elements().saturating_mul(2)
    }

    fn scratch(&self, inputs: &[Layout], _results: &[Layout]) -> Scratch {
        let floats = || 2 * self.group_size + inputs[2].ne[0];
        Scratch { shared_bytes: 0, own_floats: if inputs[0].is_empty() { 0 } else { floats() } }
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, own: &mut [f32]) -> Result<(), OpError> {
        let [x, z, w] = &call.inputs[..] else { unreachable!("the arity was checked") };
        let y = &call.results[0];
        if x.layout().is_empty() {
            return Ok(());
        }
        let group_size = self.group_size;
        let groups = x.ne()[0] / group_size;
        let (values, own) = own.split_at_mut(group_size);
        let (gates, own) = own.split_at_mut(group_size);
        let weights = &mut own[..w.ne()[0]];
        w.load([0; 3], 0, weights);
        for unit in worker.share(x.layout().rows() * groups) {
            let (row, first) = (x.layout().row_index(unit / groups), unit % groups * group_size);
            x.load(row, first, values);
            z.load(row, first, gates);
            let from = if weights.len() == group_size { 0 } else { first };
            let weights = &weights[from..from + group_size];
            match self.gate {
                Gate::Silu => norm_and_gate(values, gates, weights, self, math::silu),
                Gate::Sigmoid => norm_and_gate(values, gates, weights, self, math::sigmoid),
            }
            // SAFETY: groups are shared out among the workers, each to one.
            unsafe { y.store(row, first, values) }
        }
        Ok(())
    }
}

fn norm_and_gate(
    values: &mut [f32],
    gates: &mut [f32],
    weights: &[f32],
    op: &GatedNorm,
    act: impl Fn(f32) -> f32,
) {
    simd::vectorize(
        #[inline(always)]
        || {
            gates.iter_mut().for_each(|gate| *gate = act(*gate));
            if op.order == Order::GateThenNorm {
                values.iter_mut().zip(&*gates).for_each(|(value, gate)| *value *= gate);
            }
        },
    );
    let mean = reduce::sum_of_squares(values) / values.len() as f64;
    let scale = (1.0 / (mean + f64::from(op.eps)).sqrt()) as f32;
    simd::vectorize(
        #[inline(always)]
        || match op.order {
            Order::GateThenNorm => {
                values.iter_mut().zip(weights).for_each(|(value, weight)| *value = *value * scale * weight);
            }
            Order::NormThenGate => {
                for ((value, weight), gate) in values.iter_mut().zip(weights).zip(&*gates) {
                    *value = *value * scale * weight * gate;
                }
            }
        },
    );
}
