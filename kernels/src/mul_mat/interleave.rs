//! Mixes the rows of a panel: sixteen rows, or fewer at the end of a matrix, whose places then stay as they are.
//!
//! All formats move units of four bytes (of 16-bit floats, pairs, which are then parted). With AVX-512 sixteen units of
//! sixteen rows are transposed in registers: 64 shuffles for 1 KiB, against as many moves as there are units.

use super::panels::{BLOCK_BYTES, PANEL_ROWS};
use ssmgraph_ops::quant::Q8_0_BYTES;

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

/// The blocks of Q8_0: integers, then scales.
pub(super) fn q8_0(rows: &[&[u8]], target: &mut [u8]) {
    let blocks = rows[0].len() / Q8_0_BYTES;
    let (integers, scales) = target.split_at_mut(blocks * BLOCK_BYTES);
    let (scales, _) = scales.as_chunks_mut::<{ 2 * PANEL_ROWS }>();
    let (integers, _) = integers.as_chunks_mut::<BLOCK_BYTES>();
    for (r, row) in rows.iter().enumerate() {
        let (row, _) = row.as_chunks::<Q8_0_BYTES>();
        for (block, scales) in row.iter().zip(&mut *scales) {
            scales[2 * r..2 * r + 2].copy_from_slice(&block[..2]);
        }
    }
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if let (true, Ok(rows)) = (x86::available(), <&[&[u8]; PANEL_ROWS]>::try_from(rows)) {
        // SAFETY: the processor has the instructions.
        done = unsafe { x86::q8_0(rows, integers) };
    }
    for (r, row) in rows.iter().enumerate() {
        let (row, _) = row.as_chunks::<Q8_0_BYTES>();
        for (block, integers) in row.iter().zip(&mut *integers).skip(done) {
            let (vectors, _) = integers.as_chunks_mut::<64>();
            for (four, vector) in block[2..].as_chunks::<4>().0.iter().zip(vectors) {
                vector[4 * r..4 * r + 4].copy_from_slice(four);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{BLOCK_BYTES, PANEL_ROWS, Q8_0_BYTES};
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

    /// Pairs of blocks; returns how many blocks were moved.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) fn q8_0(rows: &[&[u8]; PANEL_ROWS], integers: &mut [[u8; BLOCK_BYTES]]) -> usize {
        let (pairs, _) = integers.as_chunks_mut::<2>();
        for (index, pair) in pairs.iter_mut().enumerate() {
            let mut vectors = [_mm512_setzero_si512(); 16];
            for r in 0..16 {
                let blocks: &[u8; 2 * Q8_0_BYTES] =
                    rows[r][index * 2 * Q8_0_BYTES..].first_chunk().expect("a pair of blocks");
                // SAFETY: in each block 32 bytes follow the two of the scale.
                vectors[r] = unsafe {
                    let low = _mm512_castsi256_si512(_mm256_loadu_si256(blocks.as_ptr().add(2).cast()));
                    let high = _mm256_loadu_si256(blocks.as_ptr().add(2 + Q8_0_BYTES).cast());
                    _mm512_inserti64x4::<1>(low, high)
                };
            }
            transpose(&mut vectors);
            for (vector, target) in vectors.into_iter().zip(pair.as_flattened_mut().as_chunks_mut::<64>().0) {
                // SAFETY: the reference is to 64 bytes.
                unsafe { _mm512_storeu_si512(target.as_mut_ptr().cast(), vector) }
            }
        }
        pairs.len() * 2
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
    fn blocks_come_to_their_places() {
        for blocks in [1, 2, 5] {
            let len = blocks * Q8_0_BYTES;
            let rows: Vec<Vec<u8>> =
                (0..16).map(|r| (0..len).map(|i| (r * 29 + i * 5) as u8).collect()).collect();
            let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
            let mut panel = vec![0; len * 16];
            q8_0(&rows, &mut panel);
            for (r, row) in rows.iter().enumerate() {
                for (block, bytes) in row.chunks(Q8_0_BYTES).enumerate() {
                    assert_eq!(panel[blocks * BLOCK_BYTES + block * 32 + r * 2..][..2], bytes[..2]);
                    for (k, byte) in bytes[2..].iter().enumerate() {
                        assert_eq!(panel[block * BLOCK_BYTES + k / 4 * 64 + r * 4 + k % 4], *byte);
                    }
                }
            }
        }
    }
}
