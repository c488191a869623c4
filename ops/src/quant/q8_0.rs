//! The Q8_0 block: 32 elements as 8-bit integers with one common scale.
//!
//! Everything that rounds to Q8_0 calls [`quantize_q8_0`], so that reference functions and kernels agree to
//! the bit on scales and integers.
//! Source: the public block layout of ggml's Q8_0 and its rounding.

use super::{Format, Unpacked};
use crate::DType;
use half::f16;

pub(super) const FORMAT: Format = Format { dtype: DType::Q8_0, group_len: Q8_0_BLOCK, unpack, encode };

/// Elements in one block.
pub const Q8_0_BLOCK: usize = 32;

/// Bytes of one stored block.
pub const Q8_0_BYTES: usize = 34;

/// One block: element `i` is `scale · q[i]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockQ8_0 {
    /// What one step of `q` is worth.
    pub scale: f16,
    /// The elements in steps of the scale, −127..=127 when made by [`quantize_q8_0`].
    pub q: [i8; Q8_0_BLOCK],
}

/// Rounds 32 numbers to a block: `d = max|x| / 127`, `q = round(x · (1/d))` with halves away from zero, all
/// in `f32`; the stored scale is `d` rounded to `f16`.
///
/// A block of zeros has scale 0. A NaN or an infinity makes the scale NaN or infinite, so that it cannot
/// vanish in the rounding.
/// So does a finite magnitude past 127 · 65504, the largest `f16`: what is multiplied with such a block is infinite or
/// NaN, and which of them is left open.
#[inline(always)]
pub fn quantize_q8_0(x: &[f32; Q8_0_BLOCK]) -> BlockQ8_0 {
    // Without their sign bit, floats order as integers, with NaN above everything.
    let mut largest = 0;
    for value in x {
        largest = largest.max(value.to_bits() & 0x7FFF_FFFF);
    }
    let step = f32::from_bits(largest) / 127.0;
    let inverse = if step == 0.0 { 0.0 } else { 1.0 / step };
    let mut q = [0; Q8_0_BLOCK];
    for (q, value) in q.iter_mut().zip(x) {
        *q = round_half_away(value * inverse);
    }
    BlockQ8_0 { scale: f16::from_f32(step), q }
}

/// The nearest integer, halves away from zero, of a number no larger than an `i8` can hold. Without a branch
/// or a call, so that kernels may inline it into vector code; other numbers give some integer.
#[inline(always)]
fn round_half_away(x: f32) -> i8 {
    // Adding 1.5 · 2^23 leaves the nearest integer, halves to even, in the low bits.
    const SHIFT: f32 = 12_582_912.0;
    let shifted = x + SHIFT;
    let nearest = shifted.to_bits().wrapping_sub(SHIFT.to_bits()) as i32;
    let short = x - (shifted - SHIFT);
    let away = i32::from(short == 0.5 && x > 0.0) - i32::from(short == -0.5 && x < 0.0);
    nearest.wrapping_add(away) as i8
}

fn unpack(block: &[u8], to: &mut Unpacked) {
    let block = BlockQ8_0::from_bytes(block.try_into().expect("a block of q8_0"));
    (to.scales[0], to.minima[0]) = (block.scale.to_f32(), 0.0);
    to.integers[..Q8_0_BLOCK].copy_from_slice(&block.q);
}

fn encode(values: &[f32], block: &mut [u8]) {
    block.copy_from_slice(&quantize_q8_0(values.try_into().expect("32 values")).to_bytes());
}

impl BlockQ8_0 {
    /// The block as it is stored: the scale, low byte first, then the integers.
    pub fn to_bytes(&self) -> [u8; Q8_0_BYTES] {
        let mut bytes = [0; Q8_0_BYTES];
        bytes[..2].copy_from_slice(&self.scale.to_le_bytes());
        for (byte, q) in bytes[2..].iter_mut().zip(self.q) {
            *byte = q as u8;
        }
        bytes
    }

    /// The block stored in these bytes.
    pub fn from_bytes(bytes: &[u8; Q8_0_BYTES]) -> BlockQ8_0 {
        let mut q = [0; Q8_0_BLOCK];
        for (q, &byte) in q.iter_mut().zip(&bytes[2..]) {
            *q = byte as i8;
        }
        BlockQ8_0 { scale: f16::from_le_bytes([bytes[0], bytes[1]]), q }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_round_away_from_zero() {
        let mut x = [0.0; Q8_0_BLOCK];
        // The largest magnitude is 127, so one step is exactly 1.
        (x[0], x[1], x[2], x[3], x[4]) = (-127.0, 2.5, -2.5, 0.49, 126.5);
        let block = quantize_q8_0(&x);
        assert_eq!(block.scale.to_f32(), 1.0);
        assert_eq!(block.q[..6], [-127, 3, -3, 0, 127, 0]);
    }

    #[test]
    fn rounding_is_that_of_the_standard_library() {
        let halves = (-254..=254).map(|n| n as f32 / 2.0);
        for x in halves.flat_map(|x| [x, x.next_up(), x.next_down()]) {
            assert_eq!(round_half_away(x), x.round() as i8, "{x:e}");
        }
    }

    #[test]
    fn integers_are_made_with_the_unrounded_scale() {
        let mut x = [0.0; Q8_0_BLOCK];
        (x[0], x[1]) = (1.0, 0.5);
        let block = quantize_q8_0(&x);
        // 1/127 as f16 is 0x2008 = 2^-7 · (1 + 8/1024); 0.5 lies at 63.5 steps of the f32 scale.
        assert_eq!(block.scale.to_bits(), 0x2008);
        assert_eq!(block.q[..2], [127, 64]);
    }

    #[test]
    fn zeros_and_values_that_are_no_numbers() {
        assert_eq!(quantize_q8_0(&[0.0; Q8_0_BLOCK]).to_bytes(), [0; Q8_0_BYTES]);
        assert_eq!(quantize_q8_0(&[-0.0; Q8_0_BLOCK]).scale.to_bits(), 0);
        let mut x = [1.0; Q8_0_BLOCK];
        x[7] = f32::NAN;
        assert!(quantize_q8_0(&x).scale.is_nan());
        x[7] = f32::NEG_INFINITY;
        assert!(quantize_q8_0(&x).scale.is_infinite());
        // The inverse of a tiny step overflows; zeros stay zeros.
        let mut tiny = [0.0; Q8_0_BLOCK];
        tiny[0] = 1e-40;
        assert_eq!(quantize_q8_0(&tiny).scale.to_bits(), 0);
    }

    #[test]
    fn bytes_round_trip() {
        let mut x = [0.25; Q8_0_BLOCK];
        x[31] = -3.0;
        let block = quantize_q8_0(&x);
        assert_eq!(BlockQ8_0::from_bytes(&block.to_bytes()), block);
    }
}
