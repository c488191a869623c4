//! Vector functions for kernels whose loops they decide: fewer operations than those of [`super::math`], with fused
//! multiply-adds, so that their bits depend on the instruction set as those of sums do.
//!
//! They take K vectors at once and do each operation for all of them: a function is a chain of operations that wait for
//! one another, and a processor that sees only a hundred operations ahead would see too few chains.

use super::simd;
use pulp::{Simd, WithSimd};
use std::f32::consts::LOG2_E;

/// 1.5 · 2²³: adding and subtracting it rounds to the nearest integer. With the exponent's bias, the integer's low
/// bits are those of the power of two.
const ROUND: f32 = 12_582_912.0 + 127.0;
/// Bits of a fraction.
const FRACTION_BITS: u32 = 23;
/// ln 2 in two parts; the first has trailing zeros, so that its product with an integer is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Exponents of normal numbers; results below are 0, above ∞.
const LOWEST: f32 = -126.0;
const HIGHEST: f32 = 128.0;

/// K vectors.
type Vectors<S, const K: usize> = [<S as Simd>::f32s; K];

/// 2^t, within 1.5 ulp; 0 below −126, ∞ above 127.5, NaN stays NaN.
#[inline(always)]
pub fn exp2<S: Simd, const K: usize>(simd: S, mut t: Vectors<S, K>) -> Vectors<S, K> {
    let (round, highest) = (simd.splat_f32s(ROUND), simd.splat_f32s(HIGHEST));
    let (mut shifted, mut r) = (t, t);
    for t in &mut t {
        *t = simd.select_f32s(simd.greater_than_f32s(*t, highest), highest, *t);
    }
    for k in 0..K {
        shifted[k] = simd.add_f32s(t[k], round);
    }
    for k in 0..K {
        r[k] = simd.sub_f32s(t[k], simd.sub_f32s(shifted[k], round));
    }
    // (2^r − 1) / r at the Chebyshev points of |r| ≤ ½: a relative error of 1e-8.
    let mut p = [simd.splat_f32s(1.545_316_3e-4); K];
    for coefficient in [1.339_086_3e-3, 9.618_083e-3, 5.550_357e-2, 2.402_265e-1, 6.931_472e-1, 1.0] {
        let coefficient = simd.splat_f32s(coefficient);
        for k in 0..K {
            p[k] = simd.mul_add_e_f32s(p[k], r[k], coefficient);
        }
    }
    scale_up(simd, p, shifted, t)
}

/// value · 2^n, with n in the low bits of `shifted`; 0 where t is below the exponents of normal numbers.
#[inline(always)]
fn scale_up<S: Simd, const K: usize>(
    simd: S,
    mut value: Vectors<S, K>,
    shifted: Vectors<S, K>,
    t: Vectors<S, K>,
) -> Vectors<S, K> {
    let (fraction_bits, lowest) = (simd.splat_u32s(FRACTION_BITS), simd.splat_f32s(LOWEST));
    for k in 0..K {
        let power = simd.wrapping_dyn_shl_u32s(simd.transmute_u32s_f32s(shifted[k]), fraction_bits);
        let scaled = simd.mul_f32s(value[k], simd.transmute_f32s_u32s(power));
        value[k] = simd.select_f32s(simd.less_than_f32s(t[k], lowest), simd.splat_f32s(0.0), scaled);
    }
    value
}

/// e^x for x ≤ 88, within 2 ulp; 0 below −87.3, NaN stays NaN.
#[inline(always)]
fn exp_below_88<S: Simd, const K: usize>(simd: S, x: Vectors<S, K>) -> Vectors<S, K> {
    let round = simd.splat_f32s(ROUND);
    let (mut t, mut shifted, mut r) = (x, x, x);
    for k in 0..K {
        t[k] = simd.mul_f32s(x[k], simd.splat_f32s(LOG2_E));
    }
    for k in 0..K {
        shifted[k] = simd.add_f32s(t[k], round);
    }
    for k in 0..K {
        let n = simd.sub_f32s(shifted[k], round);
        r[k] = simd.mul_add_e_f32s(n, simd.splat_f32s(-LN2_HIGH), x[k]);
        r[k] = simd.mul_add_e_f32s(n, simd.splat_f32s(-LN2_LOW), r[k]);
    }
    // Polynomial of degree 6 on |r| ≤ ln2/2; coefficients by Cephes' expf.
    let mut p = [simd.splat_f32s(1.987_569_1e-4); K];
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1] {
        let coefficient = simd.splat_f32s(coefficient);
        for k in 0..K {
            p[k] = simd.mul_add_e_f32s(p[k], r[k], coefficient);
        }
    }
    for k in 0..K {
        p[k] = simd.mul_add_e_f32s(simd.mul_f32s(r[k], r[k]), p[k], r[k]);
    }
    for value in &mut p {
        *value = simd.add_f32s(*value, simd.splat_f32s(1.0));
    }
    scale_up(simd, p, shifted, t)
}

