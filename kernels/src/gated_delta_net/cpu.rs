//! Blocks of rows of a head's matrix stay in the first-level cache over all tokens; see [`super::step`] for what a
//! token does. Rows are padded with zeros to whole vectors, and their number to whole groups. A single token of rows
//! that are whole vectors is computed on the rows where they lie, and written where they go.
//!
//! Two forms. Of one token, `two_pass` reads the rows for the predictions, then once more to move them and to sum y
//! over the new state. `one_pass` takes both sums from the state before the token, y = scale·(Σ decayed·q + δ·Σ k·q),
//! so that one tree adds the lanes of both. Of a prompt both read and write each element once per token.

use super::step::{Advance, GROUP, Predict, Product};
use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::numerics::{Numerics, Variant};
use crate::shared::call::Call;
use crate::shared::pool::Worker;
use crate::shared::{math, prefetch, simd};
use ssmgraph_ops::gated_delta_net::GatedDeltaNet;
use ssmgraph_ops::{Define, Layout, OpError};

/// Elements that rows are padded to a multiple of: the longest vector, and a cache line.
const LINE: usize = 16;
/// Most elements of a block: 16 KiB, resident in the first-level cache with the tokens' vectors.
const BLOCK_FLOATS: usize = 4096;
/// Most rows of a block.
const ROWS_MAX: usize = 64;
/// Vectors of a token: key, query, decay, key times decay, query times decay.
const TOKEN_VECTORS: usize = 5;

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

/// Rows of a block, whole groups.
fn block_rows(size: usize) -> usize {
    let fitting = BLOCK_FLOATS / padded(size).max(1) / GROUP * GROUP;
    fitting.clamp(GROUP, ROWS_MAX).min(size.next_multiple_of(GROUP))
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
        (state / 12).saturating_mul(inputs[3].ne[2]).saturating_add(state / 2)
    }

    fn scratch(&self, inputs: &[Layout], results: &[Layout]) -> Scratch {
        let size = inputs[0].ne[0];
        let floats = || padded(size) * (block_rows(size) + 2 * TOKEN_VECTORS) + LINE;
        Scratch { shared_bytes: 0, own_floats: if results[1].is_empty() { 0 } else { floats() } }
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, own: &mut [f32]) -> Result<(), OpError> {
        let rule = Rule::new(call, self)?;
        if rule.size == 0 || rule.heads == 0 {
            return Ok(());
        }
        // Vectors that cross cache lines would take twice the time.
        let aligned = own.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE).min(own.len());
        let own = &mut own[aligned..];
        let rows = block_rows(rule.size);
        let blocks = rule.size.div_ceil(rows);
        for unit in worker.share(rule.sequences * rule.heads * blocks) {
            let first = unit % blocks * rows;
            let head = unit / blocks % rule.heads;
            let block = Block {
                sequence: unit / (blocks * rule.heads),
                head,
                key_head: self.grouping.key_head(head, rule.key_heads, rule.heads),
                first,
                count: rows.min(rule.size - first),
            };
            block.run(&rule, own);
        }
        Ok(())
    }
}

/// A call with its sizes and with its start rows checked.
struct Rule<'a> {
    call: &'a Call,
    size: usize,
    key_heads: usize,
    heads: usize,
    tokens: usize,
    sequences: usize,
    /// 1/√size, by which y is multiplied.
    scale: f32,
    /// y from the state before the token.
    one_pass: bool,
}

