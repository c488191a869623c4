//! Mixes the rows of a panel: sixteen rows, or fewer at the end of a matrix, whose places then stay as they are.
//!
//! All formats move units of four bytes (of 16-bit floats, pairs, which are then parted). With AVX-512 sixteen units of
//! sixteen rows are transposed in registers: 64 shuffles for 1 KiB, against as many moves as there are units.

use super::panels::PANEL_ROWS;
use std::ops::Range;

/// Elements of N bytes, those of all rows before the next of any.
pub(super) fn floats<const N: usize>(rows: &[&[u8]], target: &mut [u8]) {
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if let (true, Ok(rows)) = (x86::available(), <&[&[u8]; PANEL_ROWS]>::try_from(rows)) {
        // SAFETY: the processor has the instructions.
        done = unsafe { x86::floats::<N>(rows, target) };
    }
    let (target, _) = target.as_chunks_mut::<N>();
    // A few cache lines of each row at a time: what is read and written stays in the first-level cache.
    for (piece, target) in target[done * PANEL_ROWS..].chunks_mut(PANEL_ROWS * 64).enumerate() {
        for (r, row) in rows.iter().enumerate() {
            let source = &row.as_chunks::<N>().0[done + piece * 64..];
            for (target, source) in target[r..].iter_mut().step_by(PANEL_ROWS).zip(source) {
                *target = *source;
            }
        }
    }
}

