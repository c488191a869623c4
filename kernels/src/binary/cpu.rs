//! One pass in pieces that stay in the first-level cache. Rows of b are read in place where they can be;
//! shorter rows are repeated into a piece first.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, In, Row, pieces_of, repeat_row};
use crate::shared::pool::Worker;
use crate::shared::simd;
use ssmgraph_ops::binary::{Binary, BinaryFunction};
use ssmgraph_ops::{Layout, OpError};

/// Elements handled at a time: 2 KiB of each operand, resident in the first-level cache.
const PIECE: usize = 512;

impl CpuKernel for Binary {
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
        let (mut a, mut b, mut y) = (call.inputs[0], call.inputs[1], call.results[0]);
        let same_shape = a.ne() == b.ne();
        if let (true, Some(flat_a), Some(flat_b), Some(flat_y)) = (same_shape, a.flat(), b.flat(), y.flat()) {
            (a, b, y) = (flat_a, flat_b, flat_y);
        }
        let (mut left, mut right) = ([0.0; PIECE], [0.0; PIECE]);
        for (row, first, len) in pieces_of(y.layout(), PIECE, worker) {
            let left = &mut left[..len];
            a.load(row, first, left);
            let b_row = repeat_row(row, b.ne());
            match b.f32_row(b_row).filter(|_| b.ne()[0] == a.ne()[0]) {
                Some(values) => apply(self.function, left, &values[first..first + len]),
                None => {
                    load_repeated(&b, b_row, first, &mut right[..len]);
                    apply(self.function, left, &right[..len]);
                }
            }
            // SAFETY: pieces are shared out among the workers, each to one.
            unsafe { y.store(row, first, left) }
        }
        Ok(())
    }
}

/// Elements `first..` of a row of b, repeated without end.
pub(crate) fn load_repeated(b: &In, row: Row, first: usize, target: &mut [f32]) {
    let row_len = b.ne()[0];
    if row_len == 1 {
        let mut one = [0.0];
        b.load(row, 0, &mut one);
        target.fill(one[0]);
        return;
    }
    let mut done = 0;
    while done < target.len() {
        let from = (first + done) % row_len;
        let count = (row_len - from).min(target.len() - done);
        b.load(row, from, &mut target[done..done + count]);
        done += count;
    }
}

fn apply(function: BinaryFunction, left: &mut [f32], right: &[f32]) {
    match function {
        BinaryFunction::Add => zip(left, right, |a, b| a + b),
        BinaryFunction::Sub => zip(left, right, |a, b| a - b),
        BinaryFunction::Mul => zip(left, right, |a, b| a * b),
        BinaryFunction::Div => zip(left, right, |a, b| a / b),
    }
}

fn zip(left: &mut [f32], right: &[f32], f: impl Fn(f32, f32) -> f32) {
    simd::vectorize(
        #[inline(always)]
        || left.iter_mut().zip(right).for_each(|(a, &b)| *a = f(*a, b)),
    );
}