impl<'a> Rule<'a> {
    fn new(call: &'a Call, op: &GatedDeltaNet) -> Result<Rule<'a>, OpError> {
        let [size, heads, tokens, sequences] = call.inputs[3].ne();
        let (key_heads, rows) = (call.inputs[1].ne()[1], call.inputs[0].ne()[3]);
        let scale = 1.0 / (size as f32).sqrt();
        let one_pass = call.variant == ONE_PASS;
        let rule = Rule { call, size, key_heads, heads, tokens, sequences, scale, one_pass };
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
struct Block {
    sequence: usize,
    head: usize,
    key_head: usize,
    first: usize,
    count: usize,
}

/// What the rows of one head need of a token. Vectors are as long as a padded row, what lies past its end is 0.
struct Token<'a> {
    /// The key that is written; −0 where the token writes nothing, which adds nothing to the bit.
    key: &'a [f32],
    query: &'a [f32],
    decay: &'a [f32],
    decayed_key: &'a [f32],
    decayed_query: &'a [f32],
    strength: Strength,
}

/// How much of a token is written.
#[derive(Clone, Copy, Default)]
struct Strength {
    /// 0 where the token writes nothing.
    beta: f32,
    /// Σ k·q for the form of one pass; 0 where the token writes nothing.
    key_query: f32,
}

impl<'a> Token<'a> {
    fn of(vectors: &'a [f32], strength: Strength) -> Token<'a> {
        let mut vectors = vectors.chunks_exact(vectors.len() / TOKEN_VECTORS);
        let [key, query, decay, decayed_key, decayed_query] =
            std::array::from_fn(|_| vectors.next().expect("as many vectors as a token has"));
        Token { key, query, decay, decayed_key, decayed_query, strength }
    }

    /// The sums over rows before the token.
    fn predict(&self, rule: &Rule<'_>, state: &[f32], predictions: &mut [f32], sums: &mut [f32]) {
        let decayed_query = rule.one_pass.then_some(self.decayed_query);
        simd::arch().dispatch(Predict {
            state,
            decayed_key: self.decayed_key,
            decayed_query,
            predictions,
            sums,
        });
    }

    /// δ from predictions.
    fn correct(&self, deltas: &mut [f32], values: &[f32]) {
        let beta = self.strength.beta;
        for (delta, value) in deltas.iter_mut().zip(values) {
            *delta = if beta == 0.0 { 0.0 } else { (value - *delta) * beta };
        }
    }

    /// y in the form of one pass, from the sums over the rows before the token.
    fn finish(&self, rule: &Rule<'_>, y: &mut [f32], sums: &[f32], deltas: &[f32]) {
        for ((y, sum), delta) in y.iter_mut().zip(sums).zip(deltas) {
            *y = (sum + delta * self.strength.key_query) * rule.scale;
        }
    }
}

impl Block {
    fn run(&self, rule: &Rule<'_>, own: &mut [f32]) {
        let length = padded(rule.size);
        let rows = self.count.next_multiple_of(GROUP);
        let (state, vectors) = own.split_at_mut(rows * length);
        let (vectors, _) = vectors.split_at_mut(2 * TOKEN_VECTORS * length);
        if length != rule.size {
            vectors.fill(0.0);
        }
        let (this, next) = vectors.split_at_mut(TOKEN_VECTORS * length);
        match self.rows_in_place(rule) {
            Some(rows) => self.run_one(rule, rows, this),
            None => self.run_all(rule, state, [this, next]),
        }
    }

    /// The rows before and after the call, where a single token may be computed on them as they lie.
    fn rows_in_place<'a>(&self, rule: &Rule<'a>) -> Option<(&'a [f32], &'a mut [f32])> {
        let whole = rule.tokens == 1 && rule.size == padded(rule.size);
        let slot = usize::try_from(rule.id(self.sequence)).ok().filter(|_| whole)?;
        let before = rule.call.inputs[0].f32_rows([self.first, self.head, slot], self.count)?;
        // SAFETY: blocks are shared out among the workers, each to one.
        let after =
            unsafe { rule.call.results[1].f32_rows([self.first, self.head, self.sequence], self.count)? };
        Some((before, after))
    }

    /// One token, a group of rows at a time: the group is still in the cache when it is read again.
    fn run_one(&self, rule: &Rule<'_>, (before, after): (&[f32], &mut [f32]), vectors: &mut [f32]) {
        let strength = self.load_token(rule, 0, vectors);
        let token = Token::of(vectors, strength);
        let place = [self.head, 0, self.sequence];
        let mut values = [0.0; ROWS_MAX];
        let values = &mut values[..self.count];
        rule.call.inputs[3].load(place, self.first, values);
        let group = GROUP * rule.size;
        let groups = before.chunks_exact(group).zip(after.chunks_exact_mut(group));
        for ((index, (from, state)), values) in groups.enumerate().zip(values.chunks_exact_mut(GROUP)) {
            // The processor's own prefetching ends with the page, which is about a group.
            if let Some(following) = before.get((index + 1) * group..(index + 2) * group) {
                prefetch::to_read(following);
            }
            prefetch::to_write(state);
            let (mut deltas, mut sums) = ([0.0; GROUP], [0.0; GROUP]);
            let (deltas, sums) = (&mut deltas, &mut sums);
            token.predict(rule, from, deltas, sums);
            token.correct(deltas, values);
            if rule.one_pass {
                token.finish(rule, values, sums, deltas);
            }
            let factors = [(!rule.one_pass).then_some(token.query), None];
            let Token { key, decay, .. } = token;
            simd::arch().dispatch(Advance { from: Some(from), state, key, decay, factors, deltas, sums });
            if !rule.one_pass {
                values.iter_mut().zip(sums).for_each(|(y, sum)| *y = *sum * rule.scale);
            }
        }
        // SAFETY: blocks are shared out among the workers, each to one.
        unsafe { rule.call.results[0].store(place, self.first, values) }
    }

    /// Any number of tokens, on a copy of the rows.
    fn run_all(&self, rule: &Rule<'_>, state: &mut [f32], [mut this, mut next]: [&mut [f32]; 2]) {
        let (length, rows) = (padded(rule.size), self.count.next_multiple_of(GROUP));
        self.load_state(rule, state, length);
        self.store_state(rule, 0, state, length);
        let (mut deltas, mut sums, mut values) = ([0.0; ROWS_MAX], [0.0; ROWS_MAX], [0.0; ROWS_MAX]);
        let (deltas, sums, values) = (&mut deltas[..rows], &mut sums[..rows], &mut values[..rows]);
        let mut strength = Strength::default();
        for number in 0..rule.tokens {
            if number == 0 {
                strength = self.load_token(rule, 0, this);
                Token::of(this, strength).predict(rule, state, deltas, sums);
            }
            let more = number + 1 < rule.tokens;
            let next_strength = if more { self.load_token(rule, number + 1, next) } else { strength };
            let token = Token::of(this, strength);
            let place = [self.head, number, self.sequence];
            rule.call.inputs[3].load(place, self.first, &mut values[..self.count]);
            token.correct(deltas, values);
            if rule.one_pass {
                token.finish(rule, values, sums, deltas);
            }
            let following = more.then(|| Token::of(next, next_strength));
            let next_key = following.as_ref().map(|token| token.decayed_key);
            let first = match rule.one_pass {
                true => following.as_ref().map(|token| token.decayed_query),
                false => Some(token.query),
            };
            let (Token { key, decay, .. }, factors) = (token, [first, next_key]);
            simd::arch().dispatch(Advance { from: None, state, key, decay, factors, deltas, sums });
            if !rule.one_pass {
                values.iter_mut().zip(&*sums).for_each(|(y, sum)| *y = *sum * rule.scale);
            }
            // SAFETY: blocks are shared out among the workers, each to one.
            unsafe { rule.call.results[0].store(place, self.first, &values[..self.count]) }
            self.store_state(rule, number + 1, state, length);
            std::mem::swap(&mut this, &mut next);
            strength = next_strength;
        }
    }

    /// The vectors of a token, one after the other; what lies past a row's end stays as it is.
    fn load_token(&self, rule: &Rule<'_>, token: usize, vectors: &mut [f32]) -> Strength {
        let (size, inputs, length) = (rule.size, &rule.call.inputs, vectors.len() / TOKEN_VECTORS);
        let (key, rest) = vectors.split_at_mut(length);
        let (query, rest) = rest.split_at_mut(length);
        let (decay, rest) = rest.split_at_mut(length);
        let (decayed_key, decayed_query) = rest.split_at_mut(length);
        let (place, key_place) = ([self.head, token, self.sequence], [self.key_head, token, self.sequence]);
        inputs[1].load(key_place, 0, &mut query[..size]);
        inputs[2].load(key_place, 0, &mut key[..size]);
        let one_gate = inputs[4].ne()[0] == 1;
        inputs[4].load(place, 0, &mut decay[..if one_gate { 1 } else { size }]);
        let one_pass = rule.one_pass;
        simd::vectorize(
            #[inline(always)]
            || {
                if one_gate {
                    let decay_of_all = math::exp(decay[0]);
                    decay[..size].fill(decay_of_all);
                } else {
                    decay[..size].iter_mut().for_each(|gate| *gate = math::exp(*gate));
                }
                multiply(decayed_key, key, decay);
                if one_pass {
                    multiply(decayed_query, query, decay);
                }
            },
        );
        let mut beta = [0.0];
        inputs[5].load(place, 0, &mut beta);
        let mut strength = Strength { beta: beta[0], key_query: 0.0 };
        if one_pass && strength.beta != 0.0 {
            strength.key_query = simd::arch().dispatch(Product(key, query));
        }
        if strength.beta == 0.0 {
            key[..size].fill(-0.0);
        }
        strength
    }

    fn load_state(&self, rule: &Rule<'_>, state: &mut [f32], length: usize) {
        let slot = usize::try_from(rule.id(self.sequence));
        if slot.is_err() || state.len() != self.count * rule.size {
            state.fill(0.0);
        }
        let Ok(slot) = slot else { return };
        for (row, target) in state.chunks_exact_mut(length).take(self.count).enumerate() {
            rule.call.inputs[0].load([self.first + row, self.head, slot], 0, &mut target[..rule.size]);
        }
    }

    /// Writes the state to the result that wants it after `tokens_done` tokens, if one does.
    fn store_state(&self, rule: &Rule<'_>, tokens_done: usize, state: &[f32], length: usize) {
        let index = rule.tokens - tokens_done + 1;
        let Some(result) = rule.call.results.get(index) else { return };
        for (row, values) in state.chunks_exact(length).take(self.count).enumerate() {
            // SAFETY: blocks are shared out among the workers, each to one.
            unsafe { result.store([self.first + row, self.head, self.sequence], 0, &values[..rule.size]) }
        }
    }
}

#[inline(always)]
fn multiply(products: &mut [f32], a: &[f32], b: &[f32]) {
    for ((product, a), b) in products.iter_mut().zip(a).zip(b) {
        *product = a * b;
    }
}