/// Units of four bytes from these bytes of each block, those of all rows before the next of any. What comes of a block
/// starts `apart` vectors of 64 bytes behind what came of the one before.
pub(super) fn units(rows: &[&[u8]], block_bytes: usize, from: Range<usize>, target: &mut [u8], apart: usize) {
    let vectors = from.len() / 4;
    let blocks = rows[0].len() / block_bytes;
    let Some(last) = blocks.checked_sub(1) else { return };
    let (target, _) = target[..(last * apart + vectors) * 64].as_chunks_mut::<64>();
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if let (true, Ok(rows)) = (x86::available(), <&[&[u8]; PANEL_ROWS]>::try_from(rows)) {
        // SAFETY: the processor has the instructions.
        done = unsafe { x86::units(rows, block_bytes, from.clone(), target, apart) };
    }
    for (r, row) in rows.iter().enumerate() {
        let blocks = row.chunks_exact(block_bytes).zip(target.chunks_mut(apart));
        for (block, vectors) in blocks.skip(done) {
            for (unit, vector) in block[from.clone()].as_chunks::<4>().0.iter().zip(vectors) {
                vector[4 * r..4 * r + 4].copy_from_slice(unit);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{PANEL_ROWS, Range};
    use crate::shared::simd;
    use pulp::Arch;
    use std::arch::x86_64::*;

    pub(super) fn available() -> bool {
        matches!(simd::arch(), Arch::V4(_))
    }

    /// Elements of four or two bytes; returns how many of each row were moved.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) fn floats<const N: usize>(rows: &[&[u8]; PANEL_ROWS], target: &mut [u8]) -> usize {
        let (targets, _) = target.as_chunks_mut::<1024>();
        let whole = targets.len().min(rows[0].len() / 64);
        let halves = _mm512_set_epi16(
            31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26, 24, 22, 20, 18, 16, 14,
            12, 10, 8, 6, 4, 2, 0,
        );
        for (piece, target) in targets[..whole].iter_mut().enumerate() {
            let mut vectors = [_mm512_setzero_si512(); 16];
            for r in 0..16 {
                let line: &[u8; 64] = rows[r][piece * 64..].first_chunk().expect("a whole line");
                // SAFETY: the reference is to 64 bytes.
                vectors[r] = unsafe { _mm512_loadu_si512(line.as_ptr().cast()) };
            }
            transpose(&mut vectors);
            for (vector, target) in vectors.into_iter().zip(target.as_chunks_mut::<64>().0) {
                let vector = if N == 2 { _mm512_permutexvar_epi16(halves, vector) } else { vector };
                // SAFETY: the reference is to 64 bytes.
                unsafe { _mm512_storeu_si512(target.as_mut_ptr().cast(), vector) }
            }
        }
        whole * (64 / N)
    }

    /// As many blocks at a time as make whole vectors, of 16, 32 or whole lines of bytes each; returns how many blocks were moved.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) fn units(
        rows: &[&[u8]; PANEL_ROWS],
        block_bytes: usize,
        from: Range<usize>,
        target: &mut [[u8; 64]],
        apart: usize,
    ) -> usize {
        let mut vectors = [_mm512_setzero_si512(); 16];
        let pieces = 64usize.div_ceil(from.len());
        let per_block = from.len() / 4;
        let blocks = rows[0].len() / block_bytes / pieces * pieces;
        for block in (0..blocks).step_by(pieces) {
            for first in (0..per_block).step_by(16) {
                // The first byte of each of the pieces that make up a vector, in a row.
                let start = block * block_bytes + from.start + first * 4;
                for (vector, row) in vectors.iter_mut().zip(rows) {
                    let bytes = &row[start..start + (pieces - 1) * block_bytes + 64 / pieces];
                    // SAFETY: the pieces lie in `bytes`, one of each block.
                    *vector = unsafe { gather(bytes.as_ptr(), pieces, block_bytes) };
                }
                transpose(&mut vectors);
                for (piece, vectors) in vectors.chunks_exact(16 / pieces).enumerate() {
                    let place = (block + piece) * apart + first;
                    for (vector, target) in vectors.iter().zip(&mut target[place..place + 16 / pieces]) {
                        // SAFETY: the reference is to 64 bytes.
                        unsafe { _mm512_storeu_si512(target.as_mut_ptr().cast(), *vector) }
                    }
                }
            }
        }
        blocks
    }

    /// # Safety
    /// 1, 2 or 4 pieces that make up 64 bytes are readable, so many bytes apart.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn gather(start: *const u8, pieces: usize, apart: usize) -> __m512i {
        // SAFETY: by the function's contract.
        unsafe {
            match pieces {
                1 => _mm512_loadu_si512(start.cast()),
                2 => {
                    let low = _mm512_castsi256_si512(_mm256_loadu_si256(start.cast()));
                    _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(start.add(apart).cast()))
                }
                _ => {
                    let quarter = |piece: usize| _mm_loadu_si128(start.add(piece * apart).cast());
                    let vector = _mm512_castsi128_si512(quarter(0));
                    let vector = _mm512_inserti32x4::<1>(vector, quarter(1));
                    let vector = _mm512_inserti32x4::<2>(vector, quarter(2));
                    _mm512_inserti32x4::<3>(vector, quarter(3))
                }
            }
        }
    }

    /// Unit c of vector r becomes unit r of vector c.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn transpose(rows: &mut [__m512i; 16]) {
        let mut twos = [_mm512_setzero_si512(); 16];
        for pair in 0..8 {
            twos[2 * pair] = _mm512_unpacklo_epi32(rows[2 * pair], rows[2 * pair + 1]);
            twos[2 * pair + 1] = _mm512_unpackhi_epi32(rows[2 * pair], rows[2 * pair + 1]);
        }
        // fours[4 q + c]: column c of each quarter vector, of rows 4 q to 4 q + 3.
        let mut fours = [_mm512_setzero_si512(); 16];
        for q in 0..4 {
            fours[4 * q] = _mm512_unpacklo_epi64(twos[4 * q], twos[4 * q + 2]);
            fours[4 * q + 1] = _mm512_unpackhi_epi64(twos[4 * q], twos[4 * q + 2]);
            fours[4 * q + 2] = _mm512_unpacklo_epi64(twos[4 * q + 1], twos[4 * q + 3]);
            fours[4 * q + 3] = _mm512_unpackhi_epi64(twos[4 * q + 1], twos[4 * q + 3]);
        }
        for c in 0..4 {
            let even_low = _mm512_shuffle_i32x4::<0x88>(fours[c], fours[4 + c]);
            let odd_low = _mm512_shuffle_i32x4::<0xDD>(fours[c], fours[4 + c]);
            let even_high = _mm512_shuffle_i32x4::<0x88>(fours[8 + c], fours[12 + c]);
            let odd_high = _mm512_shuffle_i32x4::<0xDD>(fours[8 + c], fours[12 + c]);
            rows[c] = _mm512_shuffle_i32x4::<0x88>(even_low, even_high);
            rows[4 + c] = _mm512_shuffle_i32x4::<0x88>(odd_low, odd_high);
            rows[8 + c] = _mm512_shuffle_i32x4::<0xDD>(even_low, even_high);
            rows[12 + c] = _mm512_shuffle_i32x4::<0xDD>(odd_low, odd_high);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_comes_to_its_place() {
        for len in [4, 60, 64, 132, 260] {
            for count in [1, 15, 16] {
                let rows: Vec<Vec<u8>> =
                    (0..count).map(|r| (0..len).map(|i| (r * 17 + i * 3 + i / 64) as u8).collect()).collect();
                let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
                let (mut fours, mut twos) = (vec![0; len * 16], vec![0; len * 16]);
                floats::<4>(&rows, &mut fours);
                floats::<2>(&rows, &mut twos);
                for (r, row) in rows.iter().enumerate() {
                    for (i, byte) in row.iter().enumerate() {
                        assert_eq!(fours[(i / 4 * 16 + r) * 4 + i % 4], *byte, "{len} {count} {r} {i}");
                        assert_eq!(twos[(i / 2 * 16 + r) * 2 + i % 2], *byte, "{len} {count} {r} {i}");
                    }
                }
            }
        }
    }

    #[test]
    fn units_of_blocks_come_to_their_places() {
        for (bytes, from) in [(34, 2..34), (18, 2..18), (144, 16..144), (210, 64..128), (210, 128..160)] {
            for blocks in [1, 2, 5] {
                for count in [3, 16] {
                    let row =
                        |r: usize| (0..blocks * bytes).map(|i| (r * 29 + i * 5 + i / 256) as u8).collect();
                    let rows: Vec<Vec<u8>> = (0..count).map(row).collect();
                    let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
                    let apart = from.len() / 4 + blocks % 2;
                    let mut target = vec![0; blocks * apart * 64];
                    units(&rows, bytes, from.clone(), &mut target, apart);
                    for (r, row) in rows.iter().enumerate() {
                        for (block, bytes) in row.chunks(bytes).enumerate() {
                            for (i, byte) in bytes[from.clone()].iter().enumerate() {
                                let at = (block * apart + i / 4) * 64 + r * 4 + i % 4;
                                assert_eq!(target[at], *byte, "{from:?} {blocks} {count}: {r} {block} {i}");
                            }
                        }
                    }
                }
            }
        }
    }
}