/// Its difference to the bits of a number are those of the reciprocal, within 5.1 %.
const RECIPROCAL: u32 = 0x7EF3_11C7;

/// 1 / (d + e) for 1 ≤ d + e ≤ 2^125, within 1.5 ulp; NaN stays NaN. A division would take as long as an exponential.
#[inline(always)]
fn reciprocal<S: Simd, const K: usize>(simd: S, d: f32, e: Vectors<S, K>) -> Vectors<S, K> {
    let (d, one, magic) = (simd.splat_f32s(d), simd.splat_f32s(1.0), simd.splat_u32s(RECIPROCAL));
    let (mut sum, mut r, mut h) = (e, e, e);
    for k in 0..K {
        sum[k] = simd.add_f32s(d, e[k]);
    }
    for k in 0..K {
        let bits = simd.sub_u32s(magic, simd.transmute_u32s_f32s(sum[k]));
        r[k] = simd.transmute_f32s_u32s(bits);
    }
    // An error h becomes h³, and then h².
    for k in 0..K {
        h[k] = simd.negate_mul_add_e_f32s(sum[k], r[k], one);
    }
    for h in &mut h {
        *h = simd.mul_add_e_f32s(*h, *h, *h);
    }
    for k in 0..K {
        r[k] = simd.mul_add_e_f32s(r[k], h[k], r[k]);
    }
    for k in 0..K {
        h[k] = simd.negate_mul_add_e_f32s(sum[k], r[k], one);
    }
    for k in 0..K {
        r[k] = simd.mul_add_e_f32s(r[k], h[k], r[k]);
    }
    r
}

/// Where e^−x would near the end of the range of numbers, sigmoid and SiLU are 0 within 4e-36.
const SIGMOID_LOWEST: f32 = -86.0;

/// 1 / (1 + e^−x), within 4 ulp above −86.
#[inline(always)]
pub fn sigmoid<S: Simd, const K: usize>(simd: S, x: Vectors<S, K>) -> Vectors<S, K> {
    let mut negative = at_least(simd, SIGMOID_LOWEST, x);
    for x in &mut negative {
        *x = simd.neg_f32s(*x);
    }
    reciprocal(simd, 1.0, exp_below_88(simd, negative))
}

/// x · sigmoid(x), within 4 ulp above −86; −∞ is as −86.
#[inline(always)]
pub fn silu<S: Simd, const K: usize>(simd: S, x: Vectors<S, K>) -> Vectors<S, K> {
    let x = at_least(simd, SIGMOID_LOWEST, x);
    let mut y = sigmoid(simd, x);
    for k in 0..K {
        y[k] = simd.mul_f32s(x[k], y[k]);
    }
    y
}

/// max(x, 0) + log1p(e^−|x|).
///
/// With u = e / (2 + e), log1p(e) = 2·artanh(u) = 2u·(1 + u²/3 + u⁴/5 + …), and u ≤ 1/3.
#[inline(always)]
pub fn softplus<S: Simd, const K: usize>(simd: S, x: Vectors<S, K>) -> Vectors<S, K> {
    let mut u = x;
    for u in &mut u {
        *u = simd.neg_f32s(simd.abs_f32s(*u));
    }
    let e = exp_below_88(simd, u);
    let inverse = reciprocal(simd, 2.0, e);
    let mut w = u;
    for k in 0..K {
        u[k] = simd.mul_f32s(e[k], inverse[k]);
        w[k] = simd.mul_f32s(u[k], u[k]);
    }
    let mut p = [simd.splat_f32s(1.0 / 17.0); K];
    for odd in [15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        let coefficient = simd.splat_f32s(1.0 / odd);
        for k in 0..K {
            p[k] = simd.mul_add_e_f32s(p[k], w[k], coefficient);
        }
    }
    let mut y = at_least(simd, 0.0, x);
    for k in 0..K {
        let twice = simd.add_f32s(u[k], u[k]);
        y[k] = simd.add_f32s(y[k], simd.mul_add_e_f32s(twice, simd.mul_f32s(w[k], p[k]), twice));
    }
    y
}

