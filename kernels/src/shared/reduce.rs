//! Reductions of a row to one number. The order of the additions depends on the row's length and on the
//! instruction set, which a process chooses once; not on where the row lies or who asks.

use super::call::{self, In};
use super::prefetch::{self, AHEAD_BYTES};
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
const SQUARES_SAFE: std::ops::Range<f32> = 1e-28..1e38;

/// The largest element; NaN is passed over, and −∞ is the largest of nothing.
pub fn max(values: &[f32]) -> f32 {
    simd::arch().dispatch(Row(values, PhantomData::<Max>))
}

/// Sums side by side, so that additions do not wait for each other.
const WIDE_LANES: usize = 64;

/// A sum in `f64` that takes its elements in pieces. Its order depends on the number of elements alone, if every piece
/// but the last is a multiple of [`WIDE_LANES`] long.
struct WideSum {
    lanes: [f64; WIDE_LANES],
    rest: f64,
}

impl WideSum {
    const EMPTY: WideSum = WideSum { lanes: [0.0; WIDE_LANES], rest: 0.0 };

    fn add(&mut self, values: &[f32]) {
        let (chunks, rest) = values.as_chunks::<WIDE_LANES>();
        #[cfg(target_arch = "x86_64")]
        match simd::arch() {
            // SAFETY: the processor has the instructions.
            pulp::Arch::V4(_) => unsafe { add_chunks_avx512(&mut self.lanes, chunks) },
            _ => add_chunks(&mut self.lanes, chunks),
        }
        #[cfg(not(target_arch = "x86_64"))]
        add_chunks(&mut self.lanes, chunks);
        self.rest = rest.iter().fold(self.rest, |sum, &value| sum + f64::from(value));
    }

    fn total(mut self) -> f64 {
        for half in [32, 16, 8, 4, 2, 1] {
            for i in 0..half {
                self.lanes[i] += self.lanes[i + half];
            }
        }
        self.lanes[0] + self.rest
    }
}

fn add_chunks(lanes: &mut [f64; WIDE_LANES], chunks: &[[f32; WIDE_LANES]]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for chunk in chunks {
                for (sum, &value) in lanes.iter_mut().zip(chunk) {
                    *sum += f64::from(value);
                }
            }
        },
    );
}

/// Half-length vectors: three units add or convert those, two the long ones.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl")]
fn add_chunks_avx512(lanes: &mut [f64; WIDE_LANES], chunks: &[[f32; WIDE_LANES]]) {
    use std::arch::x86_64::*;
    let mut sums = [_mm256_setzero_pd(); WIDE_LANES / 4];
    for (sum, lanes) in sums.iter_mut().zip(lanes.as_chunks::<4>().0) {
        // SAFETY: the reference is to four numbers.
        *sum = unsafe { _mm256_loadu_pd(lanes.as_ptr()) };
    }
    for chunk in chunks {
        chunk.as_chunks::<16>().0.iter().for_each(|line| prefetch::ahead(line, AHEAD_BYTES));
        for (sum, values) in sums.iter_mut().zip(chunk.as_chunks::<4>().0) {
            // SAFETY: as above.
            *sum = _mm256_add_pd(*sum, _mm256_cvtps_pd(unsafe { _mm_loadu_ps(values.as_ptr()) }));
        }
    }
    for (sum, lanes) in sums.iter().zip(lanes.as_chunks_mut::<4>().0) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_pd(lanes.as_mut_ptr(), *sum) }
    }
}

/// Σ v, in `f64`.
pub fn sum_f64(values: &[f32]) -> f64 {
    let mut sum = WideSum::EMPTY;
    sum.add(values);
    sum.total()
}

/// Σ of some elements of a row, in `f64`. Not for operands whose memory a result takes over.
pub fn sum_row(x: &In, row: call::Row, elements: Range<usize>) -> f64 {
    match x.f32_row(row) {
        Some(values) => sum_f64(&values[elements]),
        None => sum_loaded(x, row, elements),
    }
}

/// Σ of some elements of a row, in `f64`, through copies of its pieces; the same bits as [`sum_row`].
pub fn sum_loaded(x: &In, row: call::Row, elements: Range<usize>) -> f64 {
    let (mut piece, mut sum) = ([0.0; PIECE], WideSum::EMPTY);
    for first in elements.clone().step_by(PIECE) {
        let values = &mut piece[..PIECE.min(elements.end - first)];
        x.load(row, first, values);
        sum.add(values);
    }
    sum.total()
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
