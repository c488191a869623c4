//! The products of blocks with AVX-512 VNNI: two blocks per instruction, 16 partial sums of four products.
//!
//! The instruction multiplies unsigned with signed bytes. b takes the unsigned side, raised by 128; what that
//! adds, 128 · Σ a, is taken off again by starting each partial sum from its negative.

use super::blocks::{Block, Column};
use crate::shared::simd;
use pulp::Arch;
use ssmgraph_ops::quant::{Q8_0_BLOCK, Q8_0_BYTES};
use std::arch::x86_64::*;

/// Whether the processor has the instructions, and nobody forced lesser ones.
pub(super) fn available() -> bool {
    matches!(simd::arch(), Arch::V4(_))
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("f16c")
}

/// M rows of weights with N columns, column by column. All have equally many blocks.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
pub(super) fn dots<const M: usize, const N: usize>(
    weights: [&[Block]; M],
    columns: [Column<'_>; N],
) -> [[f32; M]; N] {
    let blocks = weights[0].len();
    let pairs = blocks / 2;
    // Equal lengths in sight of the compiler: the checks of indices leave the loop.
    let mut rows: [&[[Block; 2]]; M] = [&[]; M];
    for m in 0..M {
        rows[m] = &weights[m].as_chunks().0[..pairs];
    }
    let mut integers: [&[[[i8; Q8_0_BLOCK]; 2]]; N] = [&[]; N];
    let mut scales: [&[[f32; 2]]; N] = [&[]; N];
    for n in 0..N {
        integers[n] = &columns[n].integers.as_chunks().0[..pairs];
        scales[n] = &columns[n].scales.as_chunks().0[..pairs];
    }
    let mut sums = [[_mm512_setzero_ps(); M]; N];
    for pair in 0..pairs {
        let mut a = [(_mm512_setzero_si512(), _mm512_setzero_ps()); M];
        for m in 0..M {
            a[m] = weights_of(&rows[m][pair]);
        }
        let mut b = [(_mm512_setzero_si512(), _mm512_setzero_ps()); N];
        for n in 0..N {
            b[n] = (two(&integers[n][pair]), spread(scales[n][pair]));
        }
        add(&mut sums, &a, &b);
    }
    if blocks % 2 == 1 {
        let last = blocks - 1;
        let mut a = [(_mm512_setzero_si512(), _mm512_setzero_ps()); M];
        for m in 0..M {
            a[m] = weights_of(&[weights[m][last], [0; Q8_0_BYTES]]);
        }
        let mut b = [(_mm512_setzero_si512(), _mm512_setzero_ps()); N];
        for n in 0..N {
            let pair = [columns[n].integers[last], [0; Q8_0_BLOCK]];
            b[n] = (two(&pair), spread([columns[n].scales[last], 0.0]));
        }
        add(&mut sums, &a, &b);
    }
    let mut results = [[0.0; M]; N];
    for n in 0..N {
        for m in 0..M {
            results[n][m] = _mm512_reduce_add_ps(sums[n][m]);
        }
    }
    results
}

/// The integers of two blocks, and their scales, one per partial sum.
type Pair = (__m512i, __m512);

/// Adds the products of a pair of blocks to the sums.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
fn add<const M: usize, const N: usize>(sums: &mut [[__m512; M]; N], a: &[Pair; M], b: &[Pair; N]) {
    let mut start = [_mm512_setzero_si512(); M];
    for m in 0..M {
        let raised = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(-128), a[m].0);
        start[m] = _mm512_sub_epi32(_mm512_setzero_si512(), raised);
    }
    for n in 0..N {
        let raised = _mm512_xor_si512(b[n].0, _mm512_set1_epi8(-128));
        for m in 0..M {
            let products = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(start[m], raised, a[m].0));
            sums[n][m] = _mm512_fmadd_ps(products, _mm512_mul_ps(a[m].1, b[n].1), sums[n][m]);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
fn weights_of(pair: &[Block; 2]) -> Pair {
    // SAFETY: 32 bytes follow the two of the scale in each block.
    let integers = unsafe {
        let low = _mm512_zextsi256_si512(_mm256_loadu_si256(pair[0].as_ptr().add(2).cast()));
        _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(pair[1].as_ptr().add(2).cast()))
    };
    let scale = |block: &Block| i32::from(u16::from_le_bytes([block[0], block[1]]));
    let scales = _mm_cvtph_ps(_mm_cvtsi32_si128(scale(&pair[0]) | scale(&pair[1]) << 16));
    (integers, _mm512_permutexvar_ps(halves(), _mm512_castps128_ps512(scales)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
fn two(blocks: &[[i8; Q8_0_BLOCK]; 2]) -> __m512i {
    // SAFETY: the reference is to 64 bytes.
    unsafe { _mm512_loadu_si512(blocks.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
fn spread(scales: [f32; 2]) -> __m512 {
    let scales = _mm_set_ps(0.0, 0.0, scales[1], scales[0]);
    _mm512_permutexvar_ps(halves(), _mm512_castps128_ps512(scales))
}

/// The first number in the lower eight lanes, the second in the upper eight.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves() -> __m512i {
    _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0)
}
