//! The block formats with arithmetic: what their bytes mean, and how numbers are rounded to them.
//!
//! In all of them an element is `scale · q − minimum`, where q is a small integer and scale and minimum are common
//! to a group of neighbours. [`Format`] is the one table of that: reference functions, kernels and tests unpack and
//! encode blocks with it. [`crate::DType`] has the lengths and bytes.
//!
//! | format | elements | bytes | group | q | minimum |
//! |---|---|---|---|---|---|
//! | q8_0 | 32 | 34 | 32 | −128..=127 | none |
//! | q4_0 | 32 | 18 | 32 | −8..=7 | none |
//! | q4_k | 256 | 144 | 32 | 0..=15 | in 6 bits, of a common one |
//! | q6_k | 256 | 210 | 16 | −32..=31 | none |

mod q4_0;
mod q4_k;
mod q6_k;
mod q8_0;

pub use q8_0::{BlockQ8_0, Q8_0_BLOCK, Q8_0_BYTES, quantize_q8_0};

use crate::DType;
use half::f16;

/// Elements of the longest block.
pub const BLOCK_LEN_MAX: usize = 256;

/// Groups of the block that has most of them.
pub const GROUPS_MAX: usize = 16;

/// One block in parts: element `i` is `scales[g] · integers[i] − minima[g]` with `g = i / group_len`. Scales,
/// minima and the product are exact in `f32`, the difference is rounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unpacked {
    /// The elements in steps of their group's scale.
    pub integers: [i8; BLOCK_LEN_MAX],
    /// What a step is worth, for each group.
    pub scales: [f32; GROUPS_MAX],
    /// What is taken off, for each group.
    pub minima: [f32; GROUPS_MAX],
}

impl Default for Unpacked {
    fn default() -> Unpacked {
        Unpacked { integers: [0; BLOCK_LEN_MAX], scales: [0.0; GROUPS_MAX], minima: [0.0; GROUPS_MAX] }
    }
}

/// A block format with arithmetic.
#[derive(Debug)]
pub struct Format {
    /// The type, which says how many elements and bytes a block has.
    pub dtype: DType,
    /// Elements that share a scale and a minimum.
    pub group_len: usize,
    unpack: fn(&[u8], &mut Unpacked),
    encode: fn(&[f32], &mut [u8]),
}

static TABLE: [Format; 4] = [q8_0::FORMAT, q4_0::FORMAT, q4_k::FORMAT, q6_k::FORMAT];

