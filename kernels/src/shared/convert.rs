//! Conversions of packed slices between `f32` and the 16-bit floats, exact or rounded to nearest even.

use super::simd;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// `target[i] = source[i]`, exactly.
pub fn f16_to_f32(source: &[f16], target: &mut [f32]) {
    assert_eq!(source.len(), target.len());
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx") && is_x86_feature_detected!("f16c") {
        // SAFETY: the processor has the instructions.
        return unsafe { x86::widen(source, target) };
    }
    source.convert_to_f32_slice(target);
}

/// `target[i] = source[i]`, rounded.
pub fn f32_to_f16(source: &[f32], target: &mut [f16]) {
    target.convert_from_f32_slice(source);
}

/// `target[i] = source[i]`, exactly.
pub fn bf16_to_f32(source: &[bf16], target: &mut [f32]) {
    assert_eq!(source.len(), target.len());
    simd::vectorize(
        #[inline(always)]
        || {
            for (target, value) in target.iter_mut().zip(source) {
                *target = f32::from_bits(u32::from(value.to_bits()) << 16);
            }
        },
    );
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use half::f16;
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx,f16c")]
    pub(super) fn widen(source: &[f16], target: &mut [f32]) {
        let (chunks, rest) = source.as_chunks::<8>();
        let (targets, target_rest) = target.as_chunks_mut::<8>();
        for (chunk, target) in chunks.iter().zip(targets) {
            // SAFETY: the references are to 16 and 32 bytes.
            unsafe {
                let values = _mm256_cvtph_ps(_mm_loadu_si128(chunk.as_ptr().cast()));
                _mm256_storeu_ps(target.as_mut_ptr(), values);
            }
        }
        for (target, value) in target_rest.iter_mut().zip(rest) {
            *target = value.to_f32();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_and_bf16_widens_exactly() {
        let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let brains: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
        let mut wide = vec![0.0; halves.len()];
        f16_to_f32(&halves, &mut wide);
        assert!(halves.iter().zip(&wide).all(|(h, w)| h.to_f32() == *w || (h.is_nan() && w.is_nan())));
        let mut back = vec![f16::ZERO; wide.len()];
        f32_to_f16(&wide, &mut back);
        assert!(
            halves.iter().zip(&back).all(|(h, b)| h.to_bits() == b.to_bits() || (h.is_nan() && b.is_nan()))
        );
        bf16_to_f32(&brains, &mut wide);
        assert!(brains.iter().zip(&wide).all(|(h, w)| h.to_f32() == *w || (h.is_nan() && w.is_nan())));
    }
}
