//! One matrix product for every shape.
//!
//! Each output (m, n) is one vector accumulator that walks k in steps of a vector and is summed across its
//! lanes once at the end, whatever the tile, the batch size or the number of workers around it: a token's
//! result does not depend on its neighbours. Tiles of 4 rows × 4 columns reuse what they load; a panel of b
//! stays in the second-level cache while the rows of a pass by, so that weights are read once per panel
//! (once in all when few tokens are computed).
//!
//! Work is split over rows of a and batches; over columns only where those are too few.

use super::{blocks, rows};
use crate::kernel::{CpuKernel, Declined, Scratch, expect_plain_or_q8_0};
use crate::shared::call::{Call, Row};
use crate::shared::pool::Worker;
use ssmgraph_ops::quant::Q8_0_BLOCK;
use ssmgraph_ops::{Layout, MulMat, OpError};
use std::ops::Range;

/// Rows of a in a tile.
pub(crate) const TILE_ROWS: usize = 4;

/// Fewest columns worth a part of their own when work is split over columns.
const COLUMNS_MIN: usize = 16;

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
    /// Rows of a: index m.
    pub rows: Range<usize>,
    /// Columns: numbers n.
    pub columns: Range<usize>,
}

impl Part<'_> {
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
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        expect_plain_or_q8_0(inputs)
    }

    fn work(&self, inputs: &[Layout], results: &[Layout]) -> usize {
        results[0].elements().saturating_mul(inputs[0].ne[0] / 16 + 1)
    }

    fn scratch(&self, inputs: &[Layout], _results: &[Layout]) -> Scratch {
        let [a, b] = inputs else { unreachable!("the arity was checked") };
        if self.quantize { blocks::scratch(b) } else { rows::scratch(a, b, b.ne[1]) }
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, own: &mut [f32]) -> Result<(), OpError> {
        let b = &call.inputs[1];
        if self.quantize {
            blocks::prepare(b, &call.shared, worker);
            worker.barrier();
            for_each_part(call, worker, |part| blocks::multiply(call, &part));
        } else {
            if rows::needs_packing(b.layout()) {
                rows::pack(b, &call.shared, worker);
                worker.barrier();
            }
            for_each_part(call, worker, |part| rows::multiply(call, &part, own));
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
    let groups = m.div_ceil(TILE_ROWS);
    let batches = b2 * b3;
    let spare = (4 * worker.count).div_ceil(groups * batches);
    let chunks = if worker.count == 1 { 1 } else { spare.min(n.div_ceil(COLUMNS_MIN)) };
    let share = worker.share(batches * chunks * groups);
    let mut next = share.start;
    while next < share.end {
        let (outer, first) = (next / groups, next % groups);
        let count = (groups - first).min(share.end - next);
        let (batch, chunk) = ([outer / chunks % b2, outer / chunks / b2], outer % chunks);
        multiply(Part {
            place: Columns::Batch(batch),
            weights: [batch[0] / (b2 / a2), batch[1] / (b3 / a3)],
            rows: first * TILE_ROWS..m.min((first + count) * TILE_ROWS),
            columns: n * chunk / chunks..n * (chunk + 1) / chunks,
        });
        next += count;
    }
}

/// Blocks of q8_0 in a row of `layout`.
pub(super) fn blocks_in_row(layout: &Layout) -> usize {
    layout.ne[0] / Q8_0_BLOCK
}
