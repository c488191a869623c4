//! Scalar functions with one meaning everywhere, in `f64`. Kernels restate them in `f32`.

/// `max(x, 0) + log1p(exp(−|x|))`: exact to rounding at both ends, where `log(1 + exp(x))` overflows or
/// returns 0.
pub fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p() + if x.is_nan() { x } else { 0.0 }
}

/// `1 / (1 + exp(−x))`, formed through `exp(−|x|)` so that nothing overflows.
pub fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    if x >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) }
}

/// `x · sigmoid(x)`; 0 at −∞.
pub fn silu(x: f64) -> f64 {
    if x == f64::NEG_INFINITY { 0.0 } else { x * sigmoid(x) }
}

/// The tanh approximation of GELU: `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`.
/// Source: Hendrycks & Gimpel 2016, section 2.
pub fn gelu(x: f64) -> f64 {
    if x == f64::NEG_INFINITY {
        return 0.0;
    }
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}
