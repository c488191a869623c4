//! Products of block formats: panels of weights with columns of b rounded to the same blocks.
//!
//! A block's 32 products are summed in integers, exactly, so that it does not matter which instructions do it; the
//! sum, times the product of both scales, is added to the output's one accumulator with one rounding, block after
//! block; where blocks have minima, what those come to is summed for itself in the same way and added at the end. Results
//! are the same to the bit on every instruction set, and whatever is computed beside them.

use super::columns::{GROUP_COLUMNS, Group, Places, Rounded, Sums};
use super::cpu::{Columns, Part};
use super::formats::Blocks;
use super::panels::{BLOCK_BYTES, Format, PANEL_ROWS};
use crate::kernel::Scratch;
use crate::shared::call::{Call, In, Shared};
use crate::shared::pool::Worker;
use crate::shared::{prefetch, simd};
use once_cell::sync::Lazy;
use ssmgraph_ops::Layout;
use ssmgraph_ops::quant::Q8_0_BLOCK;
use std::ops::Range;

/// Bytes of b that shall stay in the second-level cache while panels pass by.
const CACHED_BYTES: usize = 1 << 20;

/// Panels whose outputs are written together: a few lines of each column, not one.
pub(super) const PANELS_AT_ONCE: usize = 4;

/// A panel of weights.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    /// Its format.
    pub format: Blocks,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Blocks of 32 k.
    pub blocks: usize,
    /// Its integers as bytes, eight vectors for each block, where they are needed so.
    pub expanded: &'a [u8],
}

/// Outputs of some panels with a group, column by column.
pub(super) type Outputs = [[[f32; PANEL_ROWS]; PANELS_AT_ONCE]; GROUP_COLUMNS];

/// Which instructions form the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Whatever the compiler makes of it.
    Portable,
    /// AVX2 with FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 with VNNI.
    #[cfg(target_arch = "x86_64")]
    Vnni,
    /// Matrix units for whole groups, AVX-512 for the rest.
    #[cfg(target_arch = "x86_64")]
    Amx,
}

static LEVEL: Lazy<Level> = Lazy::new(|| *Level::all().last().expect("there is a portable one"));

impl Level {
    /// All that this processor has and that nobody forbade, the best last.
    pub(super) fn all() -> Vec<Level> {
        let mut levels = vec![Level::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            if super::avx2::available() {
                levels.push(Level::Avx2);
            }
            if super::vnni::available() {
                levels.push(Level::Vnni);
                if simd::has_matrix_units() {
                    levels.push(Level::Amx);
                }
            }
        }
        levels
    }

    /// The products of a panel with some columns of a group, to this place in their outputs. All have as many blocks.
    /// `tiles` is what this thread's matrix tiles are shaped for, if they are.
    pub(super) fn products(
        self,
        panel: Panel<'_>,
        group: Group<'_>,
        columns: Range<usize>,
        tiles: Option<Blocks>,
        place: usize,
        outputs: &mut Outputs,
    ) {
        let count = panel.blocks * group.width;
        assert!(columns.end <= group.width.min(GROUP_COLUMNS));
        assert!(panel.bytes.len() == panel.format.panel_bytes(panel.blocks * Q8_0_BLOCK));
        assert!(group.integers.len() == count * Q8_0_BLOCK && group.scales.len() == count);
        assert!(group.sums.len() == count * panel.format.sums().count());
        match self {
            Level::Portable => {
                columns.for_each(|column| outputs[column][place] = portable(panel, group, column))
            }
            // SAFETY: the level exists where the processor has the instructions; lengths were checked.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { super::avx2::products(panel, group, columns, place, outputs) },
            #[cfg(target_arch = "x86_64")]
            Level::Amx if self.wants_expanded(group.width, columns.len()) => {
                assert!(panel.expanded.len() >= panel.blocks * BLOCK_BYTES && tiles == Some(panel.format));
                // SAFETY: as above; the group has 16 columns, and the tiles were shaped for the panel's format.
                unsafe { super::amx::products(panel, group, place, outputs) }
            }
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Level::Amx | Level::Vnni => unsafe {
                super::vnni::products(panel, group, columns, place, outputs)
            },
        }
    }

    /// Whether the products with so many columns of a group of this width read the expanded panel.
    fn wants_expanded(self, width: usize, columns: usize) -> bool {
        #[cfg(target_arch = "x86_64")]
        if self == Level::Amx {
            return width == GROUP_COLUMNS && columns >= super::amx::COLUMNS_MIN;
        }
        let _ = (width, columns);
        false
    }

