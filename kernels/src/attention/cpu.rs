//! Blocks of positions, each with its own maximum, folded into a running result from position 0 on.
//!
//! A block's share of a result depends on the query and the positions of the block up to the query's own, and
//! blocks meet in their order; so a token's bits depend on nothing around it. A few tokens of a sequence and the
//! heads that share keys go through the blocks together, so that a block is read, and its 16-bit numbers are
//! widened, once for all of them.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::mul_mat::dots::dots;
use crate::shared::call::{Call, In, Row};
use crate::shared::pool::Worker;
use crate::shared::{math, reduce, simd};
use pulp::{Simd, WithSimd};
use ssmgraph_ops::attention::checked_cache;
use ssmgraph_ops::{Attention, Layout, OpError};
use std::ops::Range;

/// Positions of a block.
const BLOCK: usize = 64;

/// Tokens that go through the blocks together.
const TILE_TOKENS: usize = 8;

/// Keys whose scores are formed together.
const TILE_KEYS: usize = 4;

impl CpuKernel for Attention {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], results: &[Layout]) -> usize {
        let (k, v) = (&inputs[1], &inputs[2]);
        let row = (k.ne[0].saturating_add(v.ne[0])) / 16 + 1;
        let queries = inputs[0].ne[1].saturating_mul(inputs[0].ne[2]).saturating_mul(inputs[0].ne[3]);
        if results[0].is_empty() { 0 } else { queries.saturating_mul(k.ne[2]).saturating_mul(row) }
    }

    fn scratch(&self, inputs: &[Layout], results: &[Layout]) -> Scratch {
        if results[0].is_empty() {
            return Scratch::default();
        }
        let sizes = Sizes::of(&inputs[0], &inputs[1], &inputs[2]);
        Scratch { shared_bytes: 0, own_floats: sizes.own_floats() }
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, own: &mut [f32]) -> Result<(), OpError> {
        let [q, k, v, slots, past] = &call.inputs[..] else { unreachable!("the arity was checked") };
        if call.results[0].layout().is_empty() {
            return Ok(());
        }
        let cache_of = |sequence: usize| {
            let (slot, past) = (slots.int(sequence, [0; 3]), past.int(sequence, [0; 3]));
            checked_cache(q.layout(), k.layout(), sequence, slot, past)
        };
        let [_, heads, tokens, sequences] = q.ne();
        // All are checked first, so that every worker meets the same error whatever its share.
        for sequence in 0..sequences {
            cache_of(sequence)?;
        }
        let sizes = Sizes::of(q.layout(), k.layout(), v.layout());
        let groups = heads / sizes.heads;
        let tiles = tokens.div_ceil(TILE_TOKENS);
        let units = tiles * groups * sequences;
        // Heads that share keys part when there is too little work otherwise.
        let parts = if worker.count == 1 || units >= 2 * worker.count { 1 } else { sizes.heads };
        let mut room = Room::within(own, &sizes);
        // Every so-many-th unit: later tokens of a prompt have more to do.
        for unit in (worker.index..units * parts).step_by(worker.count) {
            let (part, unit) = (unit % parts, unit / parts);
            let (group, sequence) = (unit / tiles % groups, unit / tiles / groups);
            let first = group * sizes.heads;
            let first_token = unit % tiles * TILE_TOKENS;
            let [cache, past] = cache_of(sequence)?;
            let tile = Tile {
                call,
                scale: self.scale,
                heads: first + part * sizes.heads / parts..first + (part + 1) * sizes.heads / parts,
                tokens: first_token..tokens.min(first_token + TILE_TOKENS),
                group,
                sequence,
                cache,
                past,
            };
            tile.attend(&mut room);
        }
        Ok(())
    }
}

/// What decides how much scratch a worker needs.
struct Sizes {
    key: usize,
    value: usize,
    /// Heads that share keys.
    heads: usize,
    /// Queries that go through the blocks together.
    queries: usize,
    copies_keys: bool,
    copies_values: bool,
}

impl Sizes {
    /// Of operands whose result has elements.
    fn of(q: &Layout, k: &Layout, v: &Layout) -> Sizes {
        let heads = q.ne[1] / k.ne[1];
        let in_place = |layout: &Layout| layout.dtype == ssmgraph_ops::DType::F32 && layout.rows_packed();
        Sizes {
            key: q.ne[0],
            value: v.ne[0],
            heads,
            queries: heads.saturating_mul(TILE_TOKENS.min(q.ne[2])),
            copies_keys: !in_place(k),
            copies_values: !in_place(v),
        }
    }

