//! Caches: tensors that keep a row for every token of a sequence, as attention needs them.
//!
//! Each slot owns `capacity` rows of a cache's pool. The token at position p of a slot's sequence has row
//! slot · capacity + p, so that rolling back is forgetting here as well, and whatever an earlier sequence left behind
//! is never read: attention sees the rows below a sequence's length only.

use super::state::{SlotInput, Slots};
use super::{Flags, Graph, GraphError, Tensor};
use ssmgraph_ops::{DType, Layout};

/// What attention and position embeddings need to know of the sequences, as tensors.
#[derive(Clone, Debug)]
pub struct Caches {
    /// Tokens that a slot's sequence can have.
    pub capacity: usize,
    /// I32 {sequences}: the slot of each sequence.
    pub slots: Tensor,
    /// I32 {sequences}: how many tokens each has seen before this run.
    pub past: Tensor,
    /// I32 {tokens · sequences}: the position of each token, sequence after sequence.
    pub positions: Tensor,
    /// I32 {tokens · sequences}: the row of each token in the caches.
    pub rows: Tensor,
}

/// One cache of a graph.
#[derive(Clone, Copy, Debug)]
pub struct Cache {
    /// The whole pool as it was before the run: {shape of a row (two axes), capacity, slots}.
    pub pool: Tensor,
}

impl Graph {
    /// Declares what caches share. One per graph, `capacity` tokens for each slot.
    ///
    /// Errors: slots of another graph, a second call, more rows than an I32 id can name, names `slots.…` that are
    /// taken.
    pub fn caches(&mut self, slots: &Slots, capacity: usize) -> Result<Caches, GraphError> {
        self.checked(slots.read, "caches", "slots")?;
        if self.capacity.is_some() {
            return Err(GraphError::State("caches were declared twice; all share one capacity".into()));
        }
        let rows = slots.spec.slots.checked_mul(capacity);
        if rows.is_none_or(|rows| i32::try_from(rows).is_err()) {
            return Err(GraphError::State(format!(
                "{} slots with {capacity} tokens each need more rows than an i32 id can name; ask for \
                 fewer or for less context",
                slots.spec.slots
            )));
        }
        let sequences = slots.spec.sequences;
        let tokens = slots.spec.tokens.saturating_mul(sequences);
        let caches = Caches {
            capacity,
            slots: self.slot_input("slots.slot", SlotInput::Slot, sequences)?,
            past: self.slot_input("slots.past", SlotInput::Past, sequences)?,
            positions: self.slot_input("slots.position", SlotInput::Position, tokens)?,
            rows: self.slot_input("slots.cache_row", SlotInput::CacheRow, tokens)?,
        };
        self.capacity = Some(capacity);
        Ok(caches)
    }

    /// Declares a cache whose row for one token has up to two axes, `ne` innermost first.
    ///
    /// Errors: caches of another graph, a name that is taken, more than two axes, a size that cannot be addressed.
    pub fn cache(
        &mut self,
        name: &str,
        dtype: DType,
        ne: &[usize],
        slots: &Slots,
        caches: &Caches,
    ) -> Result<Cache, GraphError> {
        self.checked(caches.rows, "cache", "caches")?;
        if ne.len() > 2 {
            return Err(GraphError::State(format!("`{name}` has {} axes, at most 2 are possible", ne.len())));
        }
        let mut full = [1, 1, caches.capacity, slots.spec.slots];
        full[..ne.len()].copy_from_slice(ne);
        let layout = Layout::contiguous(dtype, &full).map_err(|error| GraphError::leaf(name, error))?;
        let pool = self.leaf(name, layout, Flags::STATE | Flags::CACHE)?;
        self.states.push((pool, pool));
        Ok(Cache { pool })
    }

    /// Writes `rows` {shape of a row, tokens · sequences} behind the earlier tokens of their sequences, and returns
    /// the pool with them: {shape of a row (two axes), capacity, slots}.
    ///
    /// Errors: a cache, caches or rows of another graph, another shape.
    pub fn append_to_cache(
        &mut self,
        cache: &Cache,
        caches: &Caches,
        rows: Tensor,
    ) -> Result<Tensor, GraphError> {
        self.checked(cache.pool, "append_to_cache", "cache")?;
        let index = self.state_index(cache.pool, "append_to_cache")?;
        let last = self.states[index].1;
        let [a, b, capacity, slots] = self.layout(last)?.ne;
        let tokens = self.ne(caches.rows)?[0];
        let table = self.reshape(last, &[a * b, capacity * slots])?;
        let rows = self.rows_of_pool("append_to_cache", rows, &[a, b], tokens)?;
        let updated = self.set_rows(table, rows, caches.rows)?;
        self.states[index].1 = self.reshape(updated, &[a, b, capacity, slots])?;
        Ok(self.states[index].1)
    }

    /// Tokens that a slot's sequence can have, if the graph has caches.
    pub fn capacity(&self) -> Option<usize> {
        self.capacity
    }
}