    /// Expands a panel of fewer bits, for [`Panel::expanded`].
    fn expand<'a>(self, panel: Panel<'a>, target: &'a mut [u8]) -> &'a [u8] {
        if panel.format == Blocks::Q8_0 {
            return panel.bytes;
        }
        let target = &mut target[..panel.blocks * BLOCK_BYTES];
        assert!(panel.bytes.len() == panel.format.panel_bytes(panel.blocks * Q8_0_BLOCK));
        #[cfg(target_arch = "x86_64")]
        if self >= Level::Vnni {
            // SAFETY: the level exists where the processor has the instructions; the length was checked.
            unsafe { super::vnni::expand(panel, target) }
        }
        target
    }
}

fn portable(panel: Panel<'_>, group: Group<'_>, column: usize) -> [f32; PANEL_ROWS] {
    simd::vectorize(
        #[inline(always)]
        || {
            let Panel { format, bytes, blocks, .. } = panel;
            let halves = format.sums().count();
            let mut integers = [0; BLOCK_BYTES];
            let mut sums = [0.0f32; PANEL_ROWS];
            let mut of_minima = [0.0f32; PANEL_ROWS];
            for block in 0..blocks {
                let at = block * group.width + column;
                let b: &[i8; Q8_0_BLOCK] =
                    group.integers[at * Q8_0_BLOCK..].first_chunk().expect("a block per column");
                format.unpack(bytes, block, &mut integers);
                let worth = format.worth(bytes, blocks, block);
                for half in 0..halves {
                    let mut totals = [0i32; PANEL_ROWS];
                    for four in half * 4..8 - (halves - 1 - half) * 4 {
                        for row in 0..PANEL_ROWS {
                            for k in 0..4 {
                                let a = integers[four * 64 + row * 4 + k];
                                totals[row] += i32::from(a) * i32::from(b[four * 4 + k]);
                            }
                        }
                    }
                    for row in 0..PANEL_ROWS {
                        let scale = worth.scales[half][row] * group.scales[at];
                        sums[row] = (totals[row] as f32).mul_add(scale, sums[row]);
                    }
                }
                if format == Blocks::Q4K {
                    let scaled = f32::from_bits(group.sums[at] as u32);
                    for (sum, minimum) in of_minima.iter_mut().zip(worth.minima) {
                        *sum = minimum.mul_add(scaled, *sum);
                    }
                }
            }
            if format == Blocks::Q4K {
                for row in 0..PANEL_ROWS {
                    sums[row] += of_minima[row];
                }
            }
            sums
        },
    )
}

/// For products with b, of which `listed` rows may have to be brought together by a worker.
pub(crate) fn scratch(a: &Layout, b: &Layout, listed: usize) -> Scratch {
    if b.is_empty() {
        return Scratch::default();
    }
    let format = format_of(a);
    let panels = PANELS_AT_ONCE * (format.panel_bytes(a.ne[0]) + expanded_bytes(format, blocks_in_row(a)));
    let groups = columns_at_once(blocks_in_row(a)).min(listed).div_ceil(GROUP_COLUMNS);
    let gathered = Places::new(blocks_in_row(a), GROUP_COLUMNS, format.sums()).bytes().saturating_mul(groups);
    let own_floats = panels.saturating_add(gathered) / size_of::<f32>() + VECTOR_FLOATS;
    Scratch { shared_bytes: Rounded::of(b, format).bytes(), own_floats }
}

/// Bytes of a panel's integers where they are not bytes already.
fn expanded_bytes(format: Blocks, blocks: usize) -> usize {
    if format == Blocks::Q8_0 { 0 } else { blocks * BLOCK_BYTES }
}

fn format_of(a: &Layout) -> Blocks {
    Blocks::of(a.dtype).expect("the shape rule lets no other types be rounded for")
}

/// Elements of the widest vector.
const VECTOR_FLOATS: usize = 16;

/// Where a worker's scratch is aligned to vectors, as bytes.
fn aligned(own: &mut [f32]) -> &mut [u8] {
    let skip = own.as_ptr().align_offset(VECTOR_FLOATS * size_of::<f32>()).min(own.len());
    bytemuck::cast_slice_mut(&mut own[skip..])
}

fn blocks_in_row(layout: &Layout) -> usize {
    layout.ne[0] / Q8_0_BLOCK
}

/// Columns that panels pass by together, whole groups.
fn columns_at_once(blocks: usize) -> usize {
    (CACHED_BYTES / Places::new(blocks.max(1), GROUP_COLUMNS, Sums::Times(0)).bytes()).clamp(1, 64)
        * GROUP_COLUMNS
}

/// Rounds this worker's share of b for products with a.
pub(crate) fn prepare(a: &In, b: &In, shared: &Shared, worker: &Worker<'_>) {
    Rounded::of(b.layout(), format_of(a.layout())).round(b, shared, worker);
}

