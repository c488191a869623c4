//! Each row is copied into the worker's scratch, where the passes for the maximum, the exponentials and the
//! division run from cache; then it is stored.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, change_rows, repeat_row};
use crate::shared::pool::Worker;
use crate::shared::{math, reduce, simd};
use ssmgraph_ops::{Layout, OpError, SoftMax};

impl CpuKernel for SoftMax {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], _results: &[Layout]) -> usize {
        inputs[0].elements().saturating_mul(2)
    }

    fn scratch(&self, inputs: &[Layout], _results: &[Layout]) -> Scratch {
        Scratch::for_rows(inputs)
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, own: &mut [f32]) -> Result<(), OpError> {
        let mask = call.inputs.get(1);
        change_rows(call, worker, own, |row, values, own| {
            match mask {
                None => scale_and_add(values, self.scale, &[0.0]),
                Some(mask) => {
                    let added = &mut own[..mask.ne()[0]];
                    mask.load(repeat_row(row, mask.ne()), 0, added);
                    scale_and_add(values, self.scale, added);
                }
            }
            to_shares(values);
        });
        Ok(())
    }
}

/// v · scale + added, with `added` repeated until it covers the values.
fn scale_and_add(values: &mut [f32], scale: f32, added: &[f32]) {
    simd::vectorize(
        #[inline(always)]
        || match added {
            [one] => values.iter_mut().for_each(|value| *value = *value * scale + one),
            _ => {
                for part in values.chunks_mut(added.len()) {
                    part.iter_mut().zip(added).for_each(|(value, more)| *value = *value * scale + more);
                }
            }
        },
    );
}

/// Turns scores into shares of 1. An infinite or NaN maximum turns the row into NaN through ∞ − ∞.
fn to_shares(values: &mut [f32]) {
    let largest = reduce::max(values);
    simd::vectorize(
        #[inline(always)]
        || values.iter_mut().for_each(|value| *value = math::exp(*value - largest)),
    );
    let scale = 1.0 / reduce::sum(values);
    simd::vectorize(
        #[inline(always)]
        || values.iter_mut().for_each(|value| *value *= scale),
    );
}
