//! The products of a panel's blocks with AVX-512 VNNI: four k of sixteen rows per instruction.
//!
//! The instruction multiplies unsigned with signed bytes. The weights take the unsigned side, raised by 128; what
//! that adds, 128 · Σ b, is taken off again by starting each sum from its negative, which came with the rounding of b.

use super::blocks::Outputs;
use super::columns::Group;
use super::panels::BLOCK_BYTES;
use crate::shared::simd;
use pulp::Arch;
use ssmgraph_ops::quant::Q8_0_BLOCK;
use std::arch::x86_64::*;
use std::ops::Range;

/// How far ahead of a single column's products a panel's bytes are asked for.
const AHEAD_BYTES: usize = 4096;

/// Whether the processor has the instructions, and nobody forbade them.
pub(super) fn available() -> bool {
    matches!(simd::arch(), Arch::V4(_))
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("f16c")
}

/// The products of a panel with some columns of a group, to this place in their outputs.
///
/// # Safety
/// The panel has as many blocks as there are, and so have all columns of the group, which has these columns.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
pub(super) unsafe fn products(
    panel: &[u8],
    blocks: usize,
    group: Group<'_>,
    columns: Range<usize>,
    place: usize,
    outputs: &mut Outputs,
) {
    let mut next = columns.start;
    while next < columns.end {
        // SAFETY: by the function's contract.
        next += unsafe {
            match columns.end - next {
                8.. => tile::<8>(panel, blocks, group, next, place, outputs),
                4.. => tile::<4>(panel, blocks, group, next, place, outputs),
                2.. => tile::<2>(panel, blocks, group, next, place, outputs),
                _ => tile::<1>(panel, blocks, group, next, place, outputs),
            }
        };
    }
}

/// Returns N.
///
/// # Safety
/// As [`products`], for N columns.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
unsafe fn tile<const N: usize>(
    panel: &[u8],
    blocks: usize,
    group: Group<'_>,
    first: usize,
    place: usize,
    outputs: &mut Outputs,
) -> usize {
    let raise = _mm512_set1_epi8(-128);
    let mut sums = [_mm512_setzero_ps(); N];
    for block in 0..blocks {
        let at = block * group.width + first;
        // SAFETY: the block lies in the panel, and its columns in the group, by the function's contract. A prefetch
        // of any address has no effect but on the caches.
        unsafe {
            let weights = panel.as_ptr().add(block * BLOCK_BYTES);
            if N == 1 {
                let ahead = panel.as_ptr().wrapping_add(block * (BLOCK_BYTES + 32) + AHEAD_BYTES);
                for line in 0..9 {
                    _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line * 64).cast());
                }
            }
            let mut raised = [raise; 8];
            for four in 0..8 {
                raised[four] = _mm512_xor_si512(_mm512_loadu_si512(weights.add(four * 64).cast()), raise);
            }
            let scales = panel.as_ptr().add(blocks * BLOCK_BYTES + block * 32);
            let scales = _mm512_cvtph_ps(_mm256_loadu_si256(scales.cast()));
            for n in 0..N {
                let b = group.integers.as_ptr().add((at + n) * Q8_0_BLOCK).cast::<i32>();
                let mut total = _mm512_set1_epi32(*group.sums.get_unchecked(at + n));
                for four in 0..8 {
                    let b = _mm512_set1_epi32(b.add(four).read_unaligned());
                    total = _mm512_dpbusd_epi32(total, raised[four], b);
                }
                let scale = _mm512_mul_ps(scales, _mm512_set1_ps(*group.scales.get_unchecked(at + n)));
                sums[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(total), scale, sums[n]);
            }
        }
    }
    for n in 0..N {
        // SAFETY: the sixteen outputs of a column.
        unsafe { _mm512_storeu_ps(outputs[first + n][place].as_mut_ptr(), sums[n]) }
    }
    N
}
