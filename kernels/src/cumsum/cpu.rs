//! Running sums in `f64`, rounded one by one. Blocks of eight are summed within themselves in three steps and
//! then added to the carry, so that the chain from element to element is one addition per block. Long rows
//! are cut into pieces of a fixed length: their sums first, then each piece from the sum of those before it.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, In, Out, Row, rows_of};
use crate::shared::pool::Worker;
use crate::shared::reduce::{PIECE, sum_loaded};
use crate::shared::simd;
use ssmgraph_ops::{Cumsum, Layout, OpError};
use std::ops::Range;

/// Elements of a row that one worker takes: longer rows are cut.
const LONG: usize = 32_768;

impl CpuKernel for Cumsum {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], _results: &[Layout]) -> usize {
        inputs[0].elements() / 2
    }

    fn scratch(&self, inputs: &[Layout], _results: &[Layout]) -> Scratch {
        let pieces = inputs[0].ne[0].div_ceil(LONG);
        let shared_bytes =
            if pieces > 1 { inputs[0].rows().saturating_mul(pieces).saturating_mul(8) } else { 0 };
        Scratch { shared_bytes, own_floats: 0 }
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, _own: &mut [f32]) -> Result<(), OpError> {
        let (x, y) = (&call.inputs[0], &call.results[0]);
        let length = x.ne()[0];
        let pieces = length.div_ceil(LONG);
        if pieces <= 1 {
            for row in rows_of(x.layout(), worker) {
                // SAFETY: rows are shared out among the workers, each to one.
                unsafe { running_sums(x, y, row, 0..length, 0.0) }
            }
            return Ok(());
        }
        let units = worker.share(x.layout().rows() * pieces);
        let place = |unit: usize| {
            let first = unit % pieces * LONG;
            (x.layout().row_index(unit / pieces), first..length.min(first + LONG))
        };
        for unit in units.clone() {
            let (row, elements) = place(unit);
            // SAFETY: each piece is one worker's.
            unsafe { call.shared.set_f64(unit, sum_loaded(x, row, elements)) }
        }
        worker.barrier();
        for unit in units {
            let (row, elements) = place(unit);
            // SAFETY: all sums were written before the barrier; each piece is one worker's.
            unsafe {
                let before = call.shared.f64s(unit - unit % pieces..unit);
                let carry = before.fold(0.0, |carry, sum| carry + sum);
                running_sums(x, y, row, elements, carry);
            }
        }
        Ok(())
    }
}

/// # Safety
/// No other worker touches these elements of `y` until the next barrier.
unsafe fn running_sums(x: &In, y: &Out, row: Row, elements: Range<usize>, mut carry: f64) {
    let mut piece = [0.0; PIECE];
    for first in elements.clone().step_by(PIECE) {
        let values = &mut piece[..PIECE.min(elements.end - first)];
        x.load(row, first, values);
        carry = simd::vectorize(
            #[inline(always)]
            || scan(values, carry),
        );
        // SAFETY: by the function's contract.
        unsafe { y.store(row, first, values) }
    }
}

/// Turns elements into sums that start from `carry`; returns the last one. Only ever adds what lies before,
/// so that an infinity reaches no earlier sum.
#[inline(always)]
fn scan(values: &mut [f32], mut carry: f64) -> f64 {
    let (blocks, rest) = values.as_chunks_mut::<8>();
    for block in blocks {
        let mut sums = block.map(f64::from);
        for distance in [1, 2, 4] {
            let before = sums;
            for i in distance..8 {
                sums[i] = before[i - distance] + before[i];
            }
        }
        for (value, sum) in block.iter_mut().zip(sums) {
            *value = (carry + sum) as f32;
        }
        carry += sums[7];
    }
    for value in rest {
        carry += f64::from(*value);
        *value = carry as f32;
    }
    carry
}
