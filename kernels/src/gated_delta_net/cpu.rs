//! A worker takes rows of one head at a time, as many as stay in the second-level cache, and prepares each token once
//! for all of them.
//!
//! Of a prompt, the rows are copied and turned (see [`super::block`]): a block of two vectors of rows stays in the
//! first-level cache over a chunk of tokens. A single token is computed on the rows where they lie, and written where
//! they go (see [`super::step`]): it reads memory about as fast as a copy does, and turning would cost more than the
//! token. Both add in the same order, so that tokens may be split over calls anywhere without changing a bit. Rows are
//! padded with zeros to whole vectors, and their number to whole units.
//!
//! Two forms. `two_pass` reads the rows for the predictions, then once more to move them and to sum y over the new
//! state. `one_pass` takes both sums from the state before the token, y = scale·(Σ decayed·q + δ·Σ k·q). Of a prompt
//! both read and write each element once per token.

use super::block::Prompt;
use super::step::{GROUP, One};
use super::token::{Strength, TOKEN_VECTORS, Token};
use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::numerics::{Numerics, Variant};
use crate::shared::call::Call;
use crate::shared::pool::Worker;
use crate::shared::tile::{self, Order, Turn};
use crate::shared::{prefetch, simd};
use ssmgraph_ops::gated_delta_net::GatedDeltaNet;
use ssmgraph_ops::{Define, Layout, OpError};
use std::ops::Range;

/// Elements that rows are padded to a multiple of: the longest vector, and a cache line.
const LINE: usize = 16;
/// Rows that are shared out together: two of the longest vectors.
const UNIT: usize = 32;
/// Most elements of the rows of a head that a worker takes at once, if they are more than a unit: 64 KiB.
const RUN_FLOATS: usize = 16_384;
/// Tokens that are prepared together.
pub(super) const CHUNK: usize = 16;

const VARIANTS: [Variant; 2] = [
    Variant {
        name: "two_pass",
        numerics: Numerics::Exact,
        about: "y is a sum over the new state, formed while that is written",
    },
    Variant {
        name: "one_pass",
        numerics: Numerics::Fast,
        about: "y = scale·(Σ decayed·q + δ·Σ k·q), summed together with the prediction",
    },
];
/// Place of `one_pass`.
const ONE_PASS: usize = 1;

/// Length of a row with its padding.
fn padded(size: usize) -> usize {
    size.next_multiple_of(LINE)
}

/// Units that a worker takes at once.
fn run_units(size: usize) -> usize {
    (RUN_FLOATS / (UNIT * padded(size)).max(1)).clamp(1, size.div_ceil(UNIT).max(1))
}

impl CpuKernel for GatedDeltaNet {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn variants(&self) -> &'static [Variant] {
        &VARIANTS
    }

    fn work(&self, inputs: &[Layout], results: &[Layout]) -> usize {
        let state = results[1].elements();
        (state / 24).saturating_mul(inputs[3].ne[2]).saturating_add(state / 4)
    }

    fn scratch(&self, inputs: &[Layout], results: &[Layout]) -> Scratch {
        let size = inputs[0].ne[0];
        let own_floats = if results[1].is_empty() { 0 } else { Room::new(size).floats() };
        Scratch { shared_bytes: 0, own_floats }
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, own: &mut [f32]) -> Result<(), OpError> {
        let rule = Rule::new(call, self)?;
        if rule.size == 0 || rule.heads == 0 {
            return Ok(());
        }
        let units = rule.size.div_ceil(UNIT);
        let mut share = worker.share(rule.sequences * rule.heads * units);
        while let Some(unit) = share.next() {
            let (place, head) = (unit % units, unit / units % rule.heads);
            let together = run_units(rule.size).min(units - place).min(share.len() + 1);
            let first = place * UNIT;
            let rows = Rows {
                sequence: unit / (units * rule.heads),
                head,
                key_head: self.grouping.key_head(head, rule.key_heads, rule.heads),
                first,
                count: (together * UNIT).min(rule.size - first),
            };
            rows.run(&rule, own);
            share.start += together - 1;
        }
        Ok(())
    }
}

