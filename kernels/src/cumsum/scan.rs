//! Running sums of packed elements.
//!
//! Blocks are summed within themselves by shifts across a vector and then added to the carry, so that the chain from
//! element to element is one addition per block.

use crate::shared::simd;

/// Elements of a block in `f64`.
const WIDE_BLOCK: usize = 8;
/// Elements of a block in `f32`.
const BLOCK: usize = 16;

/// Writes sums that start from `carry`, in `f64` and rounded one by one; returns the last one. Only ever adds what lies
/// before, so that an infinity reaches no earlier sum.
///
/// # Safety
/// `source` is readable and `target` writable for `count` elements; they are the same or do not overlap.
pub(super) unsafe fn wide(source: *const f32, target: *mut f32, count: usize, carry: f64) -> f64 {
    let whole = count / WIDE_BLOCK * WIDE_BLOCK;
    // SAFETY: by the function's contract; the processor has the instructions.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        let carry = match simd::arch() {
            pulp::Arch::V4(_) => avx512::wide(source, target, whole, carry),
            _ => wide_blocks(source, target, whole, carry),
        };
        #[cfg(not(target_arch = "x86_64"))]
        let carry = wide_blocks(source, target, whole, carry);
        (whole..count).fold(carry, |carry, i| {
            let carry = carry + f64::from(source.add(i).read());
            target.add(i).write(carry as f32);
            carry
        })
    }
}

/// [`wide`] with the sums inside a block of 16 in `f32`.
///
/// # Safety
/// As for [`wide`].
pub(super) unsafe fn narrow(source: *const f32, target: *mut f32, count: usize, carry: f64) -> f64 {
    let whole = count / BLOCK * BLOCK;
    // SAFETY: by the function's contract; the processor has the instructions.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        let carry = match simd::arch() {
            pulp::Arch::V4(_) => avx512::narrow(source, target, whole, carry),
            _ => narrow_blocks(source, target, whole, carry),
        };
        #[cfg(not(target_arch = "x86_64"))]
        let carry = narrow_blocks(source, target, whole, carry);
        wide(source.add(whole), target.add(whole), count - whole, carry)
    }
}

/// # Safety
/// As for [`wide`]; `count` is a multiple of the block.
unsafe fn wide_blocks(source: *const f32, target: *mut f32, count: usize, carry: f64) -> f64 {
    simd::vectorize(
        #[inline(always)]
        || {
            (0..count).step_by(WIDE_BLOCK).fold(carry, |carry, first| {
                // SAFETY: the block lies inside; it is read before it is written.
                let block = unsafe { source.add(first).cast::<[f32; WIDE_BLOCK]>().read() };
                let mut sums = block.map(f64::from);
                for distance in [1, 2, 4] {
                    let before = sums;
                    for i in distance..WIDE_BLOCK {
                        sums[i] = before[i - distance] + before[i];
                    }
                }
                let rounded = sums.map(|sum| (carry + sum) as f32);
                // SAFETY: as above.
                unsafe { target.add(first).cast::<[f32; WIDE_BLOCK]>().write(rounded) }
                carry + sums[WIDE_BLOCK - 1]
            })
        },
    )
}

/// # Safety
/// As for [`wide`]; `count` is a multiple of the block.
unsafe fn narrow_blocks(source: *const f32, target: *mut f32, count: usize, carry: f64) -> f64 {
    simd::vectorize(
        #[inline(always)]
        || {
            (0..count).step_by(BLOCK).fold(carry, |carry, first| {
                // SAFETY: the block lies inside; it is read before it is written.
                let mut sums = unsafe { source.add(first).cast::<[f32; BLOCK]>().read() };
                for distance in [1, 2, 4, 8] {
                    let before = sums;
                    for i in distance..BLOCK {
                        sums[i] = before[i - distance] + before[i];
                    }
                }
                let base = carry as f32;
                // SAFETY: as above.
                unsafe { target.add(first).cast::<[f32; BLOCK]>().write(sums.map(|sum| base + sum)) }
                carry + f64::from(sums[BLOCK - 1])
            })
        },
    )
}

