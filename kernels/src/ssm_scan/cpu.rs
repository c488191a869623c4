//! Chooses between the two forms of the scan: one decay per state element ([`per_channel`], Mamba-1) and one
//! per head ([`per_head`], Mamba-2). In both, a state element is updated by one fixed expression per token
//! and y is summed in one fixed order, so that neither the split of tokens over calls nor the other sequences
//! nor the workers change a bit.

use super::{per_channel, per_head};
use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, In, Row};
use crate::shared::pool::Worker;
use ssmgraph_ops::shape::checked_row;
use ssmgraph_ops::{Define, Layout, OpError, SsmScan};

impl CpuKernel for SsmScan {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], results: &[Layout]) -> usize {
        let state = results[1].elements();
        let (once, per_token) = if decays_per_head(&inputs[3]) { (4, 16) } else { (1, 4) };
        (state / per_token).saturating_mul(inputs[1].ne[2]).saturating_add(state / once)
    }

    fn scratch(&self, inputs: &[Layout], results: &[Layout]) -> Scratch {
        let states = inputs[0].ne[0];
        let own = if decays_per_head(&inputs[3]) { per_head::own_floats } else { per_channel::own_floats };
        Scratch { shared_bytes: 0, own_floats: if results[1].is_empty() { 0 } else { own(states) } }
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, own: &mut [f32]) -> Result<(), OpError> {
        let scan = Scan::new(call, self)?;
        if decays_per_head(call.inputs[3].layout()) {
            per_head::run(&scan, worker, own);
        } else {
            per_channel::run(&scan, worker, own);
        }
        Ok(())
    }
}

fn decays_per_head(a: &Layout) -> bool {
    a.ne[0] == 1
}

/// A call with its sizes and with its start rows checked.
pub(super) struct Scan<'a> {
    pub call: &'a Call,
    pub states: usize,
    pub head_dim: usize,
    pub heads: usize,
    pub groups: usize,
    pub tokens: usize,
    pub sequences: usize,
}

impl<'a> Scan<'a> {
    fn new(call: &'a Call, op: &SsmScan) -> Result<Scan<'a>, OpError> {
        let [states, head_dim, heads, rows] = call.inputs[0].ne();
        let [_, _, tokens, sequences] = call.inputs[1].ne();
        let groups = call.inputs[4].ne()[1];
        let scan = Scan { call, states, head_dim, heads, groups, tokens, sequences };
        for sequence in 0..sequences {
            checked_row(op.name(), "ids", [sequence, 0, 0], scan.id(sequence), rows)?;
        }
        Ok(scan)
    }

    fn id(&self, sequence: usize) -> i64 {
        self.call.inputs[6].int(sequence, [0; 3])
    }

    /// The row of the pool that a sequence starts from, if any.
    pub fn slot(&self, sequence: usize) -> Option<usize> {
        usize::try_from(self.id(sequence)).ok()
    }

    /// B and C of one token and group, with zeros up to `length`: where they lie if they are packed and as long, and
    /// otherwise copied into `buffers`, which hold `length` elements twice.
    pub fn projections<'b>(
        &'b self,
        row: Row,
        length: usize,
        buffers: &'b mut [f32],
    ) -> (&'b [f32], &'b [f32]) {
        let (for_b, for_c) = buffers.split_at_mut(length);
        (
            packed_or_copied(&self.call.inputs[4], row, for_b),
            packed_or_copied(&self.call.inputs[5], row, &mut for_c[..length]),
        )
    }

    /// After how many tokens a result wants the state for the first time.
    pub fn first_snapshot(&self) -> usize {
        // Results 1, 2, … hold the state after all tokens, all but one, …
        (self.tokens + 2).saturating_sub(self.call.results.len())
    }

    /// The index of the state result to write after this many tokens were done, if there is one.
    pub fn snapshot_after(&self, tokens_done: usize) -> Option<usize> {
        let back = self.tokens - tokens_done;
        (back + 1 < self.call.results.len()).then_some(back + 1)
    }
}

fn packed_or_copied<'b>(x: &'b In, row: Row, buffer: &'b mut [f32]) -> &'b [f32] {
    match x.f32_row(row).filter(|values| values.len() == buffer.len()) {
        Some(values) => values,
        None => {
            let (values, padding) = buffer.split_at_mut(x.ne()[0]);
            x.load(row, 0, values);
            padding.fill(0.0);
            buffer
        }
    }
}
