//! The Q4_K block: 256 elements of 4 bits, in 8 groups of 32 that have a scale and a minimum of 6 bits each.
//!
//! Bytes: d and dmin (f16 each), 12 bytes of scales s and minima m, then 128 bytes. Element i of group g is
//! d · s(g) · half − dmin · m(g). Groups 2p and 2p+1 lie in the low and the high halves of the p-th 32 bytes.
//! For g < 4 the low six bits of the 12 bytes' byte g are s and those of byte g+4 are m. For g from 4 on the halves
//! of byte g+4 are their low four bits, s first, and the upper two bits of bytes g−4 and g their high two.
//! Source: the public block layout of ggml's Q4_K.

use super::{Format, Unpacked, f16_from_above, f16_of, inverse};
use crate::DType;
use half::f16;

pub(super) const FORMAT: Format = Format { dtype: DType::Q4K, group_len: GROUP, unpack, encode };

const GROUP: usize = 32;
const GROUPS: usize = 8;
/// The largest scale and minimum of a group.
const PART_MAX: f32 = 63.0;
/// The largest element of a group.
const HALF_MAX: f32 = 15.0;

fn unpack(block: &[u8], to: &mut Unpacked) {
    let (head, halves) = block.split_at(16);
    let (d, dmin, packed) = (f16_of(head), f16_of(&head[2..]), &head[4..]);
    for group in 0..GROUPS {
        let (scale, minimum) = parts(packed, group);
        to.scales[group] = d * f32::from(scale);
        to.minima[group] = dmin * f32::from(minimum);
    }
    for (halves, integers) in halves.chunks_exact(GROUP).zip(to.integers.chunks_exact_mut(2 * GROUP)) {
        let (low, high) = integers.split_at_mut(GROUP);
        for ((&byte, low), high) in halves.iter().zip(low).zip(high) {
            (*low, *high) = ((byte & 15) as i8, (byte >> 4) as i8);
        }
    }
}

/// Scale and minimum of a group.
fn parts(packed: &[u8], group: usize) -> (u8, u8) {
    match group.checked_sub(4) {
        None => (packed[group] & 63, packed[group + 4] & 63),
        Some(before) => {
            let low = packed[group + 4];
            (low & 15 | packed[before] >> 6 << 4, low >> 4 | packed[group] >> 6 << 4)
        }
    }
}

fn set_parts(packed: &mut [u8], group: usize, (scale, minimum): (u8, u8)) {
    match group.checked_sub(4) {
        None => {
            packed[group] |= scale;
            packed[group + 4] |= minimum;
        }
        Some(before) => {
            packed[group + 4] |= scale & 15 | minimum << 4;
            packed[before] |= scale >> 4 << 6;
            packed[group] |= minimum >> 4 << 6;
        }
    }
}

/// Minima and scales are rounded up, minima first: the steps of a group then reach from its least number, or 0,
/// to its largest, and no number is off by more than half a step.
fn encode(values: &[f32], block: &mut [u8]) {
    block.fill(0);
    if !values.iter().all(|value| value.is_finite()) {
        block[..2].copy_from_slice(&f16::NAN.to_le_bytes());
        return;
    }
    let (mut below, mut above) = ([0f32; GROUPS], [0f32; GROUPS]);
    for (group, values) in values.chunks_exact(GROUP).enumerate() {
        let least = values.iter().fold(f32::INFINITY, |least, &value| least.min(value));
        (below[group], above[group]) =
            ((-least).max(0.0), values.iter().fold(f32::NEG_INFINITY, |most, &value| most.max(value)));
    }
    let (dmin, minima) = in_parts(below);
    let reach =
        std::array::from_fn(|group| (above[group] + dmin.to_f32() * f32::from(minima[group])) / HALF_MAX);
    let (d, scales) = in_parts(reach);
    block[..2].copy_from_slice(&d.to_le_bytes());
    block[2..4].copy_from_slice(&dmin.to_le_bytes());
    for (group, values) in values.chunks_exact(GROUP).enumerate() {
        set_parts(&mut block[4..16], group, (scales[group], minima[group]));
        let inverse = inverse(d.to_f32() * f32::from(scales[group]));
        let minimum = dmin.to_f32() * f32::from(minima[group]);
        let halves = &mut block[16 + group / 2 * GROUP..][..GROUP];
        for (byte, value) in halves.iter_mut().zip(values) {
            *byte |=
                ((value + minimum) * inverse + 0.5).min(HALF_MAX) as u8 * if group % 2 == 0 { 1 } else { 16 };
        }
    }
}

/// Numbers from 0 on as multiples, up to 63 of a common f16, none below its number.
fn in_parts(numbers: [f32; GROUPS]) -> (f16, [u8; GROUPS]) {
    let largest = numbers.iter().fold(0f32, |largest, &number| largest.max(number));
    let unit = f16_from_above(largest / PART_MAX);
    let inverse = inverse(unit.to_f32());
    (unit, numbers.map(|number| (number * inverse).ceil().min(PART_MAX) as u8))
}