/// [`silu`] of every element: the bits that kernels with a SiLU of their own give.
pub fn silu_all(values: &mut [f32]) {
    simd::arch().dispatch(All::<true>(values));
}

/// [`sigmoid`] of every element.
pub fn sigmoid_all(values: &mut [f32]) {
    simd::arch().dispatch(All::<false>(values));
}

struct All<'a, const SILU: bool>(&'a mut [f32]);

impl<const SILU: bool> WithSimd for All<'_, SILU> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (vectors, rest) = S::as_mut_simd_f32s(self.0);
        let (fours, singles) = vectors.as_chunks_mut::<4>();
        for four in fours {
            *four = if SILU { silu(simd, *four) } else { sigmoid(simd, *four) };
        }
        for single in singles {
            [*single] = if SILU { silu(simd, [*single]) } else { sigmoid(simd, [*single]) };
        }
        if !rest.is_empty() {
            let last = [simd.partial_load_f32s(rest)];
            let [last] = if SILU { silu(simd, last) } else { sigmoid(simd, last) };
            simd.partial_store_f32s(rest, last);
        }
    }
}

/// The greater one; NaN stays NaN.
#[inline(always)]
fn at_least<S: Simd, const K: usize>(simd: S, least: f32, mut x: Vectors<S, K>) -> Vectors<S, K> {
    let least = simd.splat_f32s(least);
    for x in &mut x {
        *x = simd.select_f32s(simd.less_than_f32s(*x, least), least, *x);
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssmgraph_ops::math as exact;

    #[derive(Clone, Copy)]
    enum Function {
        Exp2,
        Exp,
        Sigmoid,
        Silu,
        Softplus,
    }

    struct Apply<'a>(Function, &'a mut [f32]);

    impl WithSimd for Apply<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            for value in S::as_mut_simd_f32s(self.1).0 {
                *value = match self.0 {
                    Function::Exp2 => exp2(simd, [*value])[0],
                    Function::Exp => exp_below_88(simd, [*value])[0],
                    Function::Sigmoid => sigmoid(simd, [*value])[0],
                    Function::Silu => silu(simd, [*value])[0],
                    Function::Softplus => softplus(simd, [*value])[0],
                };
            }
        }
    }

    fn of(function: Function, x: f32) -> f32 {
        let mut values = [x; 16];
        simd::arch().dispatch(Apply(function, &mut values));
        values[0]
    }

    /// Largest relative error over a grid.
    fn worst(function: Function, want: fn(f64) -> f64, low: f32, high: f32) -> f64 {
        let grid: Vec<f32> = (0..200_000).map(|i| low + (high - low) * i as f32 / 200_000.0).collect();
        let mut got = grid.clone();
        simd::arch().dispatch(Apply(function, &mut got));
        let errors = got.iter().zip(grid).map(|(&got, x)| (f64::from(got) / want(f64::from(x)) - 1.0).abs());
        errors.fold(0.0, f64::max)
    }

    #[test]
    fn errors_are_a_few_ulp() {
        assert!(worst(Function::Exp2, f64::exp2, -125.9, 127.4) < 1.5e-7);
        assert!(worst(Function::Exp, f64::exp, -87.0, 88.0) < 2.5e-7);
        assert!(worst(Function::Sigmoid, exact::sigmoid, -85.9, 80.0) < 4e-7);
        assert!(worst(Function::Silu, exact::silu, -85.9, 80.0) < 4e-7);
        assert!(worst(Function::Softplus, exact::softplus, -80.0, 80.0) < 4e-7);
    }

    #[test]
    fn ends_keep_their_values() {
        let infinity = f32::INFINITY;
        assert_eq!(
            [0.0, -infinity, -127.0, infinity].map(|t| of(Function::Exp2, t)),
            [1.0, 0.0, 0.0, infinity]
        );
        assert_eq!([0.0, -infinity, -200.0].map(|x| of(Function::Exp, x)), [1.0, 0.0, 0.0]);
        assert_eq!([-infinity, infinity].map(|x| of(Function::Softplus, x)), [0.0, infinity]);
        assert_eq!([0.0, infinity].map(|x| of(Function::Silu, x)), [0.0, infinity]);
        assert!([-infinity, -1e30].iter().all(|&x| of(Function::Silu, x).abs() < 4e-36));
        use Function::*;
        for function in [Exp2, Exp, Sigmoid, Silu, Softplus] {
            assert!(of(function, f32::NAN).is_nan());
        }
    }
}
