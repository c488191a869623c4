//! Hints to bring memory into the first-level cache; nothing where the instruction set has none.

/// Elements of a cache line.
const LINE: usize = 16;

/// How far ahead a pass over a row asks for what it reads: the processor does not look past the end of a page.
pub const AHEAD_BYTES: usize = 2048;

/// For reading.
#[inline(always)]
pub fn to_read(values: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    for line in values.chunks(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch of any address has no effect but on the cache, and every x86-64 processor has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = values.chunks(LINE);
}

/// For writing.
#[inline(always)]
pub fn to_write(values: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    for line in values.chunks(LINE) {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: as above; processors without the instruction run it as one that does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(line.as_ptr().cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = values.chunks(LINE);
}

/// The line so many bytes behind the start of `value`, for reading; it may lie past the end of everything.
#[inline(always)]
pub fn ahead<T>(value: *const T, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(value.wrapping_byte_add(bytes).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (value, bytes);
}

/// As [`ahead`], for writing.
#[inline(always)]
pub fn ahead_to_write<T>(value: *mut T, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(value.wrapping_byte_add(bytes).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (value, bytes);
}
