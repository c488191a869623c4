//! What the rows of a head need of a token.

use super::cpu::{CHUNK, Rows, Rule};
use crate::shared::{math, simd};

/// Vectors of a token that may have to be written: key, query, decay, key times decay, query times decay.
pub const TOKEN_VECTORS: usize = 5;

/// A token. Its vectors are as long as a padded row; what lies past a row's end is 0.
#[derive(Clone, Copy, Default)]
pub struct Token<'a> {
    /// The key that is written; −0 where the token writes nothing, which adds nothing to the bit.
    pub key: &'a [f32],
    pub query: &'a [f32],
    /// Of each key index; nothing where one decay serves all.
    pub decay: &'a [f32],
    /// What the state before the token is multiplied with for the prediction, and for y in the form of one pass: key
    /// and query, times the decay where each index has its own. Where one serves all, the sums are multiplied instead.
    pub seen: [&'a [f32]; 2],
    pub strength: Strength,
}

/// The numbers of a token.
#[derive(Clone, Copy, Default)]
pub struct Strength {
    /// 0 where the token writes nothing.
    pub beta: f32,
    /// The decay, where one serves all key indices.
    pub decay: f32,
}

impl Rows {
    /// The numbers of tokens `first..`, at most a chunk and one of them.
    pub fn load_strengths(&self, rule: &Rule<'_>, first: usize, strengths: &mut [Strength]) {
        let (mut betas, mut decays) = ([0.0; CHUNK + 1], [0.0; CHUNK + 1]);
        let (betas, decays) = (&mut betas[..strengths.len()], &mut decays[..strengths.len()]);
        // With the tokens innermost, the numbers of a head are a row.
        let along = |operand: usize| rule.call.inputs[operand].permuted([2, 1, 0, 3]);
        let row = [self.head, 0, self.sequence];
        along(5).load(row, first, betas);
        if rule.one_gate {
            along(4).load(row, first, decays);
            simd::vectorize(
                #[inline(always)]
                || decays.iter_mut().for_each(|gate| *gate = math::exp(*gate)),
            );
        }
        for ((strength, &mut beta), &mut decay) in strengths.iter_mut().zip(betas).zip(decays) {
            *strength = Strength { beta, decay };
        }
    }

    /// Writes the vectors of a token, one after the other, where they cannot be read as they lie; what lies past a
    /// row's end stays as it is.
    pub fn load_vectors(&self, rule: &Rule<'_>, token: usize, vectors: &mut [f32]) {
        if rule.direct && rule.one_gate {
            return;
        }
        let (size, inputs) = (rule.size, &rule.call.inputs);
        let [key, query, decay, decayed_key, decayed_query] = parts_mut(vectors);
        let place = [self.key_head, token, self.sequence];
        inputs[1].load(place, 0, &mut query[..size]);
        inputs[2].load(place, 0, &mut key[..size]);
        if rule.one_gate {
            return;
        }
        inputs[4].load([self.head, token, self.sequence], 0, &mut decay[..size]);
        simd::vectorize(
            #[inline(always)]
            || {
                decay[..size].iter_mut().for_each(|gate| *gate = math::exp(*gate));
                multiply(decayed_key, key, decay);
                if rule.one_pass {
                    multiply(decayed_query, query, decay);
                }
            },
        );
    }

    /// A token, after its vectors were written to `vectors`; `nothing` is a key of −0.
    pub fn token<'a>(
        &self,
        rule: &Rule<'a>,
        token: usize,
        vectors: &'a [f32],
        nothing: &'a [f32],
        strength: Strength,
    ) -> Token<'a> {
        let row = |operand: usize| rule.call.inputs[operand].f32_row([self.key_head, token, self.sequence]);
        let [key, query, decay, decayed_key, decayed_query] = parts(vectors);
        let (key, query) = match (rule.direct, row(2), row(1)) {
            (true, Some(key), Some(query)) => (key, query),
            _ => (key, query),
        };
        let (decay, seen) = match rule.one_gate {
            true => (&[][..], [key, query]),
            false => (decay, [decayed_key, decayed_query]),
        };
        let key = if strength.beta == 0.0 { nothing } else { key };
        Token { key, query, decay, seen, strength }
    }
}

fn parts(vectors: &[f32]) -> [&[f32]; TOKEN_VECTORS] {
    let length = vectors.len() / TOKEN_VECTORS;
    std::array::from_fn(|part| &vectors[part * length..][..length])
}

fn parts_mut(vectors: &mut [f32]) -> [&mut [f32]; TOKEN_VECTORS] {
    let length = vectors.len() / TOKEN_VECTORS;
    let mut parts = vectors.chunks_exact_mut(length);
    std::array::from_fn(|_| parts.next().expect("as many parts as a token has vectors"))
}

#[inline(always)]
fn multiply(products: &mut [f32], a: &[f32], b: &[f32]) {
    for ((product, a), b) in products.iter_mut().zip(a).zip(b) {
        *product = a * b;
    }
}
