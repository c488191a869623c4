//! One token of a block of rows. The pass that writes the state after a token also forms the sums of that token's
//! y and of the next token's prediction, so that a prompt reads and writes each state element once per token.
//!
//! Each sum is one running vector along a row and then the sum over its lanes: the same whether the state came from
//! memory or from the token before, and whatever rows are computed together. So tokens may be split over calls
//! anywhere without changing a bit.

use pulp::{Simd, WithSimd};

/// Rows come in groups of this many.
pub const GROUP: usize = 8;

/// What the rows of one head need of a token, each as long as a row of the block.
pub struct Token<'a> {
    /// The key that is written; −0 where the token writes nothing, which adds nothing to the bit.
    pub key: &'a [f32],
    pub query: &'a [f32],
    pub decay: &'a [f32],
}

/// Σ M · decayed_key for each row of a block: what the key, times the decay, finds in the state before the token.
pub struct Predict<'a> {
    pub state: &'a [f32],
    pub decayed_key: &'a [f32],
    pub predictions: &'a mut [f32],
}

impl WithSimd for Predict<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (keys, _) = S::as_simd_f32s(self.decayed_key);
        for (row, prediction) in self.state.chunks_exact(self.decayed_key.len()).zip(self.predictions) {
            let (row, _) = S::as_simd_f32s(row);
            let mut sum = simd.splat_f32s(0.0);
            for (&value, &key) in row.iter().zip(keys) {
                sum = simd.mul_add_e_f32s(value, key, sum);
            }
            *prediction = simd.reduce_sum_f32s(sum);
        }
    }
}

/// M ← M · decay + key · δ for each row of a block, Σ M · query, and the predictions of the next token.
pub struct Advance<'a> {
    pub state: &'a mut [f32],
    pub token: Token<'a>,
    /// The next token's decayed key; none after the last.
    pub next: Option<&'a [f32]>,
    /// δ of each row; the next token's predictions afterwards.
    pub deltas: &'a mut [f32],
    pub sums: &'a mut [f32],
}

impl WithSimd for Advance<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Two running sums a row, in registers with what they need: 32 registers where vectors are longest.
        match (S::F32_LANES >= 16, self.next) {
            (true, Some(next)) => move_rows::<S, 8, true>(simd, self, next),
            (true, None) => move_rows::<S, 8, false>(simd, self, &[]),
            (false, Some(next)) => move_rows::<S, 4, true>(simd, self, next),
            (false, None) => move_rows::<S, 4, false>(simd, self, &[]),
        }
    }
}

#[inline(always)]
fn move_rows<S: Simd, const R: usize, const NEXT: bool>(simd: S, advance: Advance<'_>, next: &[f32]) {
    let Advance { state, token, deltas, sums, .. } = advance;
    let length = token.key.len();
    let (keys, _) = S::as_simd_f32s(token.key);
    let count = keys.len();
    let vectors = |values| &S::as_simd_f32s(values).0[..count];
    let (queries, decays) = (vectors(token.query), vectors(token.decay));
    let nexts = if NEXT { vectors(next) } else { queries };
    let places = deltas.as_chunks_mut::<R>().0.iter_mut().zip(sums.as_chunks_mut::<R>().0);
    for (rows, (deltas, sums)) in state.chunks_exact_mut(R * length).zip(places) {
        let mut rows = rows.chunks_exact_mut(length);
        let rows: [&mut [S::f32s]; R] = std::array::from_fn(|_| {
            let row = rows.next().expect("R whole rows");
            &mut S::as_mut_simd_f32s(row).0[..count]
        });
        let wide_deltas = deltas.map(|delta| simd.splat_f32s(delta));
        let mut wide_sums = [simd.splat_f32s(0.0); R];
        let mut predictions = [simd.splat_f32s(0.0); R];
        for place in 0..count {
            let (key, query, decay, next) = (keys[place], queries[place], decays[place], nexts[place]);
            for row in 0..R {
                let value = &mut rows[row][place];
                let moved = simd.mul_add_e_f32s(key, wide_deltas[row], simd.mul_f32s(*value, decay));
                *value = moved;
                wide_sums[row] = simd.mul_add_e_f32s(moved, query, wide_sums[row]);
                if NEXT {
                    predictions[row] = simd.mul_add_e_f32s(moved, next, predictions[row]);
                }
            }
        }
        *sums = wide_sums.map(|sum| simd.reduce_sum_f32s(sum));
        if NEXT {
            *deltas = predictions.map(|sum| simd.reduce_sum_f32s(sum));
        }
    }
}
