//! The products of a panel's blocks with AVX2: eight rows to a vector.
//!
//! The instruction multiplies unsigned with signed bytes and sums two products in 16 bits: the magnitude of the weight
//! (at most 128) with b under the weight's sign (at most 127) cannot pass them.

use super::blocks::{Outputs, Panel};
use super::columns::Group;
use super::formats::Blocks;
use super::panels::BLOCK_BYTES;
use crate::shared::simd;
use pulp::Arch;
use ssmgraph_ops::quant::Q8_0_BLOCK;
use std::arch::x86_64::*;
use std::ops::Range;

/// Whether the processor has the instructions, and nobody forbade them.
pub(super) fn available() -> bool {
    matches!(simd::arch(), Arch::V3(_) | Arch::V4(_)) && is_x86_feature_detected!("f16c")
}

/// The products of a panel with some columns of a group, to this place in their outputs.
///
/// # Safety
/// The panel has as many blocks as it says, and so have all columns of the group, which has these columns.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn products(
    panel: Panel<'_>,
    group: Group<'_>,
    columns: Range<usize>,
    place: usize,
    outputs: &mut Outputs,
) {
    let mut next = columns.start;
    while next < columns.end {
        // SAFETY: by the function's contract.
        unsafe {
            if columns.end - next >= 3 {
                tile::<3>(panel, group, next, place, outputs);
                next += 3;
            } else {
                tile::<1>(panel, group, next, place, outputs);
                next += 1;
            }
        }
    }
}

/// # Safety
/// As [`products`], for N columns.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<const N: usize>(
    panel: Panel<'_>,
    group: Group<'_>,
    first: usize,
    place: usize,
    outputs: &mut Outputs,
) {
    let ones = _mm256_set1_epi16(1);
    let halves = panel.format.sums().count();
    let mut unpacked = [0; BLOCK_BYTES];
    let mut sums = [[_mm256_setzero_ps(); 2]; N];
    let mut of_minima = [[_mm256_setzero_ps(); 2]; N];
    for block in 0..panel.blocks {
        let at = block * group.width + first;
        let mut integers = panel.bytes.as_ptr().wrapping_add(block * BLOCK_BYTES);
        if panel.format != Blocks::Q8_0 {
            panel.format.unpack(panel.bytes, block, &mut unpacked);
            integers = unpacked.as_ptr().cast();
        }
        let worth = panel.format.worth(panel.bytes, panel.blocks, block);
        // Eight rows, and a half of the elements where halves have scales of their own.
        for (rows, half) in (0..2).flat_map(|rows| (0..halves).map(move |half| (rows, half))) {
            // SAFETY: the block's integers are 512 bytes, and its columns lie in the group, by the function's contract.
            unsafe {
                let weights = integers.add(rows * 32);
                let scales = _mm256_loadu_ps(worth.scales[half].as_ptr().add(rows * 8));
                let b = group.integers.as_ptr().add(at * Q8_0_BLOCK);
                let mut totals = [_mm256_setzero_si256(); N];
                for four in half * 4..8 - (halves - 1 - half) * 4 {
                    let weights = _mm256_loadu_si256(weights.add(four * 64).cast());
                    let magnitudes = _mm256_abs_epi8(weights);
                    for (n, total) in totals.iter_mut().enumerate() {
                        let b = b.add(n * Q8_0_BLOCK + four * 4).cast::<i32>().read_unaligned();
                        let signed = _mm256_sign_epi8(_mm256_set1_epi32(b), weights);
                        let pairs = _mm256_maddubs_epi16(magnitudes, signed);
                        *total = _mm256_add_epi32(*total, _mm256_madd_epi16(pairs, ones));
                    }
                }
                for n in 0..N {
                    let scale = _mm256_mul_ps(scales, _mm256_set1_ps(*group.scales.get_unchecked(at + n)));
                    sums[n][rows] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(totals[n]), scale, sums[n][rows]);
                    if panel.format == Blocks::Q4K {
                        let scaled = f32::from_bits(*group.sums.get_unchecked(at + n) as u32);
                        let minima = _mm256_loadu_ps(worth.minima.as_ptr().add(rows * 8));
                        of_minima[n][rows] =
                            _mm256_fmadd_ps(minima, _mm256_set1_ps(scaled), of_minima[n][rows]);
                    }
                }
            }
        }
    }
    for n in 0..N {
        for rows in 0..2 {
            if panel.format == Blocks::Q4K {
                sums[n][rows] = _mm256_add_ps(sums[n][rows], of_minima[n][rows]);
            }
            // SAFETY: eight of the sixteen outputs of a column.
            unsafe { _mm256_storeu_ps(outputs[first + n][place].as_mut_ptr().add(rows * 8), sums[n][rows]) }
        }
    }
}
