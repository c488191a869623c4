//! Products of rows of `f32`; rows of a in other types are expanded, a tile's rows at a time.

use super::cpu::{Part, TILE_ROWS};
use crate::kernel::Scratch;
use crate::shared::call::{Call, In, Shared, row_count, rows_of};
use crate::shared::pool::Worker;
use crate::shared::simd;
use pulp::{Simd, WithSimd};
use ssmgraph_ops::Layout;

/// Elements of k handled before the next tile: 16 KiB for the rows of a tile, which stay in the first-level
/// cache. A multiple of every vector length, so that lanes keep their place.
const DEPTH: usize = 1024;

/// Bytes of the panel of b that shall stay in the second-level cache.
const PANEL_BYTES: usize = 1 << 20;

/// Most columns in a panel.
const COLUMNS_MAX: usize = 256;

/// Lanes of the widest vector.
const LANES_MAX: usize = 16;

/// Whether rows of b have to be copied first.
pub(crate) fn needs_packing(b: &Layout) -> bool {
    !b.rows_packed()
}

/// For products of a with up to `columns` rows of b at a time.
pub(crate) fn scratch(a: &Layout, b: &Layout, columns: usize) -> Scratch {
    let shared_bytes = if needs_packing(b) { b.elements().saturating_mul(size_of::<f32>()) } else { 0 };
    let sums =
        if a.ne[0] > DEPTH { TILE_ROWS * columns_in_panel(a.ne[0]).min(columns) * LANES_MAX } else { 0 };
    Scratch { shared_bytes, own_floats: TILE_ROWS * DEPTH + sums }
}

fn columns_in_panel(depth: usize) -> usize {
    (PANEL_BYTES / size_of::<f32>() / depth.max(1) / 4 * 4).clamp(8, COLUMNS_MAX)
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
    simd::arch().dispatch(Panels { call, part, own });
}

struct Panels<'a> {
    call: &'a Call,
    part: &'a Part<'a>,
    own: &'a mut [f32],
}

impl WithSimd for Panels<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Sixteen accumulators and the vectors that feed them need 32 registers; AVX2 has 16.
        if S::F32_LANES == 8 || S::F32_LANES == 1 { self.walk::<S, 2>(simd) } else { self.walk::<S, 4>(simd) }
    }
}

/// The columns of a panel and the accumulators of its outputs between two pieces of k.
struct Sums<'a, V> {
    saved: &'a mut [V],
    is_first: bool,
    is_last: bool,
}

impl<'a> Panels<'a> {
    #[inline(always)]
    fn walk<S: Simd, const N: usize>(self, simd: S) {
        let Panels { call, part, own } = self;
        let depth = call.inputs[0].ne()[0];
        let (expanded, saved) = own.split_at_mut(TILE_ROWS * DEPTH);
        let (saved, _) = S::as_mut_simd_f32s(saved);
        let panel = columns_in_panel(depth);
        for first_column in part.columns.clone().step_by(panel) {
            let columns = first_column..part.columns.end.min(first_column + panel);
            for first_row in part.rows.clone().step_by(TILE_ROWS) {
                let rows = TILE_ROWS.min(part.rows.end - first_row);
                for first in (0..depth.max(1)).step_by(DEPTH) {
                    let k = first..depth.min(first + DEPTH);
                    let sums = Sums { saved: &mut *saved, is_first: first == 0, is_last: k.end == depth };
                    let a: [&[f32]; TILE_ROWS] =
                        piece_of_a(call, part, first_row, rows, k.clone(), &mut *expanded);
                    let tile = Tile { call, part, first_row, k };
                    if rows == TILE_ROWS {
                        tile.columns::<S, TILE_ROWS, N>(simd, a, columns.clone(), sums);
                    } else {
                        tile.single_rows::<S, N>(simd, &a[..rows], columns.clone(), sums);
                    }
                }
            }
        }
    }
}

/// A piece of up to four rows of a: in place, or expanded into the scratch.
#[inline(always)]
fn piece_of_a<'a>(
    call: &'a Call,
    part: &Part<'_>,
    first_row: usize,
    rows: usize,
    k: std::ops::Range<usize>,
    expanded: &'a mut [f32],
) -> [&'a [f32]; TILE_ROWS] {
    let a = &call.inputs[0];
    let mut pieces: [&[f32]; TILE_ROWS] = [&[]; TILE_ROWS];
    let mut places = expanded.chunks_mut(DEPTH);
    for (m, piece) in pieces.iter_mut().enumerate().take(rows) {
        let row = [first_row + m, part.weights[0], part.weights[1]];
        *piece = match a.f32_row(row) {
            Some(row) => &row[k.clone()],
            None => {
                let place = &mut places.next().expect("one place per row")[..k.len()];
                a.load(row, k.start, place);
                place
            }
        };
    }
    pieces
}

/// Up to four rows of a, a piece of k, against the columns of a panel.
struct Tile<'a> {
    call: &'a Call,
    part: &'a Part<'a>,
    first_row: usize,
    k: std::ops::Range<usize>,
}

