//! The products of `mul_mat`, expert by expert: the rows that an expert is to compute are its columns, wherever they
//! stand, so that its weights are read once for all of them.
//!
//! Every worker takes a share of each expert's panels.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::mul_mat::cpu::{Columns, Part};
use crate::mul_mat::panels::{Format, PANEL_ROWS};
use crate::mul_mat::{blocks, floats};
use crate::shared::call::{Call, In, Row, rows_of};
use crate::shared::pool::Worker;
use ssmgraph_ops::shape::checked_row;
use ssmgraph_ops::tensor;
use ssmgraph_ops::{Layout, MulMatId, OpError};
use std::ops::Range;

impl CpuKernel for MulMatId {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], results: &[Layout]) -> usize {
        results[0].elements().saturating_mul(inputs[0].ne[0] / 16 + 1)
    }

    fn scratch(&self, inputs: &[Layout], _results: &[Layout]) -> Scratch {
        let [a, b, ids] = inputs else { unreachable!("the arity was checked") };
        let product = scratch_of_products(self, a, b, ids);
        let lists = Lists::bytes(a, ids);
        let shared_bytes = Lists::start(product.shared_bytes).saturating_add(lists);
        Scratch { shared_bytes, ..product }
    }

    fn packing(&self, inputs: &[Layout]) -> Option<Format> {
        Format::of(inputs[0].dtype, self.quantize)
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, own: &mut [f32]) -> Result<(), OpError> {
        let [a, b, ids] = &call.inputs[..] else { unreachable!("the arity was checked") };
        let y = &call.results[0];
        if y.layout().is_empty() {
            return Ok(());
        }
        // All are checked first, so that every worker meets the same error whatever its share.
        for place in tensor::rows(y.ne()) {
            expert_of(ids, place, a.ne()[2])?;
        }
        let product = scratch_of_products(self, a.layout(), b.layout(), ids.layout());
        let start = Lists::start(product.shared_bytes);
        let bytes = start..start + Lists::bytes(a.layout(), ids.layout());
        if worker.index == 0 {
            // SAFETY: the other workers read them after the barrier; the products' scratch ends before them.
            let lists = unsafe { call.shared.bytes_mut(bytes.clone()) };
            Lists::fill(bytemuck::cast_slice_mut(lists), a, ids, y.layout())?;
        }
        if self.quantize {
            blocks::prepare(&call.inputs[0], b, &call.shared, worker);
        } else if floats::needs_packing(b.layout()) {
            floats::pack(b, &call.shared, worker);
        }
        worker.barrier();
        // SAFETY: nobody writes them after the barrier.
        let lists = Lists::read(bytemuck::cast_slice(unsafe { call.shared.bytes(bytes) }), a, ids);
        let m = a.ne()[1];
        let panels = worker.share(m.div_ceil(PANEL_ROWS));
        for expert in 0..a.ne()[2] {
            let columns = lists.rows_of(expert);
            if columns.is_empty() || panels.is_empty() {
                continue;
            }
            let part = Part {
                place: Columns::Listed(columns),
                weights: [expert, 0],
                panels: panels.clone(),
                columns: 0..columns.len(),
            };
            match self.quantize {
                true => blocks::multiply(call, &part, own),
                false => floats::multiply(call, &part, own),
            }
        }
        for row in rows_of(y.layout(), worker) {
            if expert_of(ids, row, a.ne()[2])?.is_none() {
                // SAFETY: no expert computes this row, and it belongs to one worker.
                unsafe { y.f32_row(row, 0..m) }.fill(0.0);
            }
        }
        Ok(())
    }
}

/// What the products themselves need.
fn scratch_of_products(op: &MulMatId, a: &Layout, b: &Layout, ids: &Layout) -> Scratch {
    if op.quantize { blocks::scratch(a, b, ids.elements()) } else { floats::scratch(b) }
}

/// The expert of a row of the result; `None` for a row of zeros.
fn expert_of(ids: &In, row: Row, experts: usize) -> Result<Option<usize>, OpError> {
    checked_row("mul_mat_id", "ids", row, ids.int(row[0], [row[1], 0, 0]), experts)
}

/// The rows of the result by their experts, in scratch: first all rows, those of an expert side by side, then for
/// each expert where its rows end.
struct Lists<'a> {
    rows: &'a [Row],
    ends: &'a [usize],
}

impl<'a> Lists<'a> {
    const WORD: usize = size_of::<usize>();

    /// Where the lists lie behind so many bytes.
    fn start(bytes_before: usize) -> usize {
        bytes_before.checked_next_multiple_of(Self::WORD).unwrap_or(usize::MAX)
    }

    fn bytes(a: &Layout, ids: &Layout) -> usize {
        let words = ids.elements().saturating_mul(3).saturating_add(a.ne[2]);
        words.saturating_mul(Self::WORD)
    }

    /// Sorts the rows of y by counting.
    fn fill(words: &mut [usize], a: &In, ids: &In, y: &Layout) -> Result<(), OpError> {
        let (rows, ends) = words.split_at_mut(ids.layout().elements() * 3);
        let rows: &mut [Row] = bytemuck::cast_slice_mut(rows);
        ends.fill(0);
        for row in tensor::rows(y.ne) {
            if let Some(expert) = expert_of(ids, row, a.ne()[2])? {
                ends[expert] += 1;
            }
        }
        let mut start = 0;
        for end in ends.iter_mut() {
            // Where the expert's rows start; each row that is placed moves it on, to their end at last.
            (*end, start) = (start, start + *end);
        }
        for row in tensor::rows(y.ne) {
            if let Some(expert) = expert_of(ids, row, a.ne()[2])? {
                rows[ends[expert]] = row;
                ends[expert] += 1;
            }
        }
        Ok(())
    }

    fn read(words: &'a [usize], a: &In, ids: &In) -> Lists<'a> {
        let (rows, ends) = words.split_at(ids.layout().elements() * 3);
        Lists { rows: bytemuck::cast_slice(rows), ends: &ends[..a.ne()[2]] }
    }

    fn rows_of(&self, expert: usize) -> &'a [Row] {
        let range: Range<usize> =
            expert.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[expert];
        &self.rows[range]
    }
}
