//! The order of ops that look for largest elements.

/// An integer that orders as the op does: −0 equal to +0, every NaN the same and above +∞.
#[inline(always)]
pub fn key(value: f32) -> i32 {
    let bits = value.to_bits() as i32;
    let ordered = if bits < 0 { i32::MIN.wrapping_sub(bits) } else { bits };
    if value.is_nan() { i32::MAX } else { ordered }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_as_numbers_do() {
        let ascending =
            [f32::NEG_INFINITY, -3e38, -1.0, -1e-45, 0.0, 1e-45, 1.0, 3e38, f32::INFINITY, f32::NAN];
        assert!(ascending.windows(2).all(|pair| key(pair[0]) < key(pair[1])));
        assert_eq!(key(-0.0), key(0.0));
        assert_eq!(key(-f32::NAN), key(f32::NAN));
    }
}
