//! The products of a panel's blocks on AMX: sixteen columns of sixteen rows, 32 k at a time (16 where so many share a
//! scale). Panels of fewer bits are expanded to bytes first, once for all columns.
//!
//! One instruction forms the integer sums of a block; they go through the first-level cache to the vector unit, which
//! scales and adds them as all other forms do. Two sets of tiles take turns, so that one block is multiplied and the
//! next one stored while the one before is scaled. The least is 24 cycles a block, three vector operations for each
//! sixteen sums (the matrix unit needs 16); measured are about 50 to 55 at 2.1 GHz, what waits being the stores of tiles.
//! Storing each block right after its product, in one step, took half as long again.

use super::blocks::{Outputs, Panel};
use super::columns::Group;
use super::formats::Blocks;
use super::panels::{BLOCK_BYTES, PANEL_ROWS};
use super::vnni::{minima, scales, with_format};
use ssmgraph_ops::quant::Q8_0_BLOCK;
use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Fewer columns of a group than this are faster on the vector unit.
pub(super) const COLUMNS_MIN: usize = 6;

/// Elements of k of a multiplication.
const STEP_MAX: u8 = Q8_0_BLOCK as u8;

/// The shapes of a thread's tiles; all zeros where it uses none.
#[repr(align(64))]
#[derive(Clone, Debug, PartialEq)]
struct Shapes([u8; 64]);

impl Shapes {
    /// Those of this thread.
    ///
    /// # Safety
    /// The processor has tiles, and the system lets the process use them.
    unsafe fn current() -> Shapes {
        let mut shapes = Shapes([0; 64]);
        // SAFETY: by the function's contract; 64 bytes are written.
        unsafe { asm!("sttilecfg [{}]", in(reg) &mut shapes, options(nostack)) }
        shapes
    }

    /// Makes them this thread's.
    ///
    /// # Safety
    /// As for [`Shapes::current`]; the tiles can have these shapes.
    unsafe fn load(&self) {
        // SAFETY: by the function's contract; 64 bytes are read.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self, options(nostack, readonly)) }
    }
}

/// The tiles of this thread, shaped for [`products`] until this is dropped. Then they have the shapes from before: another
/// library that shares the thread, such as ggml, shapes its tiles once and relies on it.
pub(super) struct Tiles {
    before: Shapes,
    format: Blocks,
    /// They are a thread's own.
    _stays: PhantomData<*const ()>,
}

impl Tiles {
    /// Shapes them for a format. Only where [`crate::shared::simd::has_matrix_units`] says yes.
    pub(super) fn configure(format: Blocks) -> Tiles {
        assert!(crate::shared::simd::has_matrix_units(), "asked for where there are none");
        // SAFETY: as just checked.
        let before = unsafe { Shapes::current() };
        let mut shapes = Shapes([0; 64]);
        shapes.0[0] = 1;
        // Tiles by number: sums, columns, weights, and the same again. Bytes of a row, then rows.
        let depth = STEP_MAX / format.sums().count() as u8;
        for (tile, (row_bytes, rows)) in
            [(64, 16), (depth, 16), (64, depth / 4)].iter().cycle().take(6).enumerate()
        {
            shapes.0[16 + 2 * tile] = *row_bytes;
            shapes.0[48 + tile] = *rows;
        }
        // SAFETY: as checked above; six tiles of at most sixteen rows of 64 bytes.
        unsafe { shapes.load() }
        Tiles { before, format, _stays: PhantomData }
    }

    /// What they are shaped for.
    pub(super) fn format(&self) -> Blocks {
        self.format
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: tiles were there when this was made, and had these shapes.
        unsafe { self.before.load() }
    }
}

/// The integer sums of a block.
#[repr(align(64))]
struct Sums([MaybeUninit<[i32; PANEL_ROWS]>; PANEL_ROWS]);

/// Multiplies a block in the set of tiles that starts with this one.
macro_rules! multiply {
    ($weights:expr, $columns:expr, $c:literal, $a:literal, $b:literal) => {
        asm!(
            concat!("tileloadd tmm", $b, ", [{weights} + {line}]"),
            concat!("tileloadd tmm", $a, ", [{columns} + {half}]"),
            concat!("tilezero tmm", $c),
            concat!("tdpbssd tmm", $c, ", tmm", $a, ", tmm", $b),
            weights = in(reg) $weights,
            columns = in(reg) $columns,
            line = in(reg) 64usize,
            half = in(reg) Q8_0_BLOCK,
            options(nostack, readonly),
        )
    };
}

/// Stores the sums of a tile.
macro_rules! store {
    ($sums:expr, $c:literal) => {
        asm!(
            concat!("tilestored [{sums} + {line}], tmm", $c),
            sums = in(reg) $sums,
            line = in(reg) 64usize,
            options(nostack),
        )
    };
}

/// The products of a panel with a group of sixteen columns, to this place in their outputs.
///
/// # Safety
/// This thread's tiles are [`Tiles`] of the panel's format; the panel, and what it was expanded to, has as many blocks as
/// it says, and so has each of the group's sixteen columns.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c,fma")]
pub(super) unsafe fn products(panel: Panel<'_>, group: Group<'_>, place: usize, outputs: &mut Outputs) {
    // SAFETY: by the function's contract.
    unsafe { with_format!(panel.format, in_format(panel, group, place, outputs)) }
}

