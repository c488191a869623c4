//! Products of panels of `f32` with rows of b; panels of 16-bit floats are widened, a piece at a time.
//!
//! Each output is one lane of one accumulator that walks k in order: a broadcast element of b times the vector of a
//! panel's 16 rows. Tiles of three panels × eight columns (AVX-512; 24 accumulators) or one × six (AVX2; 12 of half a
//! panel) hold what they load in registers; between two pieces of k the sums lie in the result itself.
//!
//! Rows where they lie in the file, with lanes along k, lose a third of their time at K = 768 to sums across lanes, and
//! cannot have one order for all instruction sets. Measured on a Xeon with AVX-512 at about 2.1 GHz, one thread,
//! 3072 × 768: 256 columns at 63 of 67 billion products a second; one column of 16-bit floats, widened as they come
//! from memory, three times as fast as with a copy in the first-level cache.

use super::cpu::Part;
use super::interleave;
use super::panels::{Format, PANEL_ROWS};
use crate::kernel::Scratch;
use crate::shared::call::{Call, In, Shared, row_count, rows_of};
use crate::shared::pool::Worker;
use crate::shared::{convert, prefetch, simd};
use half::{bf16, f16};
use pulp::{Simd, WithSimd};
use ssmgraph_ops::{DType, Layout};
use std::ops::Range;

/// Elements of k handled before the next tile: what a tile reads stays in the nearest caches.
const DEPTH: usize = 256;

/// Columns that panels pass by together: their pieces stay in the second-level cache.
const COLUMNS_AT_ONCE: usize = 512;

/// Most panels of a tile.
const TILE_PANELS: usize = 3;

/// Floats of a piece of a panel.
const PIECE: usize = PANEL_ROWS * DEPTH;

/// Whether rows of b have to be copied first.
pub(crate) fn needs_packing(b: &Layout) -> bool {
    !b.rows_packed()
}

/// For products with b.
pub(crate) fn scratch(b: &Layout) -> Scratch {
    let shared_bytes = if needs_packing(b) { b.elements().saturating_mul(size_of::<f32>()) } else { 0 };
    Scratch { shared_bytes, own_floats: (TILE_PANELS + 1) * PIECE }
}

/// Copies this worker's rows of b into the scratch, one after another.
pub(crate) fn pack(b: &In, shared: &Shared, worker: &Worker<'_>) {
    let row_bytes = b.ne()[0] * size_of::<f32>();
    let first = worker.share(row_count(b.layout())).start;
    for (number, row) in (first..).zip(rows_of(b.layout(), worker)) {
        // SAFETY: each row has a place of its own, and belongs to one worker.
        let target = unsafe { shared.bytes_mut(number * row_bytes..(number + 1) * row_bytes) };
        b.load(row, 0, bytemuck::cast_slice_mut(target));
    }
}

/// Computes one part of the result.
pub(crate) fn multiply(call: &Call, part: &Part<'_>, own: &mut [f32]) {
    simd::arch().dispatch(Product { call, part, own });
}

struct Product<'a> {
    call: &'a Call,
    part: &'a Part<'a>,
    own: &'a mut [f32],
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match S::F32_LANES {
            16 => self.walk::<S, 1, TILE_PANELS, 8>(simd),
            8 => self.walk::<S, 2, 1, 6>(simd),
            4 => self.walk::<S, 4, 1, 6>(simd),
            _ => self.walk::<S, PANEL_ROWS, 1, 2>(simd),
        }
    }
}

impl Product<'_> {
    /// In tiles of P panels × N columns; V vectors make up 16 rows.
    #[inline(always)]
    fn walk<S: Simd, const V: usize, const P: usize, const N: usize>(self, simd: S) {
        let Product { call, part, own } = self;
        let depth = call.inputs[0].ne()[0];
        for first_column in part.columns.clone().step_by(COLUMNS_AT_ONCE) {
            let columns = first_column..part.columns.end.min(first_column + COLUMNS_AT_ONCE);
            let mut panel = part.panels.start;
            while panel < part.panels.end {
                let is_whole = panel + P <= part.panels.end;
                let step = if reads_in_place(call, &columns) { depth.max(1) } else { DEPTH };
                // At least once: sums of nothing are zeros.
                for first in (0..depth.max(1)).step_by(step) {
                    let k = first..depth.min(first + step);
                    let piece = Piece { call, part, panel, k, columns: columns.clone() };
                    if is_whole {
                        piece.columns::<S, V, P, N>(simd, own);
                    } else {
                        piece.columns::<S, V, 1, N>(simd, own);
                    }
                }
                panel += if is_whole { P } else { 1 };
            }
        }
    }
}

