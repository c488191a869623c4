//! Reductions of a row to one number. The order of the additions depends on the row's length and on the
//! instruction set, which a process chooses once; not on where the row lies or who asks.

use super::call::{self, In};
use super::simd;
use pulp::{Simd, WithSimd};
use std::marker::PhantomData;
use std::ops::Range;

/// Elements copied at a time when a row cannot be read where it lies: 4 KiB, resident in the first-level
/// cache.
pub const PIECE: usize = 1024;

/// One way to fold numbers into one.
trait Fold {
    const START: f32;
    fn step<S: Simd>(simd: S, folded: S::f32s, values: S::f32s) -> S::f32s;
    fn merge<S: Simd>(simd: S, a: S::f32s, b: S::f32s) -> S::f32s;
    fn last<S: Simd>(simd: S, folded: S::f32s) -> f32;
    fn step_one(folded: f32, value: f32) -> f32;
    fn merge_one(a: f32, b: f32) -> f32;
}

struct Sum;
struct SumOfSquares;
struct Max;

impl Fold for Sum {
    const START: f32 = 0.0;
    #[inline(always)]
    fn step<S: Simd>(simd: S, folded: S::f32s, values: S::f32s) -> S::f32s {
        simd.add_f32s(folded, values)
    }
    #[inline(always)]
    fn merge<S: Simd>(simd: S, a: S::f32s, b: S::f32s) -> S::f32s {
        simd.add_f32s(a, b)
    }
    #[inline(always)]
    fn last<S: Simd>(simd: S, folded: S::f32s) -> f32 {
        simd.reduce_sum_f32s(folded)
    }
    #[inline(always)]
    fn step_one(folded: f32, value: f32) -> f32 {
        folded + value
    }
    #[inline(always)]
    fn merge_one(a: f32, b: f32) -> f32 {
        a + b
    }
}

impl Fold for SumOfSquares {
    const START: f32 = 0.0;
    #[inline(always)]
    fn step<S: Simd>(simd: S, folded: S::f32s, values: S::f32s) -> S::f32s {
        simd.mul_add_e_f32s(values, values, folded)
    }
    #[inline(always)]
    fn merge<S: Simd>(simd: S, a: S::f32s, b: S::f32s) -> S::f32s {
        simd.add_f32s(a, b)
    }
    #[inline(always)]
    fn last<S: Simd>(simd: S, folded: S::f32s) -> f32 {
        simd.reduce_sum_f32s(folded)
    }
    #[inline(always)]
    fn step_one(folded: f32, value: f32) -> f32 {
        folded + value * value
    }
    #[inline(always)]
    fn merge_one(a: f32, b: f32) -> f32 {
        a + b
    }
}

impl Fold for Max {
    const START: f32 = f32::NEG_INFINITY;
    #[inline(always)]
    fn step<S: Simd>(simd: S, folded: S::f32s, values: S::f32s) -> S::f32s {
        simd.select_f32s(simd.greater_than_f32s(values, folded), values, folded)
    }
    #[inline(always)]
    fn merge<S: Simd>(simd: S, a: S::f32s, b: S::f32s) -> S::f32s {
        Max::step(simd, a, b)
    }
    #[inline(always)]
    fn last<S: Simd>(simd: S, folded: S::f32s) -> f32 {
        simd.reduce_max_f32s(folded)
    }
    #[inline(always)]
    fn step_one(folded: f32, value: f32) -> f32 {
        if value > folded { value } else { folded }
    }
    #[inline(always)]
    fn merge_one(a: f32, b: f32) -> f32 {
        Max::step_one(a, b)
    }
}

struct Row<'a, F>(&'a [f32], PhantomData<F>);

impl<F: Fold> WithSimd for Row<'_, F> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let (vectors, rest) = S::as_simd_f32s(self.0);
        let mut folded = [simd.splat_f32s(F::START); 4];
        let (fours, singles) = vectors.as_chunks::<4>();
        for four in fours {
            for (folded, &values) in folded.iter_mut().zip(four) {
                *folded = F::step(simd, *folded, values);
            }
        }
        for (folded, &values) in folded.iter_mut().zip(singles) {
            *folded = F::step(simd, *folded, values);
        }
        let [a, b, c, d] = folded;
        let whole = F::last(simd, F::merge(simd, F::merge(simd, a, b), F::merge(simd, c, d)));
        let rest = rest.iter().fold(F::START, |folded, &value| F::step_one(folded, value));
        F::merge_one(whole, rest)
    }
}

/// Σ v, in `f32`.
pub fn sum(values: &[f32]) -> f32 {
    simd::arch().dispatch(Row(values, PhantomData::<Sum>))
}

/// Σ v²: in `f32` vectors where no square can have left the range of normal numbers unseen, in `f64` otherwise.
pub fn sum_of_squares(values: &[f32]) -> f64 {
    let sum = simd::arch().dispatch(Row(values, PhantomData::<SumOfSquares>));
    if SQUARES_SAFE.contains(&sum) {
        return f64::from(sum);
    }
    values.iter().map(|&value| f64::from(value) * f64::from(value)).sum()
}

/// Sums below lose squares that round to 0, sums above may have become infinite.
pub const SQUARES_SAFE: std::ops::Range<f32> = 1e-28..1e38;

/// The largest element; NaN is passed over, and −∞ is the largest of nothing.
pub fn max(values: &[f32]) -> f32 {
    simd::arch().dispatch(Row(values, PhantomData::<Max>))
}

/// Elements whose sum is formed in `f64`.
struct Wide<'a>(&'a [f32]);

/// Elements turned into `f64` at a time.
const WIDENED: usize = 128;

impl WithSimd for Wide<'_> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f64 {
        let mut wide = [0.0; WIDENED];
        let mut sums = [simd.splat_f64s(0.0); 4];
        let mut rest_sum = 0.0;
        for values in self.0.chunks(WIDENED) {
            let wide = &mut wide[..values.len()];
            wide.iter_mut().zip(values).for_each(|(wide, &value)| *wide = f64::from(value));
            let (vectors, rest) = S::as_simd_f64s(wide);
            let (fours, singles) = vectors.as_chunks::<4>();
            for four in fours {
                for (sum, &values) in sums.iter_mut().zip(four) {
                    *sum = simd.add_f64s(*sum, values);
                }
            }
            for (sum, &values) in sums.iter_mut().zip(singles) {
                *sum = simd.add_f64s(*sum, values);
            }
            rest_sum = rest.iter().fold(rest_sum, |sum, value| sum + value);
        }
        let [a, b, c, d] = sums;
        rest_sum + simd.reduce_sum_f64s(simd.add_f64s(simd.add_f64s(a, b), simd.add_f64s(c, d)))
    }
}

/// Σ v, in `f64`.
pub fn sum_f64(values: &[f32]) -> f64 {
    simd::arch().dispatch(Wide(values))
}

/// Σ of some elements of a row, in `f64`. Not for operands whose memory a result takes over.
pub fn sum_row(x: &In, row: call::Row, elements: Range<usize>) -> f64 {
    match x.f32_row(row) {
        Some(values) => values[elements].chunks(PIECE).fold(0.0, |sum, piece| sum + sum_f64(piece)),
        None => sum_loaded(x, row, elements),
    }
}

/// Σ of some elements of a row, in `f64`, through copies of its pieces; the same bits as [`sum_row`].
pub fn sum_loaded(x: &In, row: call::Row, elements: Range<usize>) -> f64 {
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
