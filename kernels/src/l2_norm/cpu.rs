//! As `rms_norm`: each row is copied into the worker's scratch, divided there and stored.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, change_rows};
use crate::shared::pool::Worker;
use crate::shared::{reduce, simd};
use ssmgraph_ops::l2_norm::{Form, L2Norm};
use ssmgraph_ops::{Layout, OpError};

impl CpuKernel for L2Norm {
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
        change_rows(call, worker, own, |_, values, _| divide(values, *self));
        Ok(())
    }
}

pub(crate) fn divide(values: &mut [f32], L2Norm { eps, form }: L2Norm) {
    let squares = reduce::sum_of_squares(values);
    let eps = f64::from(eps);
    let divisor = match form {
        // Not `f64::max`: a NaN must stay.
        Form::Max if squares.sqrt() < eps => eps,
        Form::Max => squares.sqrt(),
        Form::Add => (squares + eps).sqrt(),
    };
    let scale = (1.0 / divisor) as f32;
    simd::vectorize(
        #[inline(always)]
        || values.iter_mut().for_each(|value| *value *= scale),
    );
}
