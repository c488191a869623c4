//! One pass in pieces that stay in the first-level cache.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, pieces_of};
use crate::shared::pool::Worker;
use crate::shared::simd;
use ssmgraph_ops::{Layout, OpError, Scale};

/// Elements handled at a time: 2 KiB, resident in the first-level cache.
const PIECE: usize = 512;

impl CpuKernel for Scale {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], _results: &[Layout]) -> usize {
        inputs[0].elements() / 4
    }

    fn scratch(&self, _inputs: &[Layout], _results: &[Layout]) -> Scratch {
        Scratch::default()
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, _own: &mut [f32]) -> Result<(), OpError> {
        let (mut x, mut y) = (call.inputs[0], call.results[0]);
        if let (Some(flat_x), Some(flat_y)) = (x.flat(), y.flat()) {
            (x, y) = (flat_x, flat_y);
        }
        let (scale, bias) = (self.scale, self.bias);
        let mut piece = [0.0; PIECE];
        for (row, first, len) in pieces_of(y.layout(), PIECE, worker) {
            let values = &mut piece[..len];
            x.load(row, first, values);
            simd::vectorize(
                #[inline(always)]
                || values.iter_mut().for_each(|value| *value = *value * scale + bias),
            );
            // SAFETY: pieces are shared out among the workers, each to one.
            unsafe { y.store(row, first, values) }
        }
        Ok(())
    }
}
