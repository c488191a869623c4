//! Weights as the kernels read them: panels of 16 rows, element by element side by side.
//!
//! In a panel the 16 rows are the lanes of a vector, so that each output has a lane of its own: nothing is summed
//! across lanes, and a sum has one order whatever the instruction set and the tile. A panel is as large as its
//! rows were (rows past the last are zeros):
//!
//! | format | what follows what |
//! |---|---|
//! | `Floats` (f32, f16, bf16) | for each k the 16 elements |
//! | `Blocks` | for each 32 k eight vectors of 64 bytes, four k of each row, or what they are unpacked from; scales |
//!
//! Eight vectors of 64 bytes are also the second operand of an AMX product of bytes.
//!
//! A weight that nobody can write is packed once, when the first program that uses it is made; the panels belong to
//! its [`crate::Memory`] and go with it. Other operands are packed panel by panel in each call, by the same function.

use super::formats::Blocks;
use super::interleave;
use crate::memory::OutOfMemory;
use crate::shared::call::{In, Row};
use crate::shared::pool::{Pool, Worker};
use memmap2::MmapMut;
use ssmgraph_ops::quant::Q8_0_BLOCK;
use ssmgraph_ops::{DType, Layout};
use std::sync::{Arc, Mutex, PoisonError};

/// Rows in a panel.
pub(crate) const PANEL_ROWS: usize = 16;

/// Bytes of the integers of one block of a panel.
pub(super) const BLOCK_BYTES: usize = PANEL_ROWS * Q8_0_BLOCK;

/// How the rows of a panel are mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Elements of this plain float type.
    Floats(DType),
    /// Blocks of this type, whose products with rounded columns are integers.
    Blocks(Blocks),
}

impl Format {
    /// The format for a weight of this type; `None` where rows are expanded anew in each call.
    pub(crate) fn of(dtype: DType, quantize: bool) -> Option<Format> {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => Some(Format::Floats(dtype)),
            _ if quantize => Blocks::of(dtype).map(Format::Blocks),
            _ => None,
        }
    }

    /// Bytes of a panel whose rows have `row_len` elements.
    pub(crate) fn panel_bytes(self, row_len: usize) -> usize {
        match self {
            Format::Floats(dtype) => row_len * PANEL_ROWS * dtype.block_bytes(),
            Format::Blocks(blocks) => blocks.panel_bytes(row_len),
        }
    }

    /// Packs the panel that starts at this row of `a`; `target` is as long as [`Format::panel_bytes`] says.
    pub(crate) fn pack(self, a: &In, first: Row, target: &mut [u8]) {
        let rows = PANEL_ROWS.min(a.ne()[1] - first[0]);
        let row = |r: usize| [first[0] + r, first[1], first[2]];
        if rows < PANEL_ROWS {
            target.fill(0);
        }
        let mut sources: [&[u8]; PANEL_ROWS] = [&[]; PANEL_ROWS];
        let mut copies = Vec::new();
        if a.layout().rows_packed() {
            for (r, source) in sources[..rows].iter_mut().enumerate() {
                *source = a.row_bytes(row(r)).expect("packed");
            }
        } else {
            // Spread elements, which plain types alone have.
            copies.extend((0..rows).map(|r| gathered(a, row(r))));
            sources.iter_mut().zip(&copies).for_each(|(source, copy)| *source = copy);
        }
        match self {
            Format::Floats(DType::F32) => interleave::floats::<4>(&sources[..rows], target),
            Format::Floats(_) => interleave::floats::<2>(&sources[..rows], target),
            Format::Blocks(blocks) => blocks.pack(&sources[..rows], target),
        }
    }
}

/// The bytes of a row of spread elements.
fn gathered(a: &In, row: Row) -> Vec<u8> {
    let bytes = a.layout().dtype.block_bytes();
    let mut copy = Vec::with_capacity(a.ne()[0] * bytes);
    for k in 0..a.ne()[0] {
        let start = a.block(k, row);
        // SAFETY: the element is readable for its size.
        copy.extend((0..bytes).map(|byte| unsafe { start.add(byte).read() }));
    }
    copy
}