/// Sizes of the parts of a worker's scratch.
struct Room {
    length: usize,
    rows: usize,
}

impl Room {
    fn new(size: usize) -> Room {
        Room { length: padded(size), rows: run_units(size) * UNIT }
    }

    fn floats(&self) -> usize {
        let vectors = (CHUNK + 1) * TOKEN_VECTORS + 1;
        self.length * (self.rows + tile::LANES_MAX + vectors) + self.rows * (CHUNK + 2) + LINE
    }

    fn split<'a>(&self, own: &'a mut [f32]) -> Parts<'a> {
        // Vectors that cross cache lines would take twice the time.
        let aligned = own.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE).min(own.len());
        let (state, own) = own[aligned..].split_at_mut(self.rows * self.length);
        let (staged, own) = own.split_at_mut(tile::LANES_MAX * self.length);
        let (vectors, own) = own.split_at_mut((CHUNK + 1) * TOKEN_VECTORS * self.length);
        let (nothing, own) = own.split_at_mut(self.length);
        nothing.fill(-0.0);
        let (values, own) = own.split_at_mut(CHUNK * self.rows);
        Parts { state, staged, vectors, nothing, values, sums: &mut own[..2 * self.rows] }
    }
}

/// A worker's scratch.
struct Parts<'a> {
    /// Turned blocks of rows.
    state: &'a mut [f32],
    /// A vector's lanes of rows, on their way into a block or out.
    staged: &'a mut [f32],
    /// The vectors of a chunk of tokens, and of the one after it.
    vectors: &'a mut [f32],
    /// A key of −0.
    nothing: &'a [f32],
    /// v of each token of a chunk, then y.
    values: &'a mut [f32],
    /// Of the next token, over the state before it: four vectors for each block.
    sums: &'a mut [f32],
}

/// A call with its sizes and with its start rows checked.
pub(super) struct Rule<'a> {
    pub call: &'a Call,
    pub size: usize,
    key_heads: usize,
    heads: usize,
    tokens: usize,
    sequences: usize,
    /// 1/√size, by which y is multiplied.
    scale: f32,
    /// y from the state before the token.
    pub one_pass: bool,
    /// One decay serves all keys.
    pub one_gate: bool,
    /// Keys and queries are whole vectors where they lie.
    pub direct: bool,
}

impl<'a> Rule<'a> {
    fn new(call: &'a Call, op: &GatedDeltaNet) -> Result<Rule<'a>, OpError> {
        let [size, heads, tokens, sequences] = call.inputs[3].ne();
        let (key_heads, rows) = (call.inputs[1].ne()[1], call.inputs[0].ne()[3]);
        let scale = 1.0 / (size as f32).sqrt();
        let one_pass = call.variant == ONE_PASS;
        let one_gate = call.inputs[4].ne()[0] == 1;
        let packed = |operand: usize| call.inputs[operand].layout().rows_packed();
        // Both are of type f32, by the op's shape rule.
        let direct = size == padded(size) && packed(1) && packed(2);
        let rule =
            Rule { call, size, key_heads, heads, tokens, sequences, scale, one_pass, one_gate, direct };
        for sequence in 0..sequences {
            ssmgraph_ops::shape::checked_row(op.name(), "ids", [sequence, 0, 0], rule.id(sequence), rows)?;
        }
        Ok(rule)
    }

    fn id(&self, sequence: usize) -> i64 {
        self.call.inputs[6].int(sequence, [0; 3])
    }
}

/// Rows `first..first + count` of the matrix of one head of one sequence.
pub(super) struct Rows {
    pub sequence: usize,
    pub head: usize,
    pub key_head: usize,
    first: usize,
    count: usize,
}

impl Rows {
    fn run(&self, rule: &Rule<'_>, own: &mut [f32]) {
        let room = Room::new(rule.size);
        let mut parts = room.split(own);
        if room.length != rule.size {
            parts.vectors.fill(0.0);
            parts.staged.fill(0.0);
        }
        match self.in_place(rule) {
            Some(rows) => self.run_one(rule, rows, &mut parts),
            None => self.run_all(rule, room.length, &mut parts),
        }
    }