    fn own_floats(&self) -> usize {
        let copied = |copies: bool, row: usize| if copies { BLOCK.saturating_mul(row) } else { 0 };
        let states = self.queries.saturating_mul(self.value.saturating_add(2));
        let copies =
            copied(self.copies_keys, self.key).saturating_add(copied(self.copies_values, self.value));
        states.saturating_add(copies).saturating_add(self.key).saturating_add(BLOCK)
    }
}

/// A worker's scratch.
struct Room<'a> {
    query: &'a mut [f32],
    scores: &'a mut [f32],
    keys: &'a mut [f32],
    values: &'a mut [f32],
    /// For each query its maximum, its total, and its weighed sum of values.
    states: &'a mut [f32],
}

impl<'a> Room<'a> {
    fn within(own: &'a mut [f32], sizes: &Sizes) -> Room<'a> {
        let (query, own) = own.split_at_mut(sizes.key);
        let (scores, own) = own.split_at_mut(BLOCK);
        let (keys, own) = own.split_at_mut(if sizes.copies_keys { BLOCK * sizes.key } else { 0 });
        let (values, states) = own.split_at_mut(if sizes.copies_values { BLOCK * sizes.value } else { 0 });
        Room { query, scores, keys, values, states }
    }
}

/// Some tokens of a sequence and some heads that share keys.
struct Tile<'a> {
    call: &'a Call,
    scale: f32,
    heads: Range<usize>,
    tokens: Range<usize>,
    group: usize,
    sequence: usize,
    cache: usize,
    past: usize,
}

impl Tile<'_> {
    fn attend(&self, room: &mut Room<'_>) {
        let [q, k, v, ..] = &self.call.inputs[..] else { unreachable!("the arity was checked") };
        let state_len = v.ne()[0] + 2;
        let states = &mut room.states[..self.tokens.len() * self.heads.len() * state_len];
        for state in states.chunks_exact_mut(state_len) {
            state.fill(0.0);
            state[0] = f32::NEG_INFINITY;
        }
        let end = self.past + self.tokens.end;
        for first in (0..end).step_by(BLOCK) {
            let positions = first..end.min(first + BLOCK);
            let keys = self.rows_of(k, positions.clone(), room.keys);
            let values = self.rows_of(v, positions.clone(), room.values);
            let mut states = states.chunks_exact_mut(state_len);
            for token in self.tokens.clone() {
                let seen = positions.end.min(self.past + token + 1);
                for head in self.heads.clone() {
                    let state = states.next().expect("one state per query");
                    if seen <= first {
                        continue;
                    }
                    let row = [head, token, self.sequence];
                    let query = match q.f32_row(row) {
                        Some(query) => query,
                        None => {
                            q.load(row, 0, room.query);
                            &*room.query
                        }
                    };
                    let scores = &mut room.scores[..seen - first];
                    simd::arch().dispatch(Scores { query, keys: &keys, scale: self.scale, scores });
                    fold(state, scores, &values);
                }
            }
        }
        self.store(states.chunks_exact(state_len));
    }

    /// Rows of a cache: where they lie, or copied to `room`.
    fn rows_of<'r>(&self, cache: &'r In, positions: Range<usize>, room: &'r mut [f32]) -> Rows<'r> {
        let row = |position: usize| -> Row { [self.group, position, self.cache] };
        let (first, len) = (positions.start, cache.ne()[0]);
        if room.is_empty() {
            return Rows { cache, first: row(first), copied: &[], len };
        }
        for (position, copy) in positions.zip(room.chunks_exact_mut(len)) {
            cache.load(row(position), 0, copy);
        }
        Rows { cache, first: row(first), copied: room, len }
    }

    fn store<'s>(&self, states: impl Iterator<Item = &'s [f32]>) {
        let y = &self.call.results[0];
        let queries = self.tokens.clone().flat_map(|token| self.heads.clone().map(move |head| (token, head)));
        for ((token, head), state) in queries.zip(states) {
            // SAFETY: each query belongs to one unit, and that to one worker.
            let target = unsafe { y.f32_row([head, token, self.sequence], 0..state.len() - 2) };
            let total = state[1];
            target.iter_mut().zip(&state[2..]).for_each(|(y, sum)| *y = sum / total);
        }
    }
}

/// Neighbouring rows of a cache.
struct Rows<'a> {
    cache: &'a In,
    /// The first of them.
    first: Row,
    /// Their copies; none when they are read where they lie.
    copied: &'a [f32],
    len: usize,
}

impl<'a> Rows<'a> {
    #[inline(always)]
    fn row(&self, index: usize) -> &'a [f32] {
        if !self.copied.is_empty() {
            return &self.copied[index * self.len..(index + 1) * self.len];
        }
        let [group, position, cache] = self.first;
        self.cache.f32_row([group, position + index, cache]).unwrap_or_default()
    }
}