/// Computes one part of the result.
pub(crate) fn multiply(call: &Call, part: &Part<'_>, own: &mut [f32]) {
    let (a, b) = (call.inputs[0].layout(), call.inputs[1].layout());
    let (format, blocks) = (format_of(a), blocks_in_row(a));
    let panel_bytes = format.panel_bytes(a.ne[0]);
    let (packed, own) = aligned(own).split_at_mut(PANELS_AT_ONCE * panel_bytes);
    let (expanded, gathered) = own.split_at_mut(PANELS_AT_ONCE * expanded_bytes(format, blocks));
    #[cfg(target_arch = "x86_64")]
    let mut tiles = None;
    let rounded = Rounded::of(b, format);
    for first in part.columns.clone().step_by(columns_at_once(blocks)) {
        let columns = first..part.columns.end.min(first + columns_at_once(blocks));
        let groups = Groups::new(call, part, rounded, blocks, columns, gathered);
        #[cfg(target_arch = "x86_64")]
        let shaped = groups
            .want_expanded()
            .then(|| tiles.get_or_insert_with(|| super::amx::Tiles::configure(format)).format());
        #[cfg(not(target_arch = "x86_64"))]
        let shaped = None;
        for first in part.panels.clone().step_by(PANELS_AT_ONCE) {
            let count = PANELS_AT_ONCE.min(part.panels.end - first);
            let mut panels = [Panel { format, bytes: &[], blocks, expanded: &[] }; PANELS_AT_ONCE];
            let (mut places, mut wide_places) = (&mut *packed, &mut *expanded);
            for (p, panel) in panels[..count].iter_mut().enumerate() {
                let (place, rest) = places.split_at_mut(panel_bytes);
                let (wide, wide_rest) = wide_places.split_at_mut(expanded_bytes(format, blocks));
                (places, wide_places) = (rest, wide_rest);
                panel.bytes = part.panel(call, first + p, Format::Blocks(format), place);
                if groups.want_expanded() {
                    panel.expanded = LEVEL.expand(*panel, wide);
                }
            }
            groups.with_panels(first, &panels[..count], shaped);
        }
    }
}

/// The groups of some columns of a part.
struct Groups<'a> {
    call: &'a Call,
    part: &'a Part<'a>,
    rounded: Rounded,
    columns: Range<usize>,
    /// The groups of listed columns, brought together.
    gathered: Option<(Places, &'a [u8])>,
}