    /// The rows before and after the call, where a single token may be computed on them as they lie.
    fn in_place<'a>(&self, rule: &Rule<'a>) -> Option<(&'a [f32], &'a mut [f32])> {
        let whole = rule.tokens == 1 && rule.size == padded(rule.size);
        let slot = usize::try_from(rule.id(self.sequence)).ok().filter(|_| whole)?;
        let before = rule.call.inputs[0].f32_rows([self.first, self.head, slot], self.count)?;
        // SAFETY: rows are shared out among the workers, each to one.
        let after =
            unsafe { rule.call.results[1].f32_rows([self.first, self.head, self.sequence], self.count)? };
        Some((before, after))
    }

    /// One token.
    fn run_one(&self, rule: &Rule<'_>, (before, after): (&[f32], &mut [f32]), parts: &mut Parts<'_>) {
        prefetch::to_read(&before[..GROUP * rule.size]);
        let mut strength = [Strength::default()];
        self.load_strengths(rule, 0, &mut strength);
        let vectors = &mut parts.vectors[..TOKEN_VECTORS * rule.size];
        self.load_vectors(rule, 0, vectors);
        let values = &mut parts.values[..self.count];
        rule.call.inputs[3].load([self.head, 0, self.sequence], self.first, values);
        let token = self.token(rule, 0, vectors, parts.nothing, strength[0]);
        let (scale, one_pass) = (rule.scale, rule.one_pass);
        simd::arch().dispatch(One { before, after, token, values, scale, one_pass });
        // SAFETY: rows are shared out among the workers, each to one.
        unsafe { rule.call.results[0].store([self.head, 0, self.sequence], self.first, values) }
    }

    /// Any number of tokens, on a turned copy of the rows.
    fn run_all(&self, rule: &Rule<'_>, length: usize, parts: &mut Parts<'_>) {
        self.load_state(rule, length, parts);
        self.store_state(rule, 0, length, parts);
        let mut first = 0;
        while first < rule.tokens {
            let end = self.chunk_end(rule, first);
            self.advance(rule, first..end, length, parts);
            self.store_state(rule, end, length, parts);
            first = end;
        }
    }

    /// Where the chunk that starts with token `first` ends: where a result wants the state, at the latest.
    fn chunk_end(&self, rule: &Rule<'_>, first: usize) -> usize {
        let last = (first + CHUNK).min(rule.tokens);
        // Results 1, 2, … hold the state after all tokens, all but one, …
        let wanted = (rule.tokens + 2).saturating_sub(rule.call.results.len());
        last.min(wanted.max(first + 1))
    }

    /// A chunk of tokens, block after block.
    fn advance(&self, rule: &Rule<'_>, chunk: Range<usize>, length: usize, parts: &mut Parts<'_>) {
        // One more than the chunk: the last pass over it forms the sums of the token after it.
        let ahead = chunk.start..(chunk.end + 1).min(rule.tokens);
        let mut strengths = [Strength::default(); CHUNK + 1];
        self.load_strengths(rule, ahead.start, &mut strengths[..ahead.len()]);
        let slot = TOKEN_VECTORS * length;
        for (token, vectors) in ahead.clone().zip(parts.vectors.chunks_exact_mut(slot)) {
            self.load_vectors(rule, token, vectors);
        }
        let mut tokens = [Token::default(); CHUNK + 1];
        let slots = parts.vectors.chunks_exact(slot).zip(strengths);
        for ((number, target), (vectors, strength)) in ahead.clone().zip(&mut tokens).zip(slots) {
            *target = self.token(rule, number, vectors, parts.nothing, strength);
        }
        let stride = self.count.next_multiple_of(UNIT);
        for (token, values) in chunk.clone().zip(parts.values.chunks_exact_mut(stride)) {
            let values = &mut values[..self.count];
            rule.call.inputs[3].load([self.head, token, self.sequence], self.first, values);
        }
        let rows = 2 * tile::lanes();
        let blocks = parts.state.chunks_exact_mut(rows * length).zip(parts.sums.chunks_exact_mut(2 * rows));
        for (index, (block, sums)) in blocks.take(self.count.div_ceil(rows)).enumerate() {
            simd::arch().dispatch(Prompt {
                block,
                tokens: &tokens[..ahead.len()],
                more: ahead.end > chunk.end,
                fresh: chunk.start == 0,
                one_pass: rule.one_pass,
                scale: rule.scale,
                sums,
                values: &mut parts.values[index * rows..],
                stride,
            });
        }
        for (token, values) in chunk.zip(parts.values.chunks_exact(stride)) {
            let y = &rule.call.results[0];
            // SAFETY: rows are shared out among the workers, each to one.
            unsafe { y.store([self.head, token, self.sequence], self.first, &values[..self.count]) }
        }
    }

