//! The products of blocks with AVX-512 VNNI: two blocks per instruction, 16 partial sums of four products.
//!
//! The instruction multiplies unsigned with signed bytes. b takes the unsigned side, raised by 128; what that
//! adds, 128 · Σ a, is taken off again by starting each partial sum from its negative.

use super::blocks::{Block, Column};
use crate::shared::simd;
use pulp::Arch;
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
    let mut sums = [[_mm512_setzero_ps(); M]; N];
    let blocks = weights[0].len();
    let (mut rows, mut tile) = (weights, columns);
    // Equal lengths in sight of the compiler: the checks of indices leave the loop.
    for row in &mut rows {
        *row = &row[..blocks];
    }
    for column in &mut tile {
        *column = Column { scales: &column.scales[..blocks], integers: &column.integers[..blocks] };
    }
    for first in (0..blocks).step_by(2) {
        let mut a = [_mm512_setzero_si512(); M];
        let mut start = [_mm512_setzero_si512(); M];
        let mut scales = [_mm512_setzero_ps(); M];
        for m in 0..M {
            (a[m], scales[m]) = weights_at(rows[m], first);
            let raised = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(-128), a[m]);
            start[m] = _mm512_sub_epi32(_mm512_setzero_si512(), raised);
        }
        for n in 0..N {
            let (b, b_scales) = column_at(&tile[n], first);
            let b = _mm512_xor_si512(b, _mm512_set1_epi8(-128));
            for m in 0..M {
                let products = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(start[m], b, a[m]));
                sums[n][m] = _mm512_fmadd_ps(products, _mm512_mul_ps(scales[m], b_scales), sums[n][m]);
            }
        }
    }
    let mut results = [[0.0; M]; N];
    for n in 0..N {
        for m in 0..M {
            results[n][m] = _mm512_reduce_add_ps(sums[n][m]);
        }
    }
    results
}

/// The integers of blocks `first` and `first + 1` (zeros past the end), and their scales, one per partial sum.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
fn weights_at(row: &[Block], first: usize) -> (__m512i, __m512) {
    let (low, high) = (&row[first], row.get(first + 1));
    let scale = |block: &Block| i32::from(u16::from_le_bytes([block[0], block[1]]));
    let scales = _mm_cvtsi32_si128(scale(low) | high.map_or(0, scale) << 16);
    let integers = _mm512_zextsi256_si512(load(low[2..].as_chunks().0));
    let integers = match high {
        Some(high) => _mm512_inserti64x4::<1>(integers, load(high[2..].as_chunks().0)),
        None => integers,
    };
    (integers, spread(_mm_cvtph_ps(scales)))
}

/// As [`weights_at`], for a row of b.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
fn column_at(column: &Column<'_>, first: usize) -> (__m512i, __m512) {
    let high = column.scales.get(first + 1).copied().unwrap_or(0.0);
    let scales = spread(_mm_set_ps(0.0, 0.0, high, column.scales[first]));
    let integers = _mm512_zextsi256_si512(load(bytemuck::cast_slice(&column.integers[first..first + 1])));
    let integers = match column.integers.get(first + 1..first + 2) {
        Some(high) => _mm512_inserti64x4::<1>(integers, load(bytemuck::cast_slice(high))),
        None => integers,
    };
    (integers, scales)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
fn load(bytes: &[[u8; 32]]) -> __m256i {
    // SAFETY: the reference is to 32 bytes.
    unsafe { _mm256_loadu_si256(bytes[0].as_ptr().cast()) }
}

/// The first number in the lower eight lanes, the second in the upper eight.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
fn spread(pair: __m128) -> __m512 {
    let halves = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm512_permutexvar_ps(halves, _mm512_castps128_ps512(pair))
}
