//! As `rms_norm`: each row is copied into the worker's scratch, normalised there and stored. The mean is taken off
//! before squares are formed, so a row far from 0 loses nothing.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, change_rows};
use crate::shared::pool::Worker;
use crate::shared::{reduce, simd};
use ssmgraph_ops::{Layout, Norm, OpError};

impl CpuKernel for Norm {
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
        change_rows(call, worker, own, |_, values, _| normalise(values, self.eps));
        Ok(())
    }
}

fn normalise(values: &mut [f32], eps: f32) {
    let length = values.len() as f64;
    let mean = reduce::sum_f64(values) / length;
    simd::vectorize(
        #[inline(always)]
        || values.iter_mut().for_each(|value| *value = (f64::from(*value) - mean) as f32),
    );
    let variance = reduce::sum_of_squares(values) / length;
    let scale = (1.0 / (variance + f64::from(eps)).sqrt()) as f32;
    simd::vectorize(
        #[inline(always)]
        || values.iter_mut().for_each(|value| *value *= scale),
    );
}