/// Scores of a block's positions.
struct Scores<'a> {
    query: &'a [f32],
    keys: &'a Rows<'a>,
    scale: f32,
    scores: &'a mut [f32],
}

impl WithSimd for Scores<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (tiles, rest) = self.scores.as_chunks_mut::<TILE_KEYS>();
        let whole = tiles.len() * TILE_KEYS;
        for (tile, scores) in tiles.iter_mut().enumerate() {
            let mut keys: [&[f32]; TILE_KEYS] = [&[]; TILE_KEYS];
            for (key, row) in keys.iter_mut().enumerate() {
                *row = self.keys.row(tile * TILE_KEYS + key);
            }
            let sums = dots::<S, TILE_KEYS>(simd, keys, self.query);
            for key in 0..TILE_KEYS {
                scores[key] = simd.reduce_sum_f32s(sums[key]) * self.scale;
            }
        }
        for (key, score) in rest.iter_mut().enumerate() {
            let key = self.keys.row(whole + key);
            let [sum] = dots::<S, 1>(simd, [key], self.query);
            *score = simd.reduce_sum_f32s(sum) * self.scale;
        }
    }
}

/// Folds a block into a query's state. A maximum of −∞, where there is nothing to weigh yet, counts as 0, so
/// that no difference of infinities appears; one of +∞ makes NaN, as it shall.
fn fold(state: &mut [f32], scores: &mut [f32], values: &Rows<'_>) {
    let largest = reduce::max(scores);
    let base = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
    simd::vectorize(
        #[inline(always)]
        || scores.iter_mut().for_each(|score| *score = math::exp(*score - base)),
    );
    let total = reduce::sum(scores);
    let (numbers, sums) = state.split_at_mut(2);
    let [old_largest, old_total] = [numbers[0], numbers[1]];
    let new_largest = if largest > old_largest { largest } else { old_largest };
    let new_base = if new_largest == f32::NEG_INFINITY { 0.0 } else { new_largest };
    let keep = math::exp(old_largest - new_base);
    let take = math::exp(largest - new_base);
    (numbers[0], numbers[1]) = (new_largest, old_total * keep + total * take);
    simd::arch().dispatch(Weigh { shares: scores, values, keep, take, sums });
}

/// sums = sums · keep + take · Σ_j shares[j] · values[j].
struct Weigh<'a> {
    shares: &'a [f32],
    values: &'a Rows<'a>,
    keep: f32,
    take: f32,
    sums: &'a mut [f32],
}

impl WithSimd for Weigh<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Weigh { shares, values, keep, take, sums } = self;
        let (keep, take) = (simd.splat_f32s(keep), simd.splat_f32s(take));
        let (vectors, rest) = S::as_mut_simd_f32s(sums);
        let (fours, singles) = vectors.as_chunks_mut::<4>();
        for (index, four) in fours.iter_mut().enumerate() {
            let mut block = [simd.splat_f32s(0.0); 4];
            for (j, &share) in shares.iter().enumerate() {
                let share = simd.splat_f32s(share);
                let (row, _) = S::as_simd_f32s(values.row(j));
                let row = &row[index * 4..index * 4 + 4];
                for i in 0..4 {
                    block[i] = simd.mul_add_e_f32s(share, row[i], block[i]);
                }
            }
            for i in 0..4 {
                four[i] = simd.mul_add_e_f32s(four[i], keep, simd.mul_f32s(block[i], take));
            }
        }
        let first_single = fours.len() * 4;
        for (index, single) in singles.iter_mut().enumerate() {
            let mut block = simd.splat_f32s(0.0);
            for (j, &share) in shares.iter().enumerate() {
                let (row, _) = S::as_simd_f32s(values.row(j));
                block = simd.mul_add_e_f32s(simd.splat_f32s(share), row[first_single + index], block);
            }
            *single = simd.mul_add_e_f32s(*single, keep, simd.mul_f32s(block, take));
        }
        if !rest.is_empty() {
            let mut block = simd.splat_f32s(0.0);
            for (j, &share) in shares.iter().enumerate() {
                let (_, row) = S::as_simd_f32s(values.row(j));
                block = simd.mul_add_e_f32s(simd.splat_f32s(share), simd.partial_load_f32s(row), block);
            }
            let sums = simd.partial_load_f32s(rest);
            simd.partial_store_f32s(rest, simd.mul_add_e_f32s(sums, keep, simd.mul_f32s(block, take)));
        }
    }
}
