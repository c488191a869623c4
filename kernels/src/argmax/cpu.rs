//! One pass over each row in pieces: the largest element of a piece is found with vectors, NaN passed over, and only
//! the piece that first holds the largest of all is searched for its place. The pass also finds the largest magnitude
//! as an integer, which is past infinity's where there is a NaN: the first NaN is the largest then.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, In, Row, rows_of};
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
        Some(values) => simd::vectorize(
            #[inline(always)]
            || search(values.len(), |first, look| look(&values[first..values.len().min(first + PIECE)])),
        ),
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

/// The least place with the largest element; `with_piece` shows the piece that starts at an element.
#[inline(always)]
fn search(length: usize, mut with_piece: impl FnMut(usize, &mut dyn FnMut(&[f32]))) -> usize {
    let (mut best, mut start) = (f32::NEG_INFINITY, 0);
    for first in (0..length).step_by(PIECE) {
        with_piece(first, &mut |values| {
            let largest = largest(values);
            // A NaN is no less than anything that came before, unless that is one.
            if !best.is_nan() && (largest > best || largest.is_nan()) {
                (best, start) = (largest, first);
            }
        });
    }
    let mut place = start;
    with_piece(start, &mut |values| {
        let found =
            if best.is_nan() { find(values, f32::is_nan) } else { find(values, |value| value == best) };
        place += found.expect("the piece holds its largest");
    });
    place
}

/// Elements compared side by side.
const LANES: usize = 64;

/// The largest element, or NaN where there is one.
fn largest(values: &[f32]) -> f32 {
    simd::vectorize(
        #[inline(always)]
        || {
            let (mut best, mut magnitude) = ([f32::NEG_INFINITY; LANES], [0; LANES]);
            let (chunks, rest) = values.as_chunks::<LANES>();
            for chunk in chunks {
                for ((best, magnitude), &value) in best.iter_mut().zip(&mut magnitude).zip(chunk) {
                    *best = if value > *best { value } else { *best };
                    *magnitude = (*magnitude).max(bits_of_magnitude(value));
                }
            }
            let mut folded = best.into_iter().fold(f32::NEG_INFINITY, |best, value| best.max(value));
            let mut bits = magnitude.into_iter().fold(0, i32::max);
            for &value in rest {
                folded = if value > folded { value } else { folded };
                bits = bits.max(bits_of_magnitude(value));
            }
            if bits > INFINITY_BITS { f32::NAN } else { folded }
        },
    )
}

const INFINITY_BITS: i32 = f32::INFINITY.to_bits() as i32;

/// |value| as an integer: orders as magnitudes do, NaN above infinity.
#[inline(always)]
fn bits_of_magnitude(value: f32) -> i32 {
    (value.to_bits() & (u32::MAX >> 1)) as i32
}

/// The place of the first element that is wanted.
fn find(values: &[f32], wanted: impl Fn(f32) -> bool) -> Option<usize> {
    simd::vectorize(
        #[inline(always)]
        || {
            let holds = |chunk: &&[f32]| chunk.iter().fold(false, |found, &value| found | wanted(value));
            let (number, chunk) = values.chunks(LANES).enumerate().find(|(_, chunk)| holds(chunk))?;
            chunk.iter().position(|&value| wanted(value)).map(|place| number * LANES + place)
        },
    )
}
