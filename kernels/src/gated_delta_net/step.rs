//! One token of rows as they lie in memory, vectors along the rows.
//!
//! A group of rows is read for the sums over the state before the token, and again, still in the first-level cache, to
//! be moved. Each sum is one running vector along a row and then the sum over its lanes, in the order that a turned
//! block has too (see [`crate::shared::tile`]).
//!
//! Memory limits it: two passes over a group of eight rows are about a third of the time that their way from memory
//! and back takes.

use super::token::Token;
use crate::shared::prefetch;
use crate::shared::tile::{Halves, LANES_MAX, fold};
use pulp::{Simd, WithSimd};

/// Rows come in groups of this many.
pub const GROUP: usize = 8;

/// Σ a · b of two rows.
pub struct Product<'a>(pub &'a [f32], pub &'a [f32]);

impl WithSimd for Product<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let (a, b) = (S::as_simd_f32s(self.0).0, S::as_simd_f32s(self.1).0);
        let mut sum = simd.splat_f32s(0.0);
        for (&a, &b) in a.iter().zip(b) {
            sum = simd.mul_add_e_f32s(a, b, sum);
        }
        fold(simd, sum)
    }
}

/// One token of whole groups of rows, each of whole vectors.
pub struct One<'a> {
    pub before: &'a [f32],
    pub after: &'a mut [f32],
    pub token: Token<'a>,
    /// v of each row, y afterwards.
    pub values: &'a mut [f32],
    pub scale: f32,
    pub one_pass: bool,
}

impl WithSimd for One<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match (self.one_pass, self.token.decay.is_empty()) {
            (true, true) => one::<S, true, true>(simd, self),
            (true, false) => one::<S, true, false>(simd, self),
            (false, true) => one::<S, false, true>(simd, self),
            (false, false) => one::<S, false, false>(simd, self),
        }
    }
}

// No closures over vectors: one that is not inlined loses the instruction set.
#[inline(always)]
fn one<S: Simd, const ONE_PASS: bool, const ONE_GATE: bool>(simd: S, one: One<'_>) {
    let One { before, after, token, values, scale, .. } = one;
    let (halves, strength) = (Halves::new(simd), token.strength);
    let key_query = if ONE_PASS { Product(token.key, token.query).with_simd(simd) } else { 0.0 };
    let group = GROUP * token.key.len();
    let groups = before.chunks_exact(group).zip(after.chunks_exact_mut(group));
    for ((index, (from, to)), values) in groups.enumerate().zip(values.as_chunks_mut::<GROUP>().0) {
        // The processor's own prefetching ends with the page, which is about a group.
        if let Some(following) = before.get((index + 1) * group..(index + 2) * group) {
            prefetch::to_read(following);
        }
        prefetch::to_write(to);
        let [mut deltas, mut sums] = predict::<S, ONE_PASS>(simd, halves, from, token.seen);
        if ONE_GATE {
            deltas.iter_mut().chain(&mut sums).for_each(|sum| *sum *= strength.decay);
        }
        for (delta, value) in deltas.iter_mut().zip(&*values) {
            *delta = if strength.beta == 0.0 { 0.0 } else { (value - *delta) * strength.beta };
        }
        let moved = advance::<S, ONE_PASS, ONE_GATE>(simd, halves, from, to, &token, &deltas);
        for row in 0..GROUP {
            values[row] = match ONE_PASS {
                true => (sums[row] + deltas[row] * key_query) * scale,
                false => moved[row] * scale,
            };
        }
    }
}

/// The sums of each row times the first factor; with the form of one pass, also times the second.
#[inline(always)]
fn predict<S: Simd, const QUERY: bool>(
    simd: S,
    halves: Halves<S>,
    rows: &[f32],
    factors: [&[f32]; 2],
) -> [[f32; GROUP]; 2] {
    let keys = S::as_simd_f32s(factors[0]).0;
    let queries = &S::as_simd_f32s(factors[1]).0[..keys.len()];
    let mut predictions = [simd.splat_f32s(0.0); GROUP];
    let mut sums = [simd.splat_f32s(0.0); GROUP];
    let rows = rows.chunks_exact(factors[0].len());
    for (row, (prediction, sum)) in rows.zip(predictions.iter_mut().zip(&mut sums)) {
        for ((&value, &key), &query) in S::as_simd_f32s(row).0.iter().zip(keys).zip(queries) {
            *prediction = simd.mul_add_e_f32s(value, key, *prediction);
            if QUERY {
                *sum = simd.mul_add_e_f32s(value, query, *sum);
            }
        }
    }
    fold_groups(simd, halves, [predictions, sums])
}

/// M ← M · decay + key · δ for each row, from one place to another; with the form of two passes, the sums of the new
/// rows times the query.
#[inline(always)]
fn advance<S: Simd, const ONE_PASS: bool, const ONE_GATE: bool>(
    simd: S,
    halves: Halves<S>,
    from: &[f32],
    to: &mut [f32],
    token: &Token<'_>,
    deltas: &[f32; GROUP],
) -> [f32; GROUP] {
    let length = token.key.len();
    let keys = S::as_simd_f32s(token.key).0;
    let count = keys.len();
    let decay_of_all = simd.splat_f32s(token.strength.decay);
    let decays = if ONE_GATE { keys } else { &S::as_simd_f32s(token.decay).0[..count] };
    let queries = &S::as_simd_f32s(token.query).0[..count];
    let mut sums = [simd.splat_f32s(0.0); GROUP];
    let rows = from.chunks_exact(length).zip(to.chunks_exact_mut(length));
    for ((from, to), (sum, &delta)) in rows.zip(sums.iter_mut().zip(deltas)) {
        let delta = simd.splat_f32s(delta);
        let (from, to) = (&S::as_simd_f32s(from).0[..count], &mut S::as_mut_simd_f32s(to).0[..count]);
        for place in 0..count {
            let decay = if ONE_GATE { decay_of_all } else { decays[place] };
            let moved = simd.mul_add_e_f32s(keys[place], delta, simd.mul_f32s(from[place], decay));
            to[place] = moved;
            if !ONE_PASS {
                *sum = simd.mul_add_e_f32s(moved, queries[place], *sum);
            }
        }
    }
    match ONE_PASS {
        true => [0.0; GROUP],
        false => fold_groups(simd, halves, [sums, [simd.splat_f32s(0.0); GROUP]])[0],
    }
}

/// The sums over the lanes of two groups of vectors.
#[inline(always)]
fn fold_groups<S: Simd>(simd: S, halves: Halves<S>, groups: [[S::f32s; GROUP]; 2]) -> [[f32; GROUP]; 2] {
    let mut sums = [[0.0; GROUP]; 2];
    if S::F32_LANES == LANES_MAX {
        let mut tree = [simd.splat_f32s(0.0); LANES_MAX];
        tree[..GROUP].copy_from_slice(&groups[0]);
        tree[GROUP..].copy_from_slice(&groups[1]);
        let all = [halves.fold_all(simd, &mut tree)];
        let all = bytemuck::cast_slice::<S::f32s, f32>(&all);
        sums[0].copy_from_slice(&all[..GROUP]);
        sums[1].copy_from_slice(&all[GROUP..]);
        return sums;
    }
    for (sums, group) in sums.iter_mut().zip(groups) {
        for (sum, vector) in sums.iter_mut().zip(group) {
            *sum = fold(simd, vector);
        }
    }
    sums
}
