//! One pass in pieces that stay in the first-level cache.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, pieces_of};
use crate::shared::pool::Worker;
use crate::shared::{math, simd, vector};
use ssmgraph_ops::glu::{Glu, GluFunction};
use ssmgraph_ops::{Layout, OpError};

/// Elements of each half handled at a time: 1 KiB, resident in the first-level cache.
const PIECE: usize = 256;

impl CpuKernel for Glu {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, _inputs: &[Layout], results: &[Layout]) -> usize {
        results[0].elements()
    }

    fn scratch(&self, _inputs: &[Layout], _results: &[Layout]) -> Scratch {
        Scratch::default()
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, _own: &mut [f32]) -> Result<(), OpError> {
        let mut y = call.results[0];
        let (mut active, mut other) = (call.inputs[0], *call.inputs.last().expect("one operand or two"));
        if let (true, Some(flat_a), Some(flat_b), Some(flat_y)) =
            (self.split, active.flat(), other.flat(), y.flat())
        {
            (active, other, y) = (flat_a, flat_b, flat_y);
        }
        let half = y.ne()[0];
        let (active_offset, other_offset) = match (self.split, self.swapped) {
            (true, _) => (0, 0),
            (false, false) => (0, half),
            (false, true) => (half, 0),
        };
        let (mut left, mut right) = ([0.0; PIECE], [0.0; PIECE]);
        for (row, first, len) in pieces_of(y.layout(), PIECE, worker) {
            let (left, right) = (&mut left[..len], &mut right[..len]);
            active.load(row, active_offset + first, left);
            other.load(row, other_offset + first, right);
            apply(self.function, left, right);
            // SAFETY: pieces are shared out among the workers, each to one.
            unsafe { y.store(row, first, left) }
        }
        Ok(())
    }
}

fn apply(function: GluFunction, active: &mut [f32], other: &[f32]) {
    match function {
        GluFunction::Reglu => zip(active, other, |x| if x < 0.0 { 0.0 } else { x }),
        GluFunction::Geglu => zip(active, other, math::gelu),
        GluFunction::Swiglu => {
            vector::silu_all(active);
            zip(active, other, |x| x);
        }
    }
}

fn zip(active: &mut [f32], other: &[f32], f: impl Fn(f32) -> f32) {
    simd::vectorize(
        #[inline(always)]
        || active.iter_mut().zip(other).for_each(|(a, &b)| *a = f(*a) * b),
    );
}