/// An operand that nobody writes.
struct Weight<'a>(&'a In);

impl Weight<'_> {
    fn operand(&self) -> &In {
        self.0
    }
}

// SAFETY: bytes that nobody writes, while the operand is borrowed, may be read on any thread.
unsafe impl Sync for Weight<'_> {}

/// All panels of a weight.
pub struct Packed {
    format: Format,
    bytes: MmapMut,
    panel_bytes: usize,
    /// Panels of a matrix, and matrices along axis 2.
    counts: [usize; 2],
}

impl std::fmt::Debug for Packed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Packed({:?}, {} bytes)", self.format, self.bytes.len())
    }
}

impl Packed {
    /// Packs a weight on `workers` workers.
    ///
    /// Errors: the system refuses the memory.
    fn new(a: &In, format: Format, workers: usize) -> Result<Packed, OutOfMemory> {
        let [row_len, rows, a2, a3] = a.ne();
        let per_matrix = rows.div_ceil(PANEL_ROWS);
        let panel_bytes = format.panel_bytes(row_len);
        let panels = per_matrix * a2 * a3;
        let total = panels.checked_mul(panel_bytes).ok_or(OutOfMemory { bytes: usize::MAX })?;
        let refused = |_| OutOfMemory { bytes: total };
        let mut bytes = MmapMut::map_anon(total.max(1)).map_err(refused)?;
        #[cfg(target_os = "linux")]
        // Weights are read from end to end: fewer, larger pages. Whoever refuses gives small ones.
        let _ = bytes.advise(memmap2::Advice::HugePage);
        if total > 0 {
            let pieces = Mutex::new(bytes.chunks_exact_mut(panel_bytes).enumerate());
            let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
            let weight = Weight(a);
            let weight = &weight;
            let pack = |_: Worker<'_>| {
                while let Some((panel, target)) = next() {
                    let matrix = panel / per_matrix;
                    let first = [panel % per_matrix * PANEL_ROWS, matrix % a2, matrix / a2];
                    format.pack(weight.operand(), first, target);
                }
            };
            // A program that is made in the middle of a run cannot have the pool.
            if Pool::global().run(workers, &pack).is_err() {
                pack(Worker::ALONE);
            }
        }
        Ok(Packed { format, bytes, panel_bytes, counts: [per_matrix, a2] })
    }

    /// How the rows of a panel are mixed.
    pub(super) fn format(&self) -> Format {
        self.format
    }

    /// The panel with this number of a matrix, which the indices on axes 2 and 3 name.
    pub(super) fn panel(&self, panel: usize, matrix: [usize; 2]) -> &[u8] {
        let [per_matrix, a2] = self.counts;
        let number = panel + per_matrix * (matrix[0] + a2 * matrix[1]);
        &self.bytes[number * self.panel_bytes..][..self.panel_bytes]
    }
}

/// The panels of the weights that lie in a memory, by where and how they lie.
#[derive(Default)]
pub(crate) struct Cache {
    packed: Mutex<Vec<(usize, Layout, Arc<Packed>)>>,
}

impl Cache {
    /// The panels of the weight `a`, which lies at this offset: made now unless they are there. Says whether they
    /// were made.
    ///
    /// Errors: the system refuses the memory.
    pub fn panels(
        &self,
        offset_bytes: usize,
        a: &In,
        format: Format,
        workers: usize,
    ) -> Result<(Arc<Packed>, bool), OutOfMemory> {
        // Held while packing: another thread that wants the same weight waits for it.
        let mut packed = self.packed.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |(offset, layout, panels): &&(usize, Layout, Arc<Packed>)| {
            *offset == offset_bytes && layout == a.layout() && panels.format == format
        };
        if let Some((_, _, panels)) = packed.iter().find(is_same) {
            return Ok((panels.clone(), false));
        }
        let panels = Arc::new(Packed::new(a, format, workers)?);
        packed.push((offset_bytes, *a.layout(), panels.clone()));
        Ok((panels, true))
    }
}