impl<'a> Groups<'a> {
    fn new(
        call: &'a Call,
        part: &'a Part<'a>,
        rounded: Rounded,
        blocks: usize,
        columns: Range<usize>,
        target: &'a mut [u8],
    ) -> Groups<'a> {
        let mut groups = Groups { call, part, rounded, columns, gathered: None };
        if let Columns::Listed(_) = part.place {
            let sums = format_of(call.inputs[0].layout()).sums();
            let places = Places::new(blocks, groups.columns.len().min(GROUP_COLUMNS), sums);
            for (index, n) in groups.columns.clone().enumerate() {
                let row = part.row_of_b(call.inputs[1].layout(), n);
                // SAFETY: all workers rounded their shares before the barrier, and nobody writes them since.
                let source = unsafe { rounded.group(&call.shared, row) };
                let target = &mut target[index / GROUP_COLUMNS * places.bytes()..][..places.bytes()];
                places.copy(source, row[0] % GROUP_COLUMNS, target, index % GROUP_COLUMNS);
            }
            groups.gathered = Some((places, target));
        }
        groups
    }

    /// The group with column n, and which of its columns n is.
    fn group_of(&self, n: usize) -> (Group<'_>, usize) {
        match self.gathered {
            Some((places, bytes)) => {
                let index = n - self.columns.start;
                let start = index / GROUP_COLUMNS * places.bytes();
                (places.group(&bytes[start..start + places.bytes()]), index % GROUP_COLUMNS)
            }
            None => {
                let row = self.part.row_of_b(self.call.inputs[1].layout(), n);
                // SAFETY: all workers rounded their shares before the barrier, and nobody writes them since.
                (unsafe { self.rounded.group(&self.call.shared, row) }, row[0] % GROUP_COLUMNS)
            }
        }
    }

    /// Whether some of the columns want expanded panels: those of the first group do if any does.
    fn want_expanded(&self) -> bool {
        let width = self.group_of(self.columns.start).0.width;
        LEVEL.wants_expanded(width, self.columns.len().min(GROUP_COLUMNS))
    }

    /// The outputs of panels, from this one on, with all columns.
    fn with_panels(&self, first: usize, panels: &[Panel<'_>], tiles: Option<Blocks>) {
        let rows = self.part.rows_of_panels(self.call, first, panels.len());
        let mut outputs = [[[0.0; PANEL_ROWS]; PANELS_AT_ONCE]; GROUP_COLUMNS];
        let mut next = self.columns.start;
        while next < self.columns.end {
            let (group, first) = self.group_of(next);
            let columns = first..GROUP_COLUMNS.min(first + self.columns.end - next);
            let mut targets: [&mut [f32]; GROUP_COLUMNS] = std::array::from_fn(|_| &mut [][..]);
            for (n, target) in (next..).zip(&mut targets[columns.clone()]) {
                // SAFETY: the rows and columns of the part belong to this worker alone, and are other ones each time.
                *target = unsafe { self.call.results[0].f32_row(self.part.result_row(n), rows.clone()) };
                // Results are written row by row, each line far from the last.
                prefetch::to_write(target);
            }
            for (place, panel) in panels.iter().enumerate() {
                LEVEL.products(*panel, group, columns.clone(), tiles, place, &mut outputs);
            }
            for (target, values) in targets.iter_mut().zip(&outputs) {
                target.copy_from_slice(&values.as_flattened()[..target.len()]);
            }
            next += columns.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssmgraph_ops::DType;
    use ssmgraph_ops::case::Values;

    /// Every level's outputs of 16 rows and some columns.
    fn outputs(level: Level, dtype: DType, blocks: usize, columns: usize, extreme: bool) -> Outputs {
        let format = Blocks::of(dtype).unwrap();
        let mut values = Values::new(blocks as u64);
        let a = values.tensor(dtype, &[blocks * Q8_0_BLOCK, 13], -2.0, 3.0);
        let mut weights = a.bytes().to_vec();
        let b = values.tensor(DType::F32, &[blocks * Q8_0_BLOCK, columns], -1.0, 1.5);
        if extreme {
            // All the largest magnitudes of all formats, and ordinary numbers in the scales.
            let block = ssmgraph_ops::quant::Format::of(dtype).unwrap().block_bytes();
            let pattern = if dtype == DType::Q8_0 { 0x80 } else { 0xFF };
            let is_f16 = |i: usize| i < 4 || (dtype == DType::Q6K && i >= 208);
            let bytes = weights.chunks_mut(block).flat_map(|block| block.iter_mut().enumerate());
            bytes.filter(|(i, _)| !is_f16(*i)).for_each(|(_, byte)| *byte = pattern);
        }
        // SAFETY: the bytes outlive the operands, and the layouts are theirs.
        let (a, b) =
            unsafe { (In::new(weights.as_ptr(), *a.layout()), In::new(b.bytes().as_ptr(), *b.layout())) };
        let mut bytes = vec![0; format.panel_bytes(blocks * Q8_0_BLOCK)];
        Format::Blocks(format).pack(&a, [0; 3], &mut bytes);
        let rounded = Rounded::of(b.layout(), format);
        let mut scratch = vec![0u32; rounded.bytes().div_ceil(4)];
        // SAFETY: the scratch outlives its use, by this thread alone.
        let shared = unsafe { Shared::new(scratch.as_mut_ptr().cast(), scratch.len() * 4) };
        rounded.round(&b, &shared, &Worker::ALONE);
        #[cfg(target_arch = "x86_64")]
        let tiles = (level == Level::Amx).then(|| super::super::amx::Tiles::configure(format));
        #[cfg(target_arch = "x86_64")]
        let shaped = tiles.as_ref().map(|tiles| tiles.format());
        #[cfg(not(target_arch = "x86_64"))]
        let shaped = None;
        let mut panel = Panel { format, bytes: &bytes, blocks, expanded: &[] };
        let mut wide = vec![0; blocks * BLOCK_BYTES];
        panel.expanded = level.expand(panel, &mut wide);
        let mut outputs = [[[0.0; PANEL_ROWS]; PANELS_AT_ONCE]; GROUP_COLUMNS];
        // SAFETY: it was written above.
        let group = unsafe { rounded.group(&shared, [0; 3]) };
        level.products(panel, group, 0..columns, shaped, 1, &mut outputs);
        outputs
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        for dtype in [DType::Q8_0, DType::Q4_0, DType::Q4K, DType::Q6K] {
            for (blocks, columns) in [(1, 1), (2, 16), (3, 7), (24, 16), (25, 13), (5, 3)] {
                let blocks = blocks * dtype.block_len() / Q8_0_BLOCK;
                for extreme in [false, true] {
                    let want = outputs(Level::Portable, dtype, blocks, columns, extreme);
                    for level in Level::all() {
                        let got = outputs(level, dtype, blocks, columns, extreme);
                        let bits = |outputs: &Outputs| {
                            outputs[..columns]
                                .iter()
                                .flatten()
                                .flatten()
                                .map(|y| y.to_bits())
                                .collect::<Vec<_>>()
                        };
                        let same = bits(&got) == bits(&want);
                        assert!(same, "{level:?}, {dtype}: {blocks} blocks, {columns} columns, {extreme}");
                    }
                }
            }
        }
    }
}