impl Format {
    /// The format of a type; `None` for plain types and for blocks that have a layout alone.
    pub fn of(dtype: DType) -> Option<&'static Format> {
        TABLE.iter().find(|format| format.dtype == dtype)
    }

    /// Elements per block.
    pub fn block_len(&self) -> usize {
        self.dtype.block_len()
    }

    /// Bytes per block.
    pub fn block_bytes(&self) -> usize {
        self.dtype.block_bytes()
    }

    /// Takes one block apart; entries of `to` past its elements and groups are left as they are.
    ///
    /// Panics when `block` has not a block's bytes.
    pub fn unpack(&self, block: &[u8], to: &mut Unpacked) {
        assert_eq!(block.len(), self.block_bytes(), "bytes of one block of {}", self.dtype);
        (self.unpack)(block, to);
    }

    /// The elements of whole blocks, to the nearest `f32`.
    ///
    /// Panics when `blocks` and `values` are not as many whole blocks.
    pub fn decode(&self, blocks: &[u8], values: &mut [f32]) {
        self.check(blocks.len(), values.len());
        let mut parts = Unpacked::default();
        for (block, values) in self.blocks(blocks).zip(values.chunks_exact_mut(self.block_len())) {
            self.unpack(block, &mut parts);
            let groups =
                values.chunks_exact_mut(self.group_len).zip(parts.integers.chunks_exact(self.group_len));
            for ((values, integers), (&scale, &minimum)) in groups.zip(parts.scales.iter().zip(&parts.minima))
            {
                for (value, &q) in values.iter_mut().zip(integers) {
                    *value = scale * f32::from(q) - minimum;
                }
            }
        }
    }

    /// The exact elements of whole blocks.
    ///
    /// Panics when `blocks` are no whole blocks.
    pub fn exact(&self, blocks: &[u8]) -> Vec<f64> {
        self.check(blocks.len(), blocks.len() / self.block_bytes() * self.block_len());
        let mut parts = Unpacked::default();
        let mut values = Vec::with_capacity(blocks.len() / self.block_bytes() * self.block_len());
        for block in self.blocks(blocks) {
            self.unpack(block, &mut parts);
            values.extend((0..self.block_len()).map(|index| parts.element(index, self.group_len)));
        }
        values
    }

    /// One element of a block, exactly.
    ///
    /// Panics when `block` has not a block's bytes, or `index` lies outside.
    pub fn element(&self, block: &[u8], index: usize) -> f64 {
        assert!(index < self.block_len(), "element {index} of a block of {}", self.dtype);
        let mut parts = Unpacked::default();
        self.unpack(block, &mut parts);
        parts.element(index, self.group_len)
    }

    /// Rounds numbers to whole blocks. The same numbers give the same bytes everywhere. A block of numbers that are
    /// not all finite decodes to no finite number where they stand; numbers beyond what the scale can hold become
    /// infinite or NaN.
    ///
    /// Panics when `values` and `blocks` are not as many whole blocks.
    pub fn encode(&self, values: &[f32], blocks: &mut [u8]) {
        self.check(blocks.len(), values.len());
        let blocks = blocks.chunks_exact_mut(self.block_bytes());
        for (values, block) in values.chunks_exact(self.block_len()).zip(blocks) {
            (self.encode)(values, block);
        }
    }

    /// [`Format::encode`] into fresh bytes.
    ///
    /// Panics when `values` are no whole blocks.
    pub fn encoded(&self, values: &[f32]) -> Vec<u8> {
        let mut blocks = vec![0; values.len() / self.block_len() * self.block_bytes()];
        self.encode(values, &mut blocks);
        blocks
    }

    fn blocks<'a>(&self, bytes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        bytes.chunks_exact(self.block_bytes())
    }

    fn check(&self, bytes: usize, values: usize) {
        let whole = values.is_multiple_of(self.block_len());
        let blocks = values / self.block_len();
        assert!(
            whole && bytes == blocks * self.block_bytes(),
            "{values} values and {bytes} bytes of {} blocks",
            self.dtype
        );
    }
}

impl Unpacked {
    /// One element, exactly: an f16 times at most 14 bits, less an f16 times 6 bits, fits the 53 bits of `f64`.
    fn element(&self, index: usize, group_len: usize) -> f64 {
        let group = index / group_len;
        f64::from(self.scales[group]) * f64::from(self.integers[index]) - f64::from(self.minima[group])
    }
}

/// The number of largest magnitude, the first of them; NaN counts as larger than everything.
fn largest(values: &[f32]) -> f32 {
    // Without their sign bit, floats order as integers, with NaN above everything.
    let magnitude = |value: f32| value.to_bits() & 0x7FFF_FFFF;
    let larger = |have: f32, next: &f32| if magnitude(*next) > magnitude(have) { *next } else { have };
    values.iter().fold(0.0, larger)
}

/// The inverse, and 0 of 0: what numbers are multiplied by to count in steps.
fn inverse(step: f32) -> f32 {
    if step == 0.0 { 0.0 } else { 1.0 / step }
}

/// The least f16 that is not below a number from 0 on; infinite above all of them. NaN stays NaN.
fn f16_from_above(x: f32) -> f16 {
    let near = f16::from_f32(x);
    if near.to_f32() < x { f16::from_bits(near.to_bits() + 1) } else { near }
}

/// The f16 in these two bytes.
fn f16_of(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

#[cfg(test)]
mod tests;
