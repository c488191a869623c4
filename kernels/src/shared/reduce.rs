//! Reductions of a row to one number, in an order that depends on the row's length alone: element i goes to
//! lane i mod L, and the lanes are folded in halves. Every instruction set gives the same bits.

use super::call::{In, Row};
use super::simd;
use std::ops::Range;

/// Elements copied at a time when a row cannot be read where it lies: 4 KiB, resident in the first-level
/// cache.
pub const PIECE: usize = 1024;

/// Folds `values` into `L` lanes and the lanes into one.
#[inline(always)]
pub fn fold<A: Copy, const L: usize>(
    values: &[f32],
    start: A,
    step: impl Fn(A, f32) -> A,
    merge: impl Fn(A, A) -> A,
) -> A {
    let mut lanes = [start; L];
    let (chunks, rest) = values.as_chunks::<L>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = step(*lane, value);
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane = step(*lane, value);
    }
    let mut width = L / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] = merge(lanes[lane], lanes[lane + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// Σ v, in `f32`.
#[inline(always)]
pub fn sum(values: &[f32]) -> f32 {
    fold::<f32, 64>(values, 0.0, |sum, v| sum + v, |a, b| a + b)
}

/// Σ v², in `f32`.
#[inline(always)]
pub fn sum_of_squares(values: &[f32]) -> f32 {
    fold::<f32, 64>(values, 0.0, |sum, v| sum + v * v, |a, b| a + b)
}

/// The largest element; NaN is passed over, and −∞ is the largest of nothing.
#[inline(always)]
pub fn max(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    fold::<f32, 64>(values, f32::NEG_INFINITY, larger, larger)
}

fn sum_f64(values: &[f32]) -> f64 {
    simd::vectorize(
        #[inline(always)]
        || fold::<f64, 32>(values, 0.0, |sum, v| sum + f64::from(v), |a, b| a + b),
    )
}

/// Σ of some elements of a row, in `f64`. Not for operands whose memory a result takes over.
pub fn sum_row(x: &In, row: Row, elements: Range<usize>) -> f64 {
    match x.f32_row(row) {
        Some(values) => values[elements].chunks(PIECE).fold(0.0, |sum, piece| sum + sum_f64(piece)),
        None => sum_loaded(x, row, elements),
    }
}

/// Σ of some elements of a row, in `f64`, through copies of its pieces; the same bits as [`sum_row`].
pub fn sum_loaded(x: &In, row: Row, elements: Range<usize>) -> f64 {
    let mut piece = [0.0; PIECE];
    let mut sum = 0.0;
    for first in elements.clone().step_by(PIECE) {
        let values = &mut piece[..PIECE.min(elements.end - first)];
        x.load(row, first, values);
        sum += sum_f64(values);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_and_rest_are_all_counted() {
        for length in [0, 1, 31, 32, 63, 64, 65, 200, 1025] {
            let values: Vec<f32> = (1..=length).map(|i| i as f32).collect();
            let total = (length * (length + 1) / 2) as f32;
            assert_eq!(sum(&values), total);
            assert_eq!(sum_f64(&values), f64::from(total));
            assert_eq!(max(&values), if length == 0 { f32::NEG_INFINITY } else { length as f32 });
        }
        assert_eq!(sum_of_squares(&[3.0, -4.0]), 25.0);
    }
}
