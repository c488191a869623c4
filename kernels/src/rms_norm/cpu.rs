//! Each row is copied into the worker's scratch, normalised there and stored.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, change_rows, repeat_row};
use crate::shared::pool::Worker;
use crate::shared::{reduce, simd};
use ssmgraph_ops::{Layout, OpError, RmsNorm};

impl CpuKernel for RmsNorm {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], _results: &[Layout]) -> usize {
        inputs[0].elements()
    }

    fn scratch(&self, inputs: &[Layout], _results: &[Layout]) -> Scratch {
        Scratch::for_rows(inputs)
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, own: &mut [f32]) -> Result<(), OpError> {
        let w = call.inputs.get(1);
        change_rows(call, worker, own, |row, values, own| {
            normalise(values, self.eps);
            let Some(w) = w else { return };
            let w_row = repeat_row(row, w.ne());
            match w.f32_row(w_row) {
                Some(weights) => multiply(values, weights),
                None => {
                    let weights = &mut own[..w.ne()[0]];
                    w.load(w_row, 0, weights);
                    multiply(values, weights);
                }
            }
        });
        Ok(())
    }
}

fn normalise(values: &mut [f32], eps: f32) {
    let mean = reduce::sum_of_squares(values) / values.len() as f64;
    let scale = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
    simd::vectorize(
        #[inline(always)]
        || values.iter_mut().for_each(|value| *value *= scale),
    );
}

/// Multiplies by the weights, repeated until they cover the values.
fn multiply(values: &mut [f32], weights: &[f32]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for part in values.chunks_mut(weights.len()) {
                part.iter_mut().zip(weights).for_each(|(value, weight)| *value *= weight);
            }
        },
    );
}
