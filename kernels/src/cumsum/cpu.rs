//! Running sums, see [`super::scan`]. Long rows are cut into pieces of a fixed length: their sums first, then each piece
//! from the sum of those before it. Two forms: the conversions to `f64` and back are most of the time of the first.

use super::scan;
use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::numerics::{Numerics, Variant};
use crate::shared::call::{Call, Row, rows_of};
use crate::shared::pool::Worker;
use crate::shared::reduce::{PIECE, sum_loaded};
use crate::shared::stream;
use ssmgraph_ops::{Cumsum, Layout, OpError};
use std::ops::Range;

/// Elements of a row that one worker takes: longer rows are cut.
const LONG: usize = 32_768;
/// Pieces of each worker between two meetings.
const PIECES_AT_ONCE: usize = 4;

const VARIANTS: [Variant; 2] = [
    Variant { name: "f64", numerics: Numerics::Exact, about: "every sum is in f64" },
    Variant {
        name: "f32_blocks",
        numerics: Numerics::Fast,
        about: "sums inside a block of 16 are in f32, those of whole blocks in f64",
    },
];
/// Place of `f32_blocks`.
const F32_BLOCKS: usize = 1;

impl CpuKernel for Cumsum {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn variants(&self) -> &'static [Variant] {
        &VARIANTS
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
        let x = &call.inputs[0];
        let length = x.ne()[0];
        let pieces = length.div_ceil(LONG);
        if pieces <= 1 {
            for row in rows_of(x.layout(), worker) {
                // SAFETY: rows are shared out among the workers, each to one.
                unsafe { running_sums(call, row, 0..length, 0.0) }
            }
            return Ok(());
        }
        let place = |unit: usize| {
            let first = unit % pieces * LONG;
            (x.layout().row_index(unit / pieces), first..length.min(first + LONG))
        };
        // A few pieces of each worker at a time, so that they are still in the cache when they are read again.
        let units = x.layout().rows() * pieces;
        let together = PIECES_AT_ONCE * worker.count;
        let mut carry = 0.0;
        for begin in (0..units).step_by(together) {
            let round = begin..units.min(begin + together);
            let share = worker.share(round.len());
            let share = begin + share.start..begin + share.end;
            for unit in share.clone() {
                let (row, elements) = place(unit);
                // SAFETY: each piece is one worker's.
                unsafe { call.shared.set_f64(unit, sum_loaded(x, row, elements)) }
            }
            worker.barrier();
            for unit in round {
                if unit % pieces == 0 {
                    carry = 0.0;
                }
                // SAFETY: the sums of this piece and of all before it were written before the barrier; each piece is
                // one worker's.
                unsafe {
                    if share.contains(&unit) {
                        let (row, elements) = place(unit);
                        running_sums(call, row, elements, carry);
                    }
                    carry += call.shared.f64s(unit..unit + 1).sum::<f64>();
                }
            }
        }
        Ok(())
    }
}

/// # Safety
/// No other worker touches these elements of `y` until the next barrier.
unsafe fn running_sums(call: &Call, row: Row, elements: Range<usize>, mut carry: f64) {
    let (x, y) = (&call.inputs[0], &call.results[0]);
    let scan = if call.variant == F32_BLOCKS { scan::narrow } else { scan::wide };
    // What is too large to stay in the caches only costs reading before it is overwritten.
    let past_caches = y.layout().span_bytes() >= stream::BYTES_MIN;
    let mut piece = [0.0; PIECE];
    for first in elements.clone().step_by(PIECE) {
        let count = PIECE.min(elements.end - first);
        let piece = &mut piece[..count];
        // SAFETY: the pointers reach as many elements of the row, and x's and y's are the same or apart; nobody else
        // writes them, by the function's contract.
        unsafe {
            match (x.f32_pointer(row, first..first + count), y.f32_pointer(row, first..first + count)) {
                (Some(source), Some(target)) if !past_caches => carry = scan(source, target, count, carry),
                (Some(source), Some(target)) => {
                    carry = scan(source, piece.as_mut_ptr(), count, carry);
                    stream::write(target, piece);
                }
                _ => {
                    x.load(row, first, piece);
                    carry = scan(piece.as_ptr(), piece.as_mut_ptr(), count, carry);
                    y.store(row, first, piece);
                }
            }
        }
    }
    if past_caches {
        stream::finish();
    }
}
