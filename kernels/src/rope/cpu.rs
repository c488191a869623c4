//! Row by row, through the worker's scratch. Sines and cosines are formed in `f64`, once for all heads of a token.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, In, rows_of};
use crate::shared::pool::Worker;
use crate::shared::simd;
use ssmgraph_ops::rope::RopeMode;
use ssmgraph_ops::{Layout, OpError, Rope};

/// Sine and cosine of a pair cost about as much as so many elements.
const TURN_COST: usize = 40;

impl CpuKernel for Rope {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], _results: &[Layout]) -> usize {
        let [_, _, tokens, sequences] = inputs[0].ne;
        let turns = self.n_rot.saturating_mul(tokens.saturating_mul(sequences)).saturating_mul(TURN_COST);
        inputs[0].elements().saturating_add(turns / 2)
    }

    fn scratch(&self, inputs: &[Layout], _results: &[Layout]) -> Scratch {
        let floats = inputs[0].ne[0].saturating_add(self.n_rot);
        Scratch { shared_bytes: 0, own_floats: if inputs[0].is_empty() { 0 } else { floats } }
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, own: &mut [f32]) -> Result<(), OpError> {
        let (x, positions, y) = (&call.inputs[0], &call.inputs[1], &call.results[0]);
        if x.layout().is_empty() {
            return Ok(());
        }
        let (values, turns) = own.split_at_mut(x.ne()[0]);
        let (cos, sin) = turns[..self.n_rot].split_at_mut(self.n_rot / 2);
        let mut token = None;
        for row @ [_, t, b] in rows_of(x.layout(), worker) {
            if token.replace([t, b]) != Some([t, b]) {
                turns_of(self, positions, [t, b], cos, sin);
            }
            x.load(row, 0, values);
            turn(self.mode, &mut values[..self.n_rot], cos, sin);
            // SAFETY: rows are shared out among the workers, each to one.
            unsafe { y.store(row, 0, values) }
        }
        Ok(())
    }
}

/// Cosine and sine of each pair's angle.
fn turns_of(op: &Rope, positions: &In, [t, b]: [usize; 2], cos: &mut [f32], sin: &mut [f32]) {
    for (pair, (cos, sin)) in cos.iter_mut().zip(sin).enumerate() {
        let [first, row @ ..] = op.position_index(positions.ne(), pair, t, b);
        let (exact_sin, exact_cos) = (positions.int(first, row) as f64 * op.step(pair)).sin_cos();
        (*sin, *cos) = (exact_sin as f32, exact_cos as f32);
    }
}

/// Turns each pair.
fn turn(mode: RopeMode, values: &mut [f32], cos: &[f32], sin: &[f32]) {
    simd::vectorize(
        #[inline(always)]
        || match mode {
            RopeMode::Normal => {
                for ((pair, &cos), &sin) in values.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                    let [first, second] = *pair;
                    *pair = [first * cos - second * sin, first * sin + second * cos];
                }
            }
            RopeMode::Neox | RopeMode::Sections { .. } => {
                let (firsts, seconds) = values.split_at_mut(cos.len());
                for (((first, second), &cos), &sin) in firsts.iter_mut().zip(seconds).zip(cos).zip(sin) {
                    (*first, *second) = (*first * cos - *second * sin, *first * sin + *second * cos);
                }
            }
        },
    );
}