/// A piece of k of some panels, from `panel` on, against some columns.
struct Piece<'a> {
    call: &'a Call,
    part: &'a Part<'a>,
    panel: usize,
    k: Range<usize>,
    columns: Range<usize>,
}

impl Piece<'_> {
    #[inline(always)]
    fn columns<S: Simd, const V: usize, const P: usize, const N: usize>(&self, simd: S, own: &mut [f32]) {
        let format = self.call.packed.as_ref().map(|packed| packed.format());
        let is_in_place = reads_in_place(self.call, &self.columns);
        match format {
            Some(Format::Floats(DType::F32)) => self.tiles::<S, f32, V, P, N>(simd, self.packed()),
            Some(Format::Floats(DType::F16)) if is_in_place => {
                self.tiles::<S, f16, V, P, N>(simd, self.packed())
            }
            Some(Format::Floats(DType::BF16)) if is_in_place => {
                self.tiles::<S, bf16, V, P, N>(simd, self.packed())
            }
            _ => {
                let (widened, row) = own.split_at_mut(TILE_PANELS * PIECE);
                let mut panels: [&[Lanes<f32>]; P] = [&[]; P];
                for (p, place) in widened.chunks_mut(PIECE).take(P).enumerate() {
                    let (call, part, k) = (self.call, self.part, self.k.clone());
                    panels[p] = widened_piece(call, part, self.panel + p, k, place, row).as_chunks().0;
                }
                self.tiles::<S, f32, V, P, N>(simd, panels)
            }
        }
    }

    /// The pieces of P panels that were packed as elements of this type.
    #[inline(always)]
    fn packed<E: Element, const P: usize>(&self) -> [&[Lanes<E>]; P] {
        let mut panels: [&[Lanes<E>]; P] = [&[]; P];
        for (p, piece) in panels.iter_mut().enumerate() {
            let packed = self.call.packed.as_ref().expect("seen by the caller");
            let panel: &[E] = bytemuck::cast_slice(packed.panel(self.panel + p, self.part.weights));
            *piece = &panel.as_chunks().0[self.k.clone()];
        }
        panels
    }

    #[inline(always)]
    fn tiles<S: Simd, E: Element, const V: usize, const P: usize, const N: usize>(
        &self,
        simd: S,
        panels: [&[Lanes<E>]; P],
    ) {
        let mut next = self.columns.start;
        while next + N <= self.columns.end {
            self.tile::<S, E, V, P, N>(simd, panels, next);
            next += N;
        }
        while next + 2 <= self.columns.end {
            self.tile::<S, E, V, P, 2>(simd, panels, next);
            next += 2;
        }
        if next < self.columns.end {
            self.tile::<S, E, V, P, 1>(simd, panels, next);
        }
    }

    /// Adds this piece of k to the outputs of N columns from `first` on.
    #[inline(always)]
    fn tile<S: Simd, E: Element, const V: usize, const P: usize, const N: usize>(
        &self,
        simd: S,
        panels: [&[Lanes<E>]; P],
        first: usize,
    ) {
        let mut b: [&[f32]; N] = [&[]; N];
        for (n, b) in b.iter_mut().enumerate() {
            *b = self.column(first + n);
        }
        let rows = self.rows(P);
        let mut sums = [[[simd.splat_f32s(0.0); V]; P]; N];
        if self.k.start > 0 {
            for (n, sums) in sums.iter_mut().enumerate() {
                // SAFETY: the rows and columns of the part belong to this worker alone.
                let so_far = unsafe { self.result_row(first + n, rows.clone()) };
                for (p, sums) in sums.iter_mut().enumerate() {
                    *sums = load::<S, V>(simd, &so_far[so_far.len().min(p * PANEL_ROWS)..]);
                }
            }
        }
        accumulate::<S, E, V, P, N>(simd, panels, b, &mut sums);
        for (n, sums) in sums.into_iter().enumerate() {
            // SAFETY: the rows and columns of the part belong to this worker alone.
            let target = unsafe { self.result_row(first + n, rows.clone()) };
            for (p, sums) in sums.into_iter().enumerate() {
                let start = target.len().min(p * PANEL_ROWS);
                store::<S, V>(sums, &mut target[start..]);
            }
        }
    }

    /// The rows of the result that so many panels make.
    #[inline(always)]
    fn rows(&self, panels: usize) -> Range<usize> {
        let start = self.panel * PANEL_ROWS;
        start..self.call.results[0].ne()[0].min(start + panels * PANEL_ROWS)
    }

    /// # Safety
    /// As [`crate::shared::call::Out::f32_row`].
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "workers share a result and write disjoint parts of it")]
    unsafe fn result_row(&self, n: usize, rows: Range<usize>) -> &mut [f32] {
        // SAFETY: by the function's contract.
        unsafe { self.call.results[0].f32_row(self.part.result_row(n), rows) }
    }

    /// The piece of one row of b.
    #[inline(always)]
    fn column(&self, n: usize) -> &[f32] {
        let b = &self.call.inputs[1];
        let place @ [first, batch2, batch3] = self.part.row_of_b(b.layout(), n);
        match b.f32_row(place) {
            Some(row) => &row[self.k.clone()],
            None => {
                let [row_len, columns, b2, _] = b.ne();
                let number = first + columns * (batch2 + b2 * batch3);
                let start = (number * row_len + self.k.start) * size_of::<f32>();
                // SAFETY: all workers packed their rows before the barrier, and nobody writes them since.
                let bytes = unsafe { self.call.shared.bytes(start..start + self.k.len() * size_of::<f32>()) };
                bytemuck::cast_slice(bytes)
            }
        }
    }
}

