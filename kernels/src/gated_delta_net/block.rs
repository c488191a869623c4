//! Tokens of a prompt on a turned block: two vectors of rows side by side, so that the sums of a token need no
//! shuffles. The pass that writes the state after a token also forms the sums that the next token needs, so that each
//! element is read and written once per token.
//!
//! An element takes four operations a token, two of them for each sum, so a head of 128 × 128 takes 2048 cycles where
//! two vectors of 16 lanes are computed per cycle; loads and stores stay below that. What was considered: rows along
//! the lanes instead, whose sums cost a fourth of all operations in shuffles; one vector of rows, which loads the keys
//! twice as often; the elements of a row in their own order, where a load follows a store to the same place of another
//! page too closely.

use super::step::Product;
use super::token::Token;
use crate::shared::prefetch;
use crate::shared::tile::{Tree, lane_at};
use pulp::{Simd, WithSimd};

/// Two vectors of rows.
type Pair<S> = [<S as Simd>::f32s; 2];

/// Consecutive tokens of a block.
pub struct Prompt<'a> {
    pub block: &'a mut [f32],
    /// These tokens, and the one after them where there is one.
    pub tokens: &'a [Token<'a>],
    /// Whether there is one after them.
    pub more: bool,
    /// Whether the sums over the state before the first token are still to be formed.
    pub fresh: bool,
    pub one_pass: bool,
    pub scale: f32,
    /// Two vectors of sums over the state before the first token, or before the one after them afterwards: times the
    /// key, and times the query.
    pub sums: &'a mut [f32],
    /// v of each token at each `stride`-th place, y afterwards.
    pub values: &'a mut [f32],
    pub stride: usize,
}

impl WithSimd for Prompt<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let one_gate = self.tokens[0].decay.is_empty();
        // Two lanes at once start and end the loop over a row half as often.
        match (S::F32_LANES > 1, one_gate) {
            (true, true) => advance::<S, 2, true>(simd, self),
            (true, false) => advance::<S, 2, false>(simd, self),
            (false, true) => advance::<S, 1, true>(simd, self),
            (false, false) => advance::<S, 1, false>(simd, self),
        }
    }
}

#[inline(always)]
fn advance<S: Simd, const K: usize, const ONE_GATE: bool>(simd: S, prompt: Prompt<'_>) {
    let Prompt { block, tokens, more, fresh, one_pass, scale, sums, values, stride } = prompt;
    let pairs = S::as_mut_simd_f32s(block).0.as_chunks_mut::<2>().0;
    let (zero, wide_scale) = (simd.splat_f32s(0.0), simd.splat_f32s(scale));
    let carried = &mut S::as_mut_simd_f32s(sums).0.as_chunks_mut::<4>().0[0];
    if fresh {
        *carried = look::<S, K>(simd, pairs, tokens[0].seen);
    }
    let mut sums = *carried;
    for index in 0..tokens.len() - usize::from(more) {
        let token = tokens[index];
        // After the last token of all nobody needs the sums for a next one.
        let next = *tokens.get(index + 1).unwrap_or(&token);
        let values = &mut S::as_mut_simd_f32s(&mut values[index * stride..][..2 * S::F32_LANES]).0;
        let mut before = sums;
        if ONE_GATE {
            let decay = simd.splat_f32s(token.strength.decay);
            for sum in &mut before {
                *sum = simd.mul_f32s(*sum, decay);
            }
        }
        let mut deltas = [zero; 2];
        if token.strength.beta != 0.0 {
            let beta = simd.splat_f32s(token.strength.beta);
            for row in 0..2 {
                deltas[row] = simd.mul_f32s(simd.sub_f32s(values[row], before[row]), beta);
            }
        }
        if one_pass {
            let key_query = simd.splat_f32s(Product(token.key, token.query).with_simd(simd));
            for row in 0..2 {
                let learned = simd.mul_f32s(deltas[row], key_query);
                values[row] = simd.mul_f32s(simd.add_f32s(before[2 + row], learned), wide_scale);
            }
        }
        let query = if one_pass { next.seen[1] } else { token.query };
        prefetch::to_read(next.key);
        sums = pass::<S, K, ONE_GATE>(simd, pairs, &token, deltas, [next.seen[0], query]);
        if !one_pass {
            for row in 0..2 {
                values[row] = simd.mul_f32s(sums[2 + row], wide_scale);
            }
        }
    }
    *carried = sums;
}

