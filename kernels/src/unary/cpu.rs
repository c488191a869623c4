//! One pass per row in pieces that stay in the first-level cache. The function is chosen once per row, so
//! that each inner loop is over one function and vectorises.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, rows_of};
use crate::shared::pool::Worker;
use crate::shared::{math, simd, vector};
use ssmgraph_ops::unary::{Function, Unary};
use ssmgraph_ops::{Layout, OpError};

/// Elements handled at a time: 1 KiB, resident in the first-level cache.
const PIECE: usize = 256;

impl CpuKernel for Unary {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], _results: &[Layout]) -> usize {
        inputs[0].elements()
    }

    fn scratch(&self, _inputs: &[Layout], _results: &[Layout]) -> Scratch {
        Scratch::default()
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, _own: &mut [f32]) -> Result<(), OpError> {
        let (x, y) = (&call.inputs[0], &call.results[0]);
        let mut piece = [0.0; PIECE];
        for row in rows_of(x.layout(), worker) {
            for first in (0..x.ne()[0]).step_by(PIECE) {
                let values = &mut piece[..PIECE.min(x.ne()[0] - first)];
                x.load(row, first, values);
                apply(self.function, values);
                // SAFETY: rows are shared out among the workers, each to one.
                unsafe { y.store(row, first, values) }
            }
        }
        Ok(())
    }
}

fn apply(function: Function, values: &mut [f32]) {
    match function {
        Function::Silu => vector::silu_all(values),
        Function::Sigmoid => vector::sigmoid_all(values),
        Function::Softplus => map(values, math::softplus),
        Function::Exp => map(values, math::exp),
        Function::Neg => map(values, |x| -x),
        Function::Relu => map(values, |x| if x < 0.0 { 0.0 } else { x }),
        Function::Tanh => map(values, math::tanh),
        Function::Gelu => map(values, math::gelu),
    }
}

fn map(values: &mut [f32], f: impl Fn(f32) -> f32) {
    simd::vectorize(
        #[inline(always)]
        || values.iter_mut().for_each(|value| *value = f(*value)),
    );
}
