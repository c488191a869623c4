//! As `binary`, with two repeated operands.

use crate::binary::cpu::load_repeated;
use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, pieces_of, repeat_row};
use crate::shared::pool::Worker;
use crate::shared::{math, simd};
use ssmgraph_ops::{DecayGate, Layout, OpError};

/// Elements handled at a time: 1 KiB of each operand.
const PIECE: usize = 256;

impl CpuKernel for DecayGate {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], _results: &[Layout]) -> usize {
        inputs[0].elements().saturating_mul(2)
    }

    fn scratch(&self, _inputs: &[Layout], _results: &[Layout]) -> Scratch {
        Scratch::default()
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, _own: &mut [f32]) -> Result<(), OpError> {
        let [alpha, a, bias] = &call.inputs[..] else { unreachable!("the arity was checked") };
        let y = &call.results[0];
        let (mut values, mut rates, mut biases) = ([0.0; PIECE], [0.0; PIECE], [0.0; PIECE]);
        for (row, first, len) in pieces_of(y.layout(), PIECE, worker) {
            let (values, rates, biases) = (&mut values[..len], &mut rates[..len], &mut biases[..len]);
            alpha.load(row, first, values);
            load_repeated(a, repeat_row(row, a.ne()), first, rates);
            load_repeated(bias, repeat_row(row, bias.ne()), first, biases);
            simd::vectorize(
                #[inline(always)]
                || {
                    for ((value, rate), bias) in values.iter_mut().zip(&*rates).zip(&*biases) {
                        *value = math::softplus(*value + bias) * rate;
                    }
                },
            );
            // SAFETY: pieces are shared out among the workers, each to one.
            unsafe { y.store(row, first, values) }
        }
        Ok(())
    }
}