/// # Safety
/// As [`products`], for a panel of the format F.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c,fma")]
unsafe fn in_format<const F: u8>(panel: Panel<'_>, group: Group<'_>, place: usize, outputs: &mut Outputs) {
    let mut even = Sums([MaybeUninit::uninit(); PANEL_ROWS]);
    let mut odd = Sums([MaybeUninit::uninit(); PANEL_ROWS]);
    let mut sums = [_mm512_setzero_ps(); PANEL_ROWS];
    let halves = const { if F == Blocks::Q6K as u8 { 2 } else { 1 } };
    let steps = panel.blocks * halves;
    let Some(last) = steps.checked_sub(1) else {
        outputs.iter_mut().for_each(|column| column[place] = [0.0; PANEL_ROWS]);
        return;
    };
    // Behind the last step it is multiplied again, and not added.
    let weights = |step: usize| panel.expanded.as_ptr().wrapping_add(step.min(last) * (BLOCK_BYTES / halves));
    let columns = |step: usize| {
        let (block, half) = (step.min(last) / halves, step.min(last) % halves);
        group.integers.as_ptr().wrapping_add(block * PANEL_ROWS * Q8_0_BLOCK + half * Q8_0_BLOCK / 2)
    };
    // SAFETY: each step lies in the panel and its columns in the group, by the function's contract.
    unsafe {
        multiply!(weights(0), columns(0), "0", "1", "2");
        multiply!(weights(1), columns(1), "3", "4", "5");
        store!(&mut even, "0");
        for step in (0..last).step_by(2) {
            multiply!(weights(step + 2), columns(step + 2), "0", "1", "2");
            store!(&mut odd, "3");
            add::<F>(&mut sums, &even, panel, step, &group);
            multiply!(weights(step + 3), columns(step + 3), "3", "4", "5");
            store!(&mut even, "0");
            add::<F>(&mut sums, &odd, panel, step + 1, &group);
        }
        if steps % 2 == 1 {
            add::<F>(&mut sums, &even, panel, last, &group);
        }
        if F == Blocks::Q4K as u8 {
            add_minima(&mut sums, panel, &group);
        }
    }
    for (output, sum) in outputs.iter_mut().zip(sums) {
        // SAFETY: the sixteen outputs of a column.
        unsafe { _mm512_storeu_ps(output[place].as_mut_ptr(), sum) }
    }
}

/// Scales a step's integer sums and adds them.
///
/// # Safety
/// As [`in_format`], for one step.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c,fma")]
unsafe fn add<const F: u8>(
    sums: &mut [__m512; PANEL_ROWS],
    totals: &Sums,
    panel: Panel<'_>,
    step: usize,
    group: &Group<'_>,
) {
    // SAFETY: by the function's contract.
    unsafe {
        let halves = if F == Blocks::Q6K as u8 { 2 } else { 1 };
        let block = step / halves;
        let scales = scales::<F>(panel, block, step % halves);
        let of_b = group.scales.as_ptr().add(block * PANEL_ROWS);
        for (column, (sum, total)) in sums.iter_mut().zip(&totals.0).enumerate() {
            let total = _mm512_cvtepi32_ps(_mm512_load_si512(total.as_ptr().cast()));
            let scale = _mm512_mul_ps(scales, _mm512_set1_ps(of_b.add(column).read()));
            *sum = _mm512_fmadd_ps(total, scale, *sum);
        }
        // Left alone, the compiler moves the additions behind the next multiplication, and has no registers for that.
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = sums;
        asm!(
            "/* {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} */",
            inout(zmm_reg) * a,
            inout(zmm_reg) * b,
            inout(zmm_reg) * c,
            inout(zmm_reg) * d,
            inout(zmm_reg) * e,
            inout(zmm_reg) * f,
            inout(zmm_reg) * g,
            inout(zmm_reg) * h,
            inout(zmm_reg) * i,
            inout(zmm_reg) * j,
            inout(zmm_reg) * k,
            inout(zmm_reg) * l,
            inout(zmm_reg) * m,
            inout(zmm_reg) * n,
            inout(zmm_reg) * o,
            inout(zmm_reg) * p,
            options(nomem, nostack, preserves_flags),
        );
    }
}

/// Adds what the minima of all blocks come to.
///
/// # Safety
/// As [`in_format`], of Q4_K.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c,fma")]
unsafe fn add_minima(sums: &mut [__m512; PANEL_ROWS], panel: Panel<'_>, group: &Group<'_>) {
    let mut of_minima = [_mm512_setzero_ps(); PANEL_ROWS];
    for block in 0..panel.blocks {
        // SAFETY: by the function's contract.
        unsafe {
            let minima = minima(panel, block);
            let scaled = group.sums.as_ptr().add(block * PANEL_ROWS).cast::<f32>();
            for (column, sum) in of_minima.iter_mut().enumerate() {
                *sum = _mm512_fmadd_ps(minima, _mm512_set1_ps(scaled.add(column).read()), *sum);
            }
        }
    }
    for (sum, of_minima) in sums.iter_mut().zip(of_minima) {
        *sum = _mm512_add_ps(*sum, of_minima);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_keep_the_shapes_that_another_library_gave_them() {
        if !crate::shared::simd::has_matrix_units() {
            println!("this machine has no tiles: nothing was tested");
            return;
        }
        // SAFETY: there are tiles.
        let current = || unsafe { Shapes::current() };
        assert_eq!(current(), Shapes([0; 64]));
        let outer = Tiles::configure(Blocks::Q8_0);
        let shapes = current();
        drop(Tiles::configure(Blocks::Q6K));
        assert_eq!(current(), shapes);
        drop(outer);
        assert_eq!(current(), Shapes([0; 64]));
    }
}
