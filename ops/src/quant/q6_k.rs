//! The Q6_K block: 256 elements of 6 bits, in 16 groups of 16 that have a scale of 8 bits each.
//!
//! Bytes: 128 with the low four bits of the elements, 64 with their high two, 16 scales s (i8), d (f16). An element is
//! d · s(group) · (bits − 32). The halves of 128 elements are alike, with 64, 32 and 8 bytes of the three parts: quarter
//! q of a half, 32 elements, has its low bits in the low (q < 2) or high halves of bytes 32·(q mod 2).. and its high
//! bits at bit 2q of the 32 bytes of the second part.
//! Source: the public block layout of ggml's Q6_K.

use super::{Format, Unpacked, f16_from_above, f16_of, inverse, largest};
use crate::DType;
use half::f16;

pub(super) const FORMAT: Format = Format { dtype: DType::Q6K, group_len: GROUP, unpack, encode };

const GROUP: usize = 16;
const GROUPS: usize = 16;
/// Elements whose bits lie at the same place of neighbouring bytes.
const QUARTER: usize = 32;
const LOW_BYTES: usize = 128;
const HIGH_BYTES: usize = 64;
const SCALES: usize = LOW_BYTES + HIGH_BYTES;
const D: usize = SCALES + GROUPS;

fn unpack(block: &[u8], to: &mut Unpacked) {
    let d = f16_of(&block[D..]);
    for (group, &scale) in block[SCALES..D].iter().enumerate() {
        (to.scales[group], to.minima[group]) = (d * f32::from(scale as i8), 0.0);
    }
    for (index, integers) in to.integers.chunks_exact_mut(QUARTER).enumerate() {
        let place = Place::of(index);
        for (i, integer) in integers.iter_mut().enumerate() {
            let (low, high) =
                (block[place.low + i] >> place.low_bit, block[place.high + i] >> place.high_bit);
            *integer = (low & 15 | (high & 3) << 4) as i8 - 32;
        }
    }
}

/// Where the bits of 32 elements lie: the first bytes of both parts, and the bits in them.
struct Place {
    low: usize,
    low_bit: usize,
    high: usize,
    high_bit: usize,
}

impl Place {
    fn of(index: usize) -> Place {
        let (half, quarter) = (index / 4, index % 4);
        Place {
            low: half * LOW_BYTES / 2 + quarter % 2 * QUARTER,
            low_bit: quarter / 2 * 4,
            high: LOW_BYTES + half * HIGH_BYTES / 2,
            high_bit: quarter * 2,
        }
    }
}

/// The number of largest magnitude in a group becomes −32 steps or a little less; one as large of the other sign is
/// off by up to a step, all others by half of one.
fn encode(values: &[f32], block: &mut [u8]) {
    block.fill(0);
    if !values.iter().all(|value| value.is_finite()) {
        block[D..].copy_from_slice(&f16::NAN.to_le_bytes());
        block[SCALES..D].fill(1);
        return;
    }
    let mut steps = [0f32; GROUPS];
    for (step, values) in steps.iter_mut().zip(values.chunks_exact(GROUP)) {
        *step = largest(values) / -32.0;
    }
    let d = f16_from_above(largest(&steps).abs() / 127.0);
    block[D..].copy_from_slice(&d.to_le_bytes());
    let (d, in_units) = (d.to_f32(), inverse(d.to_f32()));
    let mut inverses = [0f32; GROUPS];
    for (group, &step) in steps.iter().enumerate() {
        let scale = (step.abs() * in_units).ceil().min(127.0).copysign(step) as i8;
        block[SCALES + group] = scale as u8;
        inverses[group] = inverse(d * f32::from(scale));
    }
    for (index, values) in values.chunks_exact(QUARTER).enumerate() {
        let place = Place::of(index);
        for (i, value) in values.iter().enumerate() {
            let steps = value * inverses[(index * QUARTER + i) / GROUP];
            let bits = (steps + 32.5).clamp(0.0, 63.0) as u8;
            block[place.low + i] |= (bits & 15) << place.low_bit;
            block[place.high + i] |= bits >> 4 << place.high_bit;
        }
    }
}
