//! Vector functions for kernels whose loops they decide: fewer operations than those of [`super::math`], with fused
//! multiply-adds, so that their bits depend on the instruction set as those of sums do.

use pulp::Simd;
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

/// 2^t, within 1.5 ulp; 0 below −126, ∞ above 127.5, NaN stays NaN.
#[inline(always)]
pub fn exp2<S: Simd>(simd: S, t: S::f32s) -> S::f32s {
    let highest = simd.splat_f32s(HIGHEST);
    let clamped = simd.select_f32s(simd.greater_than_f32s(t, highest), highest, t);
    let shifted = simd.add_f32s(clamped, simd.splat_f32s(ROUND));
    let r = simd.sub_f32s(clamped, simd.sub_f32s(shifted, simd.splat_f32s(ROUND)));
    // (2^r − 1) / r at the Chebyshev points of |r| ≤ ½: a relative error of 1e-8.
    let mut p = simd.splat_f32s(1.545_316_3e-4);
    for coefficient in [1.339_086_3e-3, 9.618_083e-3, 5.550_357e-2, 2.402_265_1e-1, 6.931_472e-1, 1.0] {
        p = simd.mul_add_e_f32s(p, r, simd.splat_f32s(coefficient));
    }
    scale_up(simd, p, shifted, clamped)
}

/// value · 2^n, with n in the low bits of `shifted`; 0 where t is below the exponents of normal numbers.
#[inline(always)]
fn scale_up<S: Simd>(simd: S, value: S::f32s, shifted: S::f32s, t: S::f32s) -> S::f32s {
    let bits = simd.transmute_u32s_f32s(shifted);
    let power = simd.wrapping_dyn_shl_u32s(bits, simd.splat_u32s(FRACTION_BITS));
    let scaled = simd.mul_f32s(value, simd.transmute_f32s_u32s(power));
    simd.select_f32s(simd.less_than_f32s(t, simd.splat_f32s(LOWEST)), simd.splat_f32s(0.0), scaled)
}

/// e^x for x ≤ 88, within 2 ulp; 0 below −87.3, NaN stays NaN.
#[inline(always)]
fn exp_below_88<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let t = simd.mul_f32s(x, simd.splat_f32s(LOG2_E));
    let shifted = simd.add_f32s(t, simd.splat_f32s(ROUND));
    let n = simd.sub_f32s(shifted, simd.splat_f32s(ROUND));
    let r = simd.mul_add_e_f32s(n, simd.splat_f32s(-LN2_HIGH), x);
    let r = simd.mul_add_e_f32s(n, simd.splat_f32s(-LN2_LOW), r);
    // Polynomial of degree 6 on |r| ≤ ln2/2; coefficients by Cephes' expf.
    let mut p = simd.splat_f32s(1.987_569_1e-4);
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1] {
        p = simd.mul_add_e_f32s(p, r, simd.splat_f32s(coefficient));
    }
    let value = simd.mul_add_e_f32s(simd.mul_f32s(r, r), p, r);
    scale_up(simd, simd.add_f32s(value, simd.splat_f32s(1.0)), shifted, t)
}

/// Where e^−x would leave the range of numbers, sigmoid and SiLU are 0 within 2e-36.
const SIGMOID_LOWEST: f32 = -87.0;

/// 1 / (1 + e^−x), within 4 ulp above −87.
#[inline(always)]
pub fn sigmoid<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let x = at_least(simd, SIGMOID_LOWEST, x);
    let e = exp_below_88(simd, simd.neg_f32s(x));
    simd.div_f32s(simd.splat_f32s(1.0), simd.add_f32s(e, simd.splat_f32s(1.0)))
}

/// x · sigmoid(x), within 4 ulp above −87; −∞ is as −87.
#[inline(always)]
pub fn silu<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let x = at_least(simd, SIGMOID_LOWEST, x);
    let e = exp_below_88(simd, simd.neg_f32s(x));
    simd.div_f32s(x, simd.add_f32s(e, simd.splat_f32s(1.0)))
}

/// max(x, 0) + log1p(e^−|x|).
///
/// With u = e / (2 + e), log1p(e) = 2·artanh(u) = 2u·(1 + u²/3 + u⁴/5 + …), and u ≤ 1/3.
#[inline(always)]
pub fn softplus<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let e = exp_below_88(simd, simd.neg_f32s(simd.abs_f32s(x)));
    let u = simd.div_f32s(e, simd.add_f32s(e, simd.splat_f32s(2.0)));
    let w = simd.mul_f32s(u, u);
    let mut p = simd.splat_f32s(1.0 / 17.0);
    for odd in [15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        p = simd.mul_add_e_f32s(p, w, simd.splat_f32s(1.0 / odd));
    }
    let twice = simd.add_f32s(u, u);
    let log = simd.mul_add_e_f32s(twice, simd.mul_f32s(w, p), twice);
    simd.add_f32s(at_least(simd, 0.0, x), log)
}

/// The greater one; NaN stays NaN.
#[inline(always)]
fn at_least<S: Simd>(simd: S, least: f32, x: S::f32s) -> S::f32s {
    let least = simd.splat_f32s(least);
    simd.select_f32s(simd.less_than_f32s(x, least), least, x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::simd;
    use pulp::WithSimd;
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
                    Function::Exp2 => exp2(simd, *value),
                    Function::Exp => exp_below_88(simd, *value),
                    Function::Sigmoid => sigmoid(simd, *value),
                    Function::Silu => silu(simd, *value),
                    Function::Softplus => softplus(simd, *value),
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
        assert!(worst(Function::Sigmoid, exact::sigmoid, -86.0, 80.0) < 4e-7);
        assert!(worst(Function::Silu, exact::silu, -86.0, 80.0) < 4e-7);
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
        assert!([-infinity, -1e30].iter().all(|&x| of(Function::Silu, x).abs() < 2e-36));
        use Function::*;
        for function in [Exp2, Exp, Sigmoid, Silu, Softplus] {
            assert!(of(function, f32::NAN).is_nan());
        }
    }
}