/// Up to 16 outputs; zeros where there are no more.
#[inline(always)]
fn load<S: Simd, const V: usize>(simd: S, values: &[f32]) -> [S::f32s; V] {
    let mut sixteen = [0.0; PANEL_ROWS];
    let count = values.len().min(PANEL_ROWS);
    sixteen[..count].copy_from_slice(&values[..count]);
    let (vectors, _) = S::as_simd_f32s(&sixteen);
    let mut loaded = [simd.splat_f32s(0.0); V];
    loaded.copy_from_slice(vectors);
    loaded
}

#[inline(always)]
fn store<S: Simd, const V: usize>(sums: [S::f32s; V], target: &mut [f32]) {
    let mut sixteen = [0.0; PANEL_ROWS];
    S::as_mut_simd_f32s(&mut sixteen).0.copy_from_slice(&sums);
    let count = target.len().min(PANEL_ROWS);
    target[..count].copy_from_slice(&sixteen[..count]);
}

/// Adds the products of P panels with N rows of b.
#[inline(always)]
fn accumulate<S: Simd, E: Element, const V: usize, const P: usize, const N: usize>(
    simd: S,
    panels: [&[Lanes<E>]; P],
    b: [&[f32]; N],
    sums: &mut [[[S::f32s; V]; P]; N],
) {
    let depth = b[0].len();
    // Equal lengths in sight of the compiler: the checks of indices leave the loop.
    let mut elements: [&[Lanes<E>]; P] = [&[]; P];
    for p in 0..P {
        elements[p] = &panels[p][..depth];
    }
    let mut columns: [&[f32]; N] = [&[]; N];
    for n in 0..N {
        columns[n] = &b[n][..depth];
    }
    let mut kept = *sums;
    for k in 0..depth {
        let mut a = [[simd.splat_f32s(0.0); V]; P];
        for p in 0..P {
            a[p] = E::widen::<S, V>(simd, &elements[p][k]);
            if N == 1 {
                prefetch::ahead(&elements[p][k], prefetch::AHEAD_BYTES);
            }
        }
        for n in 0..N {
            let b = simd.splat_f32s(columns[n][k]);
            for p in 0..P {
                for v in 0..V {
                    kept[n][p][v] = simd.mul_add_e_f32s(a[p][v], b, kept[n][p][v]);
                }
            }
        }
    }
    *sums = kept;
}

/// One element of each row of a panel.
type Lanes<E> = [E; PANEL_ROWS];

/// An element type of panels.
trait Element: bytemuck::Pod {
    /// The elements as `f32`, exactly, in V vectors.
    fn widen<S: Simd, const V: usize>(simd: S, lanes: &Lanes<Self>) -> [S::f32s; V];
}

