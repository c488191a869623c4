//! Writes that pass the caches by: a result too large to stay there is otherwise read once before it is overwritten.

/// Results from this size on are written past the caches.
pub const BYTES_MIN: usize = 32 << 20;

/// Writes packed elements. [`finish`] comes before anybody else reads them.
///
/// # Safety
/// `target` is writable for as many elements, and does not overlap them.
pub unsafe fn write(target: *mut f32, values: &[f32]) {
    // SAFETY: by the function's contract; the instruction is in every x86-64 processor and wants 16-byte lines.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_mm_loadu_ps, _mm_stream_ps};
            let unaligned = target.align_offset(16).min(values.len());
            target.copy_from_nonoverlapping(values.as_ptr(), unaligned);
            let (lines, rest) = values[unaligned..].as_chunks::<4>();
            let aligned = target.add(unaligned);
            for (index, line) in lines.iter().enumerate() {
                _mm_stream_ps(aligned.add(4 * index), _mm_loadu_ps(line.as_ptr()));
            }
            aligned.add(4 * lines.len()).copy_from_nonoverlapping(rest.as_ptr(), rest.len());
        }
        #[cfg(not(target_arch = "x86_64"))]
        target.copy_from_nonoverlapping(values.as_ptr(), values.len());
    }
}

/// Orders what was written before what other threads are told afterwards.
pub fn finish() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a fence, in every x86-64 processor.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_arrives_whatever_the_alignment() {
        let values: Vec<f32> = (0..37).map(|i| i as f32).collect();
        for start in 0..5 {
            for count in 0..values.len() {
                let mut target = vec![-1.0; start + count + 1];
                // SAFETY: the target has room behind `start`.
                unsafe { write(target.as_mut_ptr().add(start), &values[..count]) }
                finish();
                assert_eq!(&target[start..start + count], &values[..count]);
                assert_eq!(target[start + count], -1.0);
            }
        }
    }
}
