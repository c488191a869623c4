//! One pass over each row in pieces: the largest order key of a piece is found with vectors, and only the
//! piece that first holds the largest of all is searched for its place.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, In, Row, rows_of};
use crate::shared::order::key;
use crate::shared::pool::Worker;
use crate::shared::reduce::PIECE;
use crate::shared::simd;
use ssmgraph_ops::{Argmax, Layout, OpError};

impl CpuKernel for Argmax {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], _results: &[Layout]) -> usize {
        inputs[0].elements() / 8
    }

    fn scratch(&self, _inputs: &[Layout], _results: &[Layout]) -> Scratch {
        Scratch::default()
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, _own: &mut [f32]) -> Result<(), OpError> {
        let (x, y) = (&call.inputs[0], &call.results[0]);
        for row @ [i1, i2, i3] in rows_of(x.layout(), worker) {
            // SAFETY: rows are shared out among the workers, each to one.
            unsafe { y.set_int(i1, [i2, i3, 0], place_of_largest(x, row) as i64) }
        }
        Ok(())
    }
}

fn place_of_largest(x: &In, row: Row) -> usize {
    match x.f32_row(row) {
        Some(values) => {
            search(values.len(), |first, look| look(&values[first..values.len().min(first + PIECE)]))
        }
        None => {
            let mut piece = [0.0; PIECE];
            search(x.ne()[0], |first, look| {
                let values = &mut piece[..PIECE.min(x.ne()[0] - first)];
                x.load(row, first, values);
                look(values);
            })
        }
    }
}

/// The least place with the largest key; `with_piece` shows the piece that starts at an element.
fn search(length: usize, mut with_piece: impl FnMut(usize, &mut dyn FnMut(&[f32]))) -> usize {
    let (mut best, mut start) = (i32::MIN, 0);
    for first in (0..length).step_by(PIECE) {
        with_piece(first, &mut |values| {
            let largest = largest_key(values);
            if largest > best {
                (best, start) = (largest, first);
            }
        });
    }
    let mut place = start;
    with_piece(start, &mut |values| {
        place += values.iter().position(|&value| key(value) == best).expect("the piece holds its largest");
    });
    place
}

/// Elements compared side by side.
const LANES: usize = 64;

fn largest_key(values: &[f32]) -> i32 {
    simd::vectorize(
        #[inline(always)]
        || {
            let mut best = [i32::MIN; LANES];
            let (chunks, rest) = values.as_chunks::<LANES>();
            for chunk in chunks {
                for (best, &value) in best.iter_mut().zip(chunk) {
                    *best = (*best).max(key(value));
                }
            }
            let best = best.into_iter().fold(i32::MIN, i32::max);
            rest.iter().fold(best, |best, &value| best.max(key(value)))
        },
    )
}
