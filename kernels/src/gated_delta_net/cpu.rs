//! Blocks of rows of a head's matrix stay in the first-level cache over all tokens; see [`super::step`] for what a
//! token does. Rows are padded with zeros to whole vectors, and their number to whole groups.

use super::step::{Advance, GROUP, Predict, Token};
use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::Call;
use crate::shared::pool::Worker;
use crate::shared::{math, simd};
use ssmgraph_ops::gated_delta_net::GatedDeltaNet;
use ssmgraph_ops::{Define, Layout, OpError};

/// Elements that rows are padded to a multiple of: the longest vector, and a cache line.
const LINE: usize = 16;
/// Most elements of a block: 16 KiB, resident in the first-level cache with the tokens' vectors.
const BLOCK_FLOATS: usize = 4096;
/// Most rows of a block.
const ROWS_MAX: usize = 64;
/// Vectors of a token: key, query, decay, key times decay.
const TOKEN_VECTORS: usize = 4;

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
}

impl<'a> Rule<'a> {
    fn new(call: &'a Call, op: &GatedDeltaNet) -> Result<Rule<'a>, OpError> {
        let [size, heads, tokens, sequences] = call.inputs[3].ne();
        let (key_heads, rows) = (call.inputs[1].ne()[1], call.inputs[0].ne()[3]);
        let rule = Rule { call, size, key_heads, heads, tokens, sequences };
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

impl Block {
    fn run(&self, rule: &Rule<'_>, own: &mut [f32]) {
        let length = padded(rule.size);
        // Vectors that cross cache lines would take twice the time.
        let aligned = own.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        let rows = self.count.next_multiple_of(GROUP);
        let (state, vectors) = own[aligned..].split_at_mut(rows * length);
        let (vectors, _) = vectors.split_at_mut(2 * TOKEN_VECTORS * length);
        vectors.fill(0.0);
        self.load_state(rule, state, length);
        self.store_state(rule, 0, state, length);
        let (mut this, mut next) = vectors.split_at_mut(TOKEN_VECTORS * length);
        let (mut deltas, mut sums, mut values) = ([0.0; ROWS_MAX], [0.0; ROWS_MAX], [0.0; ROWS_MAX]);
        let (deltas, sums) = (&mut deltas[..rows], &mut sums[..rows]);
        let scale = 1.0 / (rule.size as f32).sqrt();
        for token in 0..rule.tokens {
            if token == 0 {
                self.load_token(rule, token, this, length);
                let decayed_key = &this[3 * length..];
                simd::arch().dispatch(Predict { state, decayed_key, predictions: deltas });
            }
            let place = [self.head, token, self.sequence];
            let mut beta = [0.0];
            rule.call.inputs[5].load(place, 0, &mut beta);
            rule.call.inputs[3].load(place, self.first, &mut values[..self.count]);
            for (delta, value) in deltas.iter_mut().zip(values) {
                *delta = if beta[0] == 0.0 { 0.0 } else { (value - *delta) * beta[0] };
            }
            let more = token + 1 < rule.tokens;
            if more {
                self.load_token(rule, token + 1, next, length);
            }
            let token_vectors = Token {
                key: &this[..length],
                query: &this[length..2 * length],
                decay: &this[2 * length..3 * length],
            };
            let next_key = more.then(|| &next[3 * length..]);
            simd::arch().dispatch(Advance { state, token: token_vectors, next: next_key, deltas, sums });
            sums.iter_mut().for_each(|sum| *sum *= scale);
            // SAFETY: blocks are shared out among the workers, each to one.
            unsafe { rule.call.results[0].store(place, self.first, &sums[..self.count]) }
            self.store_state(rule, token + 1, state, length);
            std::mem::swap(&mut this, &mut next);
        }
    }

    /// The vectors of a token, one after the other; what lies past a row's end stays 0.
    fn load_token(&self, rule: &Rule<'_>, token: usize, vectors: &mut [f32], length: usize) {
        let (size, inputs) = (rule.size, &rule.call.inputs);
        let (key, rest) = vectors.split_at_mut(length);
        let (query, rest) = rest.split_at_mut(length);
        let (decay, decayed_key) = rest.split_at_mut(length);
        let (place, key_place) = ([self.head, token, self.sequence], [self.key_head, token, self.sequence]);
        inputs[1].load(key_place, 0, &mut query[..size]);
        inputs[2].load(key_place, 0, &mut key[..size]);
        let (key, decay) = (&mut key[..size], &mut decay[..size]);
        if inputs[4].ne()[0] == 1 {
            let mut gate = [0.0];
            inputs[4].load(place, 0, &mut gate);
            decay.fill(math::exp(gate[0]));
        } else {
            inputs[4].load(place, 0, decay);
            simd::vectorize(
                #[inline(always)]
                || decay.iter_mut().for_each(|gate| *gate = math::exp(*gate)),
            );
        }
        for ((product, key), decay) in decayed_key.iter_mut().zip(key.iter()).zip(decay.iter()) {
            *product = key * decay;
        }
        let mut beta = [0.0];
        inputs[5].load(place, 0, &mut beta);
        if beta[0] == 0.0 {
            key.fill(-0.0);
        }
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