    fn load_state(&self, rule: &Rule<'_>, length: usize, parts: &mut Parts<'_>) {
        let Ok(slot) = usize::try_from(rule.id(self.sequence)) else {
            parts.state.fill(0.0);
            return;
        };
        let lanes = tile::lanes();
        for (first, block, vector) in tile::vectors(self.count, lanes) {
            let block = &mut parts.state[block * 2 * lanes * length..][..2 * lanes * length];
            let count = lanes.min(self.count.saturating_sub(first));
            let place = [self.first + first, self.head, slot];
            let direct = rule.call.inputs[0].f32_rows(place, count);
            if let Some(rows) = direct.filter(|rows| rows.len() == lanes * length) {
                // Turning takes a little of many lines at a time, which memory is slow at.
                let following = [place[0] + lanes, self.head, slot];
                let count = lanes.min(self.count.saturating_sub(first + lanes));
                prefetch::to_read(rule.call.inputs[0].f32_rows(following, count).unwrap_or_default());
                simd::arch().dispatch(Turn::In { rows, block, vectors: 2, vector, order: Order::Tree });
                continue;
            }
            let rows = &mut parts.staged[..lanes * length];
            rows.fill(0.0);
            for (row, target) in rows.chunks_exact_mut(length).take(count).enumerate() {
                let place = [place[0] + row, self.head, slot];
                rule.call.inputs[0].load(place, 0, &mut target[..rule.size]);
            }
            simd::arch().dispatch(Turn::In { rows, block, vectors: 2, vector, order: Order::Tree });
        }
    }

    /// Writes the state to the result that wants it after `tokens_done` tokens, if one does.
    fn store_state(&self, rule: &Rule<'_>, tokens_done: usize, length: usize, parts: &mut Parts<'_>) {
        let index = rule.tokens - tokens_done + 1;
        let Some(result) = rule.call.results.get(index) else { return };
        let lanes = tile::lanes();
        for (first, block, vector) in tile::vectors(self.count, lanes) {
            let block = &parts.state[block * 2 * lanes * length..][..2 * lanes * length];
            let count = lanes.min(self.count.saturating_sub(first));
            let place = [self.first + first, self.head, self.sequence];
            // SAFETY: rows are shared out among the workers, each to one.
            let direct = unsafe { result.f32_rows(place, count) };
            if let Some(rows) = direct.filter(|rows| rows.len() == lanes * length) {
                prefetch::to_write(rows);
                simd::arch().dispatch(Turn::Out { rows, block, vectors: 2, vector, order: Order::Tree });
                continue;
            }
            let rows = &mut parts.staged[..lanes * length];
            simd::arch().dispatch(Turn::Out { rows, block, vectors: 2, vector, order: Order::Tree });
            for (row, values) in rows.chunks_exact(length).take(count).enumerate() {
                let place = [place[0] + row, self.head, self.sequence];
                // SAFETY: rows are shared out among the workers, each to one.
                unsafe { result.store(place, 0, &values[..rule.size]) }
            }
        }
    }
}
