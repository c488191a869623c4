//! The Q4_0 block: 32 elements of 4 bits with one common scale.
//!
//! Bytes: the scale d (f16), then 16 bytes; element j is the low half of byte j for j < 16, the high half of byte
//! j − 16 from there on, and means (half − 8) · d.
//! Source: the public block layout of ggml's Q4_0 and its rounding.

use super::{Format, Unpacked, f16_of, inverse, largest};
use crate::DType;
use half::f16;

pub(super) const FORMAT: Format = Format { dtype: DType::Q4_0, group_len: LEN, unpack, encode };

const LEN: usize = 32;

fn unpack(block: &[u8], to: &mut Unpacked) {
    (to.scales[0], to.minima[0]) = (f16_of(block), 0.0);
    for (j, byte) in block[2..].iter().enumerate() {
        to.integers[j] = (byte & 15) as i8 - 8;
        to.integers[j + LEN / 2] = (byte >> 4) as i8 - 8;
    }
}

/// The number of largest magnitude becomes −8 steps, so that the step has its sign or the opposite one.
fn encode(values: &[f32], block: &mut [u8]) {
    let step = largest(values) / -8.0;
    let inverse = inverse(step);
    let half_of = |x: f32| ((x * inverse + 8.5) as u8).min(15);
    block[..2].copy_from_slice(&f16::from_f32(step).to_le_bytes());
    for (j, byte) in block[2..].iter_mut().enumerate() {
        *byte = half_of(values[j]) | half_of(values[j + LEN / 2]) << 4;
    }
}