/// The parts of a block that belong to K lanes, which follow each other in the order of the tree.
#[inline(always)]
fn lanes_of<S: Simd, const K: usize>(place: usize) -> [usize; K] {
    std::array::from_fn(|part| lane_at::<S>(place * K + part))
}

/// The sums of M times each factor: the first factor's two, then the second's.
#[inline(always)]
fn look<S: Simd, const K: usize>(simd: S, pairs: &[Pair<S>], factors: [&[f32]; 2]) -> [S::f32s; 4] {
    let across = factors[0].len() / S::F32_LANES;
    let mut tree = Tree::<S, 4>::new(simd);
    let mut whole = [simd.splat_f32s(0.0); 4];
    for (place, pairs) in pairs.chunks_exact(K * across).enumerate() {
        let lanes = lanes_of::<S, K>(place);
        let mut parts = [[simd.splat_f32s(0.0); 4]; K];
        let factors = factors[0].chunks_exact(S::F32_LANES).zip(factors[1].chunks_exact(S::F32_LANES));
        for (index, (firsts, seconds)) in factors.enumerate() {
            for part in 0..K {
                let lane = lanes[part];
                let factors = [simd.splat_f32s(firsts[lane]), simd.splat_f32s(seconds[lane])];
                add_products(simd, &mut parts[part], &pairs[part * across + index], factors);
            }
        }
        whole = tree.add(simd, place, join(simd, parts));
    }
    whole
}

/// parts ← parts + pair · factors.
#[inline(always)]
fn add_products<S: Simd>(simd: S, parts: &mut [S::f32s; 4], pair: &Pair<S>, factors: [S::f32s; 2]) {
    for (which, &factor) in factors.iter().enumerate() {
        for (row, &values) in pair.iter().enumerate() {
            parts[2 * which + row] = simd.mul_add_e_f32s(values, factor, parts[2 * which + row]);
        }
    }
}

/// The lowest level of the tree.
#[inline(always)]
fn join<S: Simd, const K: usize>(simd: S, parts: [[S::f32s; 4]; K]) -> [S::f32s; 4] {
    let mut joined = parts[0];
    for part in &parts[1..] {
        for (sum, other) in joined.iter_mut().zip(part) {
            *sum = simd.add_f32s(*sum, *other);
        }
    }
    joined
}

/// M ← M · decay + key · δ, and the sums of the new M times each factor.
#[inline(always)]
fn pass<S: Simd, const K: usize, const ONE_GATE: bool>(
    simd: S,
    pairs: &mut [Pair<S>],
    token: &Token<'_>,
    deltas: Pair<S>,
    factors: [&[f32]; 2],
) -> [S::f32s; 4] {
    let across = token.key.len() / S::F32_LANES;
    let decay_of_all = simd.splat_f32s(token.strength.decay);
    let decays = if ONE_GATE { token.key } else { token.decay };
    let mut tree = Tree::<S, 4>::new(simd);
    let mut whole = [simd.splat_f32s(0.0); 4];
    for (place, pairs) in pairs.chunks_exact_mut(K * across).enumerate() {
        let lanes = lanes_of::<S, K>(place);
        let mut pairs = pairs.chunks_exact_mut(across);
        let pairs: [&mut [Pair<S>]; K] = std::array::from_fn(|_| pairs.next().expect("K parts"));
        let mut parts = [[simd.splat_f32s(0.0); 4]; K];
        let keys = token.key.chunks_exact(S::F32_LANES).zip(decays.chunks_exact(S::F32_LANES));
        let factors = factors[0].chunks_exact(S::F32_LANES).zip(factors[1].chunks_exact(S::F32_LANES));
        for (index, ((keys, decays), (firsts, seconds))) in keys.zip(factors).enumerate() {
            for part in 0..K {
                let (lane, pair) = (lanes[part], &mut pairs[part][index]);
                let key = simd.splat_f32s(keys[lane]);
                let decay = if ONE_GATE { decay_of_all } else { simd.splat_f32s(decays[lane]) };
                for (values, delta) in pair.iter_mut().zip(deltas) {
                    *values = simd.mul_add_e_f32s(key, delta, simd.mul_f32s(*values, decay));
                }
                let factors = [simd.splat_f32s(firsts[lane]), simd.splat_f32s(seconds[lane])];
                add_products(simd, &mut parts[part], pair, factors);
            }
        }
        whole = tree.add(simd, place, join(simd, parts));
    }
    whole
}
