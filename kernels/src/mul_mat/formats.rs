//! How the panels of block formats lie in memory, and what is in them.
//!
//! All formats are unpacked to the same eight vectors of 64 bytes for 32 k: lane r of vector v holds elements 4v to
//! 4v + 3 of row r. What lies in memory is the rows' own bytes in units of four, sixteen rows side by side, so that
//! packing moves whole units and unpacking is a shift and a mask of whole vectors.
//!
//! | format | vectors of 64 bytes | behind the vectors of the whole panel |
//! |---|---|---|
//! | q8_0 | 8 for 32 k | for each 32 k 16 scales (f16) |
//! | q4_0 | 4 for 32 k: k 0–15 in the low halves, 16–31 in the high ones | the same |
//! | q4_k | 8 for 64 k: k 0–31 in the low halves, 32–63 in the high ones | for each 32 k 16 scales and 16 minima of 6 bits; for each 256 k 16 d and 16 dmin (f16) |
//! | q6_k | 16 of low and 8 of high bits for 128 k, as in the file | for each 32 k 16 scales of its first half and 16 of its second (i8); for each 256 k 16 d (f16) |

use super::columns::Sums;
use super::interleave::units;
use super::panels::{BLOCK_BYTES, PANEL_ROWS};
use crate::shared::convert;
use half::f16;
use ssmgraph_ops::DType;
use ssmgraph_ops::quant::{Q8_0_BLOCK, Q8_0_BYTES};

/// A block format with kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// 8 bits, a scale for 32.
    Q8_0,
    /// 4 bits, a scale for 32.
    Q4_0,
    /// 4 bits, a scale and a minimum for 32.
    Q4K,
    /// 6 bits, a scale for 16.
    Q6K,
}

/// What the integers of 32 k of 16 rows are worth.
#[derive(Clone, Copy)]
pub(super) struct Worth {
    /// What a step is worth, in the first and in the second half.
    pub scales: [[f32; PANEL_ROWS]; 2],
    /// What is added to each element.
    pub minima: [f32; PANEL_ROWS],
}

/// Blocks of 32 in a block of 256.
const IN_SUPER: usize = 8;

impl Blocks {
    /// The format of a type.
    pub(super) fn of(dtype: DType) -> Option<Blocks> {
        match dtype {
            DType::Q8_0 => Some(Blocks::Q8_0),
            DType::Q4_0 => Some(Blocks::Q4_0),
            DType::Q4K => Some(Blocks::Q4K),
            DType::Q6K => Some(Blocks::Q6K),
            _ => None,
        }
    }

    /// Bytes of the vectors of so many blocks of 32 k.
    pub(super) fn vector_bytes(self, blocks: usize) -> usize {
        match self {
            Blocks::Q8_0 => blocks * BLOCK_BYTES,
            Blocks::Q4_0 | Blocks::Q4K => blocks * BLOCK_BYTES / 2,
            Blocks::Q6K => blocks * BLOCK_BYTES / 4 * 3,
        }
    }

    /// Where d, and dmin behind it, of the 256 k of a block lie; behind the scales.
    pub(super) fn super_scales(self, blocks: usize, block: usize) -> usize {
        let each = if self == Blocks::Q4K { 4 * PANEL_ROWS } else { 2 * PANEL_ROWS };
        self.scales(blocks, blocks) + block / IN_SUPER * each
    }

    /// Where the 32 bytes of the scales of a block lie.
    pub(super) fn scales(self, blocks: usize, block: usize) -> usize {
        self.vector_bytes(blocks) + block * 2 * PANEL_ROWS
    }

    /// Bytes of a panel whose rows have so many elements.
    pub(super) fn panel_bytes(self, row_len: usize) -> usize {
        let blocks = row_len / Q8_0_BLOCK;
        let end = match self {
            Blocks::Q8_0 | Blocks::Q4_0 => self.scales(blocks, blocks),
            Blocks::Q4K | Blocks::Q6K => self.super_scales(blocks, blocks),
        };
        end.next_multiple_of(64)
    }

    /// What the kernels want to know of the sums of a column.
    pub(super) fn sums(self) -> Sums {
        match self {
            Blocks::Q8_0 => Sums::Times(-128),
            Blocks::Q4_0 => Sums::Times(-8),
            Blocks::Q4K => Sums::Scaled,
            Blocks::Q6K => Sums::HalvesTimes(-32),
        }
    }

    /// Packs rows that follow each other.
    pub(super) fn pack(self, rows: &[&[u8]], panel: &mut [u8]) {
        match self {
            Blocks::Q8_0 => units(rows, Q8_0_BYTES, 2..34, panel, 8),
            Blocks::Q4_0 => units(rows, 18, 2..18, panel, 4),
            Blocks::Q4K => units(rows, 144, 16..144, panel, 32),
            Blocks::Q6K => self.pack_q6_k(rows, panel),
        }
        match self {
            Blocks::Q8_0 => self.pack_scales(rows, Q8_0_BYTES, panel),
            Blocks::Q4_0 => self.pack_scales(rows, 18, panel),
            Blocks::Q4K => self.pack_parts(rows, panel),
            Blocks::Q6K => {}
        }
    }

    /// The first two bytes of each block.
    fn pack_scales(self, rows: &[&[u8]], bytes: usize, panel: &mut [u8]) {
        let blocks = rows[0].len() / bytes;
        let (scales, _) = panel[self.scales(blocks, 0)..].as_chunks_mut::<{ 2 * PANEL_ROWS }>();
        for (r, row) in rows.iter().enumerate() {
            for (block, scales) in row.chunks_exact(bytes).zip(&mut *scales) {
                scales[2 * r..2 * r + 2].copy_from_slice(&block[..2]);
            }
        }
    }