/// A block is one vector: shifts across its lanes, which the compiler does not find by itself.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{BLOCK, WIDE_BLOCK};
    use crate::shared::prefetch::{self, AHEAD_BYTES};
    use std::arch::x86_64::*;

    /// # Safety
    /// As for [`super::wide`]; `count` is a multiple of the block.
    #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw")]
    pub(super) unsafe fn wide(source: *const f32, target: *mut f32, count: usize, carry: f64) -> f64 {
        let zero = _mm512_setzero_si512();
        let last = _mm512_set1_epi64(WIDE_BLOCK as i64 - 1);
        let mut carry = _mm512_set1_pd(carry);
        for first in (0..count).step_by(WIDE_BLOCK) {
            // SAFETY: the block lies inside, by the function's contract.
            let mut sums = _mm512_cvtps_pd(unsafe { _mm256_loadu_ps(source.add(first)) });
            prefetch::ahead(source.wrapping_add(first), AHEAD_BYTES);
            let shifted = _mm512_castsi512_pd(_mm512_alignr_epi64::<7>(_mm512_castpd_si512(sums), zero));
            sums = _mm512_mask_add_pd(sums, !1, shifted, sums);
            let shifted = _mm512_castsi512_pd(_mm512_alignr_epi64::<6>(_mm512_castpd_si512(sums), zero));
            sums = _mm512_mask_add_pd(sums, !3, shifted, sums);
            let shifted = _mm512_castsi512_pd(_mm512_alignr_epi64::<4>(_mm512_castpd_si512(sums), zero));
            sums = _mm512_mask_add_pd(sums, !15, shifted, sums);
            // SAFETY: as above.
            unsafe { _mm256_storeu_ps(target.add(first), _mm512_cvtpd_ps(_mm512_add_pd(carry, sums))) }
            carry = _mm512_add_pd(carry, _mm512_permutexvar_pd(last, sums));
        }
        _mm512_cvtsd_f64(carry)
    }

    /// # Safety
    /// As for [`super::wide`]; `count` is a multiple of the block.
    #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw")]
    pub(super) unsafe fn narrow(source: *const f32, target: *mut f32, count: usize, carry: f64) -> f64 {
        let zero = _mm512_setzero_si512();
        let last = _mm512_set1_epi32(BLOCK as i32 - 1);
        let mut carry = _mm_set_sd(carry);
        for first in (0..count).step_by(BLOCK) {
            // SAFETY: the block lies inside, by the function's contract.
            let mut sums = unsafe { _mm512_loadu_ps(source.add(first)) };
            prefetch::ahead(source.wrapping_add(first), AHEAD_BYTES);
            let shifted = _mm512_castsi512_ps(_mm512_alignr_epi32::<15>(_mm512_castps_si512(sums), zero));
            sums = _mm512_mask_add_ps(sums, !1, shifted, sums);
            let shifted = _mm512_castsi512_ps(_mm512_alignr_epi32::<14>(_mm512_castps_si512(sums), zero));
            sums = _mm512_mask_add_ps(sums, !3, shifted, sums);
            let shifted = _mm512_castsi512_ps(_mm512_alignr_epi32::<12>(_mm512_castps_si512(sums), zero));
            sums = _mm512_mask_add_ps(sums, !15, shifted, sums);
            let shifted = _mm512_castsi512_ps(_mm512_alignr_epi32::<8>(_mm512_castps_si512(sums), zero));
            sums = _mm512_mask_add_ps(sums, !255, shifted, sums);
            let base = _mm512_broadcastss_ps(_mm_cvtsd_ss(_mm_setzero_ps(), carry));
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(target.add(first), _mm512_add_ps(base, sums)) }
            let total = _mm512_castps512_ps128(_mm512_permutexvar_ps(last, sums));
            carry = _mm_add_sd(carry, _mm_cvtss_sd(_mm_setzero_pd(), total));
        }
        _mm_cvtsd_f64(carry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Scan = unsafe fn(*const f32, *mut f32, usize, f64) -> f64;

    #[test]
    fn vectors_give_the_bits_of_the_plain_form() {
        let values: Vec<f32> = (0..1008).map(|i| ((i * 7919) % 1013) as f32 * 0.37 - 150.0).collect();
        let run = |scan: Scan| {
            let mut sums = vec![0.0f32; values.len()];
            // SAFETY: both slices have as many elements.
            let carry = unsafe { scan(values.as_ptr(), sums.as_mut_ptr(), values.len(), 0.5) };
            (sums, carry.to_bits())
        };
        assert_eq!(run(wide), run(wide_blocks));
        assert_eq!(run(narrow), run(narrow_blocks));
    }
}
