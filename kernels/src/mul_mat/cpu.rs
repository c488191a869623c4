//! One matrix product for every shape.
//!
//! Each output (m, n) is one lane of one accumulator that walks k in order, whatever the tile, the batch size or the
//! number of workers around it: a token's result does not depend on its neighbours. Weights are read in panels of 16
//! rows (see `panels.rs`); columns whose pieces fit the second-level cache stay there while panels pass by, so that
//! weights are read once per so many columns (once in all when few tokens are computed).
//!
//! Work is split over panels and batches; over columns only where those are too few.

use super::columns::GROUP_COLUMNS;
use super::panels::{Format, PANEL_ROWS};
use super::{blocks, floats};
use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, Row};
use crate::shared::pool::Worker;
use ssmgraph_ops::{Layout, MulMat, OpError};
use std::ops::Range;

/// Where columns stand in b and in the result.
pub(crate) enum Columns<'a> {
    /// Column n is index n on axis 1; these are those on axes 2 and 3.
    Batch([usize; 2]),
    /// Column n is the n-th of these rows of the result. In b they may share one along axis 1.
    Listed(&'a [Row]),
}

/// A part of the result: some rows of a times some columns.
pub(crate) struct Part<'a> {
    /// Where the columns stand.
    pub place: Columns<'a>,
    /// Indices on axes 2 and 3 of a.
    pub weights: [usize; 2],
    /// Panels of a matrix of a, by number.
    pub panels: Range<usize>,
    /// Columns: numbers n.
    pub columns: Range<usize>,
}

impl Part<'_> {
    /// The outputs that panels make: index m.
    pub fn rows_of_panels(&self, call: &Call, first: usize, count: usize) -> Range<usize> {
        let start = first * PANEL_ROWS;
        start..call.results[0].ne()[0].min(start + count * PANEL_ROWS)
    }

    /// A panel: as it was packed with its weight, or packed now into the start of `scratch`.
    pub fn panel<'a>(
        &self,
        call: &'a Call,
        number: usize,
        format: Format,
        scratch: &'a mut [u8],
    ) -> &'a [u8] {
        if let Some(packed) = &call.packed {
            return packed.panel(number, self.weights);
        }
        let a = &call.inputs[0];
        let target = &mut scratch[..format.panel_bytes(a.ne()[0])];
        format.pack(a, [number * PANEL_ROWS, self.weights[0], self.weights[1]], target);
        target
    }

    /// The row of the result that column n is.
    #[inline(always)]
    pub fn result_row(&self, n: usize) -> Row {
        match self.place {
            Columns::Batch([batch2, batch3]) => [n, batch2, batch3],
            Columns::Listed(rows) => rows[n],
        }
    }

    /// The row of b that column n is.
    #[inline(always)]
    pub fn row_of_b(&self, b: &Layout, n: usize) -> Row {
        let [first, batch2, batch3] = self.result_row(n);
        [if b.ne[1] == 1 { 0 } else { first }, batch2, batch3]
    }
}

impl CpuKernel for MulMat {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], results: &[Layout]) -> usize {
        results[0].elements().saturating_mul(inputs[0].ne[0] / 16 + 1)
    }

    fn scratch(&self, inputs: &[Layout], _results: &[Layout]) -> Scratch {
        let [a, b] = inputs else { unreachable!("the arity was checked") };
        if self.quantize { blocks::scratch(a, b, 0) } else { floats::scratch(b) }
    }

    fn packing(&self, inputs: &[Layout]) -> Option<Format> {
        Format::of(inputs[0].dtype, self.quantize)
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, own: &mut [f32]) -> Result<(), OpError> {
        let b = &call.inputs[1];
        if self.quantize {
            blocks::prepare(&call.inputs[0], b, &call.shared, worker);
            worker.barrier();
            for_each_part(call, worker, |part| blocks::multiply(call, &part, own));
        } else {
            if floats::needs_packing(b.layout()) {
                floats::pack(b, &call.shared, worker);
                worker.barrier();
            }
            for_each_part(call, worker, |part| floats::multiply(call, &part, own));
        }
        Ok(())
    }
}

/// Calls `multiply` with the parts that make up this worker's share.
fn for_each_part(call: &Call, worker: &Worker<'_>, mut multiply: impl FnMut(Part<'_>)) {
    if call.results[0].layout().is_empty() {
        return;
    }
    let [_, m, a2, a3] = call.inputs[0].ne();
    let [_, n, b2, b3] = call.inputs[1].ne();
    let panels = m.div_ceil(PANEL_ROWS);
    let batches = b2 * b3;
    // Columns are cut between groups.
    let groups = n.div_ceil(GROUP_COLUMNS);
    let spare = (4 * worker.count).div_ceil(panels * batches);
    let chunks = if worker.count == 1 { 1 } else { spare.min(groups) };
    let cut = |chunk: usize| n.min(groups * chunk / chunks * GROUP_COLUMNS);
    let share = worker.share(batches * chunks * panels);
    let mut next = share.start;
    while next < share.end {
        let (outer, first) = (next / panels, next % panels);
        let count = (panels - first).min(share.end - next);
        let (batch, chunk) = ([outer / chunks % b2, outer / chunks / b2], outer % chunks);
        multiply(Part {
            place: Columns::Batch(batch),
            weights: [batch[0] / (b2 / a2), batch[1] / (b3 / a3)],
            panels: first..first + count,
            columns: cut(chunk)..cut(chunk + 1),
        });
        next += count;
    }
}