    fn pack_parts(self, rows: &[&[u8]], panel: &mut [u8]) {
        let blocks = rows[0].len() / 144 * IN_SUPER;
        for (r, row) in rows.iter().enumerate() {
            for (index, block) in row.as_chunks::<144>().0.iter().enumerate() {
                let d = self.super_scales(blocks, index * IN_SUPER);
                panel[d + 2 * r..d + 2 * r + 2].copy_from_slice(&block[..2]);
                panel[d + 32 + 2 * r..d + 32 + 2 * r + 2].copy_from_slice(&block[2..4]);
                let packed = &block[4..16];
                for group in 0..IN_SUPER {
                    let (scale, minimum) = match group.checked_sub(4) {
                        None => (packed[group] & 63, packed[group + 4] & 63),
                        Some(before) => {
                            let low = packed[group + 4];
                            (low & 15 | packed[before] >> 6 << 4, low >> 4 | packed[group] >> 6 << 4)
                        }
                    };
                    let at = self.scales(blocks, index * IN_SUPER + group);
                    (panel[at + r], panel[at + PANEL_ROWS + r]) = (scale, minimum);
                }
            }
        }
    }

    fn pack_q6_k(self, rows: &[&[u8]], panel: &mut [u8]) {
        const BYTES: usize = 210;
        if rows[0].is_empty() {
            return;
        }
        let blocks = rows[0].len() / BYTES * IN_SUPER;
        for half in 0..2 {
            let vectors = half * 24;
            units(rows, BYTES, half * 64..half * 64 + 64, &mut panel[vectors * 64..], 48);
            units(rows, BYTES, 128 + half * 32..160 + half * 32, &mut panel[(vectors + 16) * 64..], 48);
        }
        for (r, row) in rows.iter().enumerate() {
            for (index, block) in row.as_chunks::<BYTES>().0.iter().enumerate() {
                let d = self.super_scales(blocks, index * IN_SUPER) + 2 * r;
                panel[d..d + 2].copy_from_slice(&block[208..]);
                let at = self.scales(blocks, index * IN_SUPER);
                for (group, &scale) in block[192..208].iter().enumerate() {
                    panel[at + group * PANEL_ROWS + r] = scale;
                }
            }
        }
    }

    /// The integers of a block, signed.
    #[inline(always)]
    pub(super) fn unpack(self, panel: &[u8], block: usize, integers: &mut [i8; BLOCK_BYTES]) {
        match self {
            Blocks::Q8_0 => {
                let source = &panel[block * BLOCK_BYTES..][..BLOCK_BYTES];
                for i in 0..BLOCK_BYTES {
                    integers[i] = source[i] as i8;
                }
            }
            Blocks::Q4_0 => {
                let source = &panel[block * BLOCK_BYTES / 2..][..BLOCK_BYTES / 2];
                for i in 0..BLOCK_BYTES / 2 {
                    integers[i] = (source[i] & 15) as i8 - 8;
                    integers[i + BLOCK_BYTES / 2] = (source[i] >> 4) as i8 - 8;
                }
            }
            Blocks::Q4K => {
                let source = &panel[block / 2 * BLOCK_BYTES..][..BLOCK_BYTES];
                let shift = block % 2 * 4;
                for i in 0..BLOCK_BYTES {
                    integers[i] = (source[i] >> shift & 15) as i8;
                }
            }
            Blocks::Q6K => {
                let half = &panel[self.vector_bytes(block / 4 * 4)..][..3 * BLOCK_BYTES];
                let quarter = block % 4;
                let low = &half[quarter % 2 * BLOCK_BYTES..][..BLOCK_BYTES];
                let high = &half[2 * BLOCK_BYTES..];
                let (low_shift, high_shift) = (quarter / 2 * 4, quarter * 2);
                for i in 0..BLOCK_BYTES {
                    integers[i] = (low[i] >> low_shift & 15 | (high[i] >> high_shift & 3) << 4) as i8 - 32;
                }
            }
        }
    }

    /// What the integers of a block are worth.
    #[inline(always)]
    pub(super) fn worth(self, panel: &[u8], blocks: usize, block: usize) -> Worth {
        let halves = |start: usize| -> [f32; PANEL_ROWS] {
            let (pairs, _) = panel[start..start + 2 * PANEL_ROWS].as_chunks::<2>();
            let mut wide = [0.0; PANEL_ROWS];
            convert::f16_to_f32(
                &std::array::from_fn::<_, PANEL_ROWS, _>(|r| f16::from_le_bytes(pairs[r])),
                &mut wide,
            );
            wide
        };
        let scales = self.scales(blocks, block);
        let mut worth = Worth { scales: [[0.0; PANEL_ROWS]; 2], minima: [0.0; PANEL_ROWS] };
        match self {
            Blocks::Q8_0 | Blocks::Q4_0 => worth.scales = [halves(scales); 2],
            Blocks::Q4K => {
                let at = self.super_scales(blocks, block);
                let (d, dmin) = (halves(at), halves(at + 2 * PANEL_ROWS));
                for r in 0..PANEL_ROWS {
                    worth.scales[0][r] = d[r] * f32::from(panel[scales + r]);
                    worth.minima[r] = -dmin[r] * f32::from(panel[scales + PANEL_ROWS + r]);
                }
                worth.scales[1] = worth.scales[0];
            }
            Blocks::Q6K => {
                let d = halves(self.super_scales(blocks, block));
                for half in 0..2 {
                    for r in 0..PANEL_ROWS {
                        let scale = panel[scales + half * PANEL_ROWS + r] as i8;
                        worth.scales[half][r] = d[r] * f32::from(scale);
                    }
                }
            }
        }
        worth
    }
}