impl<'a> Tile<'a> {
    /// The piece of one row of b.
    #[inline(always)]
    fn column(&self, n: usize) -> &'a [f32] {
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

    #[inline(always)]
    fn columns<S: Simd, const M: usize, const N: usize>(
        &self,
        simd: S,
        a: [&[f32]; M],
        columns: std::ops::Range<usize>,
        sums: Sums<'_, S::f32s>,
    ) {
        let Sums { saved, is_first, is_last } = sums;
        let whole = columns.len() / N * N;
        for at in (0..whole).step_by(N) {
            let mut b: [&[f32]; N] = [&[]; N];
            for (n, column) in b.iter_mut().enumerate() {
                *column = self.column(columns.start + at + n);
            }
            let place = if is_first && is_last { 0..0 } else { at * M..(at + N) * M };
            let tile = dots::<S, M, N>(simd, a, b, &mut saved[place], is_first, is_last);
            if is_last {
                self.store(simd, columns.start + at, tile);
            }
        }
        for at in whole..columns.len() {
            let place = if is_first && is_last { 0..0 } else { at * M..(at + 1) * M };
            let b = [self.column(columns.start + at)];
            let tile = dots::<S, M, 1>(simd, a, b, &mut saved[place], is_first, is_last);
            if is_last {
                self.store(simd, columns.start + at, tile);
            }
        }
    }

    /// The rows left over when they do not fill a tile, one by one.
    #[inline(always)]
    fn single_rows<S: Simd, const N: usize>(
        &self,
        simd: S,
        a: &[&[f32]],
        columns: std::ops::Range<usize>,
        sums: Sums<'_, S::f32s>,
    ) {
        let Sums { saved, is_first, is_last } = sums;
        let per_row = if is_first && is_last { 0 } else { columns.len() };
        for (m, row) in a.iter().enumerate() {
            let tile = Tile { first_row: self.first_row + m, k: self.k.clone(), ..*self };
            let sums = Sums { saved: &mut saved[m * per_row..(m + 1) * per_row], is_first, is_last };
            tile.columns::<S, 1, N>(simd, [row], columns.clone(), sums);
        }
    }

    #[inline(always)]
    fn store<S: Simd, const M: usize, const N: usize>(
        &self,
        simd: S,
        first_column: usize,
        tile: [[S::f32s; M]; N],
    ) {
        for (n, column) in tile.into_iter().enumerate() {
            // Closures would not be compiled for the instruction set: loops only.
            let mut values = [0.0; M];
            for m in 0..M {
                values[m] = simd.reduce_sum_f32s(column[m]);
            }
            let row = self.part.result_row(first_column + n);
            // SAFETY: the rows and columns of the part belong to this worker alone.
            let target = unsafe { self.call.results[0].f32_row(row, self.first_row..self.first_row + M) };
            target.copy_from_slice(&values);
        }
    }
}

/// The accumulators of M rows of a with N rows of b after this piece of k, column by column. They start from
/// zero for the first piece and from `saved` for others, and go there unless this piece is the last.
#[inline(always)]
pub(crate) fn dots<S: Simd, const M: usize, const N: usize>(
    simd: S,
    a: [&[f32]; M],
    b: [&[f32]; N],
    saved: &mut [S::f32s],
    is_first: bool,
    is_last: bool,
) -> [[S::f32s; M]; N] {
    let mut sums = [[simd.splat_f32s(0.0); M]; N];
    if !is_first {
        for n in 0..N {
            for m in 0..M {
                sums[n][m] = saved[n * M + m];
            }
        }
    }
    let steps = b[0].len() / S::F32_LANES;
    let (a_steps, a_rest) = split::<S, M>(a, steps);
    let (b_steps, b_rest) = split::<S, N>(b, steps);
    for step in 0..steps {
        let a: [S::f32s; M] = std::array::from_fn(|m| a_steps[m][step]);
        for n in 0..N {
            let b = b_steps[n][step];
            for m in 0..M {
                sums[n][m] = simd.mul_add_e_f32s(a[m], b, sums[n][m]);
            }
        }
    }
    if !b_rest[0].is_empty() {
        let a: [S::f32s; M] = std::array::from_fn(|m| simd.partial_load_f32s(a_rest[m]));
        for n in 0..N {
            let b = simd.partial_load_f32s(b_rest[n]);
            for m in 0..M {
                sums[n][m] = simd.mul_add_e_f32s(a[m], b, sums[n][m]);
            }
        }
    }
    if !is_last {
        for n in 0..N {
            for m in 0..M {
                saved[n * M + m] = sums[n][m];
            }
        }
    }
    sums
}

/// Rows as `steps` whole vectors and a rest; all of the same length.
#[inline(always)]
fn split<S: Simd, const R: usize>(rows: [&[f32]; R], steps: usize) -> ([&[S::f32s]; R], [&[f32]; R]) {
    let parts = rows.map(|row| S::as_simd_f32s(row));
    (parts.map(|(vectors, _)| &vectors[..steps]), parts.map(|(_, rest)| rest))
}
