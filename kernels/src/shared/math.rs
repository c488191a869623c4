//! Scalar `f32` functions without branches or calls, so that loops over them vectorise.
//! No fused multiply-add: every instruction set gives the same bits.

use std::f32::consts::LOG2_E;

/// 1.5 · 2²³: adding and subtracting it rounds to the nearest integer.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has trailing zeros, so that its product with an integer is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// e^x, within 2 ulp; 0 below −104, ∞ above 88.8, NaN stays NaN.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let clamped = if x > 89.0 { 89.0 } else { x };
    let clamped = if clamped < -104.0 { -104.0 } else { clamped };
    let shifted = clamped * LOG2_E + ROUND;
    let rounded = shifted - ROUND;
    let r = (clamped - rounded * LN2_HIGH) - rounded * LN2_LOW;
    // Taylor-like polynomial of degree 6 on |r| ≤ ln2/2; coefficients by Cephes' expf.
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 5e-1;
    let value = p * (r * r) + r + 1.0;
    // The integer as it lies in the low bits of `shifted`: a cast would saturate, which no vector unit does.
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    // Two factors, so that neither leaves the range of normal numbers.
    let half = n >> 1;
    let scaled = value * power_of_two(half) * power_of_two(n.wrapping_sub(half));
    if x.is_nan() { x } else { scaled }
}

/// 2^n for n in −126..=127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// 1 / (1 + e^−x), through e^−|x|.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    let numerator = if x >= 0.0 { 1.0 } else { e };
    let value = numerator / (1.0 + e);
    if x.is_nan() { x } else { value }
}

/// max(x, 0) + log1p(e^−|x|).
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    let positive = if x > 0.0 { x } else { 0.0 };
    let value = positive + ln_1p(exp(-x.abs()));
    if x.is_nan() { x } else { value }
}

/// ln(1 + x) for 0 ≤ x ≤ 1, within 2 ulp.
///
/// With u = x / (2 + x), ln(1 + x) = 2·artanh(u) = 2u·(1 + u²/3 + u⁴/5 + …), and u ≤ 1/3.
#[inline(always)]
pub fn ln_1p(x: f32) -> f32 {
    let u = x / (2.0 + x);
    let w = u * u;
    let mut p = 1.0 / 17.0;
    p = p * w + 1.0 / 15.0;
    p = p * w + 1.0 / 13.0;
    p = p * w + 1.0 / 11.0;
    p = p * w + 1.0 / 9.0;
    p = p * w + 1.0 / 7.0;
    p = p * w + 1.0 / 5.0;
    p = p * w + 1.0 / 3.0;
    2.0 * u + 2.0 * u * (w * p)
}

/// tanh x, through e^−2|x|; odd, ±1 at the ends.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let magnitude = x.abs();
    // Below 0.3 the quotient would cancel; there the series of tanh is short.
    let s = x * x;
    let series = x + x
        * (s * (-1.0 / 3.0
            + s * (2.0 / 15.0 + s * (-17.0 / 315.0 + s * (62.0 / 2835.0 - s * 1382.0 / 155_925.0)))));
    let e = exp(-2.0 * magnitude);
    let quotient = ((1.0 - e) / (1.0 + e)).copysign(x);
    if magnitude < 0.3 { series } else { quotient }
}

/// x/2 · (1 + tanh(√(2/π)(x + 0.044715 x³))); 0 at −∞.
///
/// (1 + tanh t)/2 = sigmoid(2t), which keeps the left tail.
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    const TWICE_SQRT_2_OVER_PI: f32 = 1.595_769;
    let t = TWICE_SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x);
    if x == f32::NEG_INFINITY { 0.0 } else { x * sigmoid(t) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssmgraph_ops::math as exact;

    /// Largest relative error over a grid, denormal results aside.
    fn worst(f: fn(f32) -> f32, want: fn(f64) -> f64, low: f32, high: f32) -> f64 {
        (0..200_000)
            .map(|i| low + (high - low) * i as f32 / 200_000.0)
            .filter(|&x| want(x as f64).abs() > 1e-37)
            .map(|x| ((f(x) as f64 - want(x as f64)) / want(x as f64)).abs())
            .fold(0.0, f64::max)
    }

    #[test]
    fn errors_are_a_few_ulp() {
        assert!(worst(exp, f64::exp, -87.0, 88.7) < 2.5e-7);
        assert!(worst(sigmoid, exact::sigmoid, -80.0, 80.0) < 3e-7);
        assert!(worst(softplus, exact::softplus, -80.0, 80.0) < 4e-7);
        assert!(worst(ln_1p, f64::ln_1p, 0.0, 1.0) < 3e-7);
        assert!(worst(tanh, f64::tanh, -10.0, 10.0) < 4e-7);
    }

    #[test]
    fn ends_keep_their_values() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(softplus(f32::NEG_INFINITY), 0.0);
        assert_eq!(softplus(f32::INFINITY), f32::INFINITY);
        for f in [exp, sigmoid, softplus, tanh, gelu] {
            assert!(f(f32::NAN).is_nan());
        }
    }
}