impl Element for f32 {
    #[inline(always)]
    fn widen<S: Simd, const V: usize>(_simd: S, lanes: &Lanes<f32>) -> [S::f32s; V] {
        *S::as_simd_f32s(lanes).0.first_chunk().expect("V vectors are 16 lanes")
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn widen<S: Simd, const V: usize>(simd: S, lanes: &Lanes<bf16>) -> [S::f32s; V] {
        let mut wide = [0.0; PANEL_ROWS];
        for lane in 0..PANEL_ROWS {
            wide[lane] = f32::from_bits(u32::from(lanes[lane].to_bits()) << 16);
        }
        f32::widen(simd, &wide)
    }
}

impl Element for f16 {
    #[inline(always)]
    fn widen<S: Simd, const V: usize>(simd: S, lanes: &Lanes<f16>) -> [S::f32s; V] {
        let mut wide = [0.0; PANEL_ROWS];
        #[cfg(target_arch = "x86_64")]
        if S::F32_LANES >= 8 {
            use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
            for half in 0..2 {
                // SAFETY: vectors of eight lanes or more are chosen only beside F16C (`simd::arch`); eight elements are
                // read and written.
                unsafe {
                    let eight = _mm_loadu_si128(lanes.as_ptr().add(half * 8).cast());
                    _mm256_storeu_ps(wide.as_mut_ptr().add(half * 8), _mm256_cvtph_ps(eight));
                }
            }
            return f32::widen(simd, &wide);
        }
        convert::f16_to_f32(lanes, &mut wide);
        f32::widen(simd, &wide)
    }
}

/// So few columns that elements are widened as they come from memory; for more, a piece is widened once for all.
const FEW_COLUMNS: usize = 8;

/// Whether panels are read where they were packed, whatever the length of their rows.
fn reads_in_place(call: &Call, columns: &Range<usize>) -> bool {
    call.packed.is_some() && columns.len() <= FEW_COLUMNS
}

/// A piece of a panel as `f32` in `place`, from the packed panel or from the rows, one after another through `row`.
fn widened_piece<'a>(
    call: &Call,
    part: &Part<'_>,
    number: usize,
    k: Range<usize>,
    place: &'a mut [f32],
    row: &mut [f32],
) -> &'a [f32] {
    let elements = k.start * PANEL_ROWS..k.end * PANEL_ROWS;
    let place = &mut place[..elements.len()];
    let Some(packed) = &call.packed else {
        expand(&call.inputs[0], part, number, k, place, row);
        return place;
    };
    let panel = packed.panel(number, part.weights);
    match packed.format() {
        Format::Floats(DType::F16) => {
            convert::f16_to_f32(&bytemuck::cast_slice::<u8, f16>(panel)[elements], place)
        }
        Format::Floats(DType::BF16) => {
            convert::bf16_to_f32(&bytemuck::cast_slice::<u8, bf16>(panel)[elements], place)
        }
        other => unreachable!("{other:?} panels are read in place, or have a kernel of their own"),
    }
    place
}

/// Brings a piece of the rows of a panel together.
fn expand(a: &In, part: &Part<'_>, number: usize, k: Range<usize>, place: &mut [f32], loaded: &mut [f32]) {
    let first = number * PANEL_ROWS;
    let rows = PANEL_ROWS.min(a.ne()[1] - first);
    if rows < PANEL_ROWS {
        place.fill(0.0);
    }
    let row = |r: usize| [first + r, part.weights[0], part.weights[1]];
    let mut pieces: [&[u8]; PANEL_ROWS] = [&[]; PANEL_ROWS];
    let loaded = &mut loaded[..PANEL_ROWS * DEPTH];
    for (r, (piece, loaded)) in pieces.iter_mut().zip(loaded.chunks_mut(DEPTH)).take(rows).enumerate() {
        let values = match a.f32_row(row(r)) {
            Some(row) => &row[k.clone()],
            None => {
                let loaded = &mut loaded[..k.len()];
                a.load(row(r), k.start, loaded);
                loaded
            }
        };
        *piece = bytemuck::cast_slice(values);
    }
    interleave::floats::<4>(&pieces[..rows], bytemuck::cast_slice_mut(place));
}
