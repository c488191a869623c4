//! One token of a block of rows: sums over the state, and the pass that moves it.
//!
//! In the form of two passes, the pass that writes the state after a token also forms the sums of that token's y and
//! of the next token's prediction; in the form of one pass, both sums that the next token needs of the state before
//! it. Either way a prompt reads and writes each state element once per token.
//!
//! Each sum is one running vector along a row and then the sum over its lanes: the same whether the state came from
//! memory or from the token before, and whatever rows are computed together. So tokens may be split over calls
//! anywhere without changing a bit.

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
        simd.reduce_sum_f32s(sum)
    }
}

/// Σ M · decayed_key for each row of a block: what the key, times the decay, finds in the state before the token.
/// With a decayed query, also Σ M · decayed_query.
pub struct Predict<'a> {
    pub state: &'a [f32],
    pub decayed_key: &'a [f32],
    pub decayed_query: Option<&'a [f32]>,
    pub predictions: &'a mut [f32],
    pub sums: &'a mut [f32],
}

impl WithSimd for Predict<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match (S::F32_LANES == 16, self.decayed_query) {
            (true, Some(query)) => predict::<S, 8, true>(simd, self, query),
            (true, None) => predict::<S, 8, false>(simd, self, &[]),
            (false, Some(query)) => predict::<S, 4, true>(simd, self, query),
            (false, None) => predict::<S, 4, false>(simd, self, &[]),
        }
    }
}

#[inline(always)]
fn predict<S: Simd, const R: usize, const QUERY: bool>(simd: S, predict: Predict<'_>, decayed_query: &[f32]) {
    let Predict { state, decayed_key, predictions, sums, .. } = predict;
    let lanes = Lanes::new(simd);
    let length = decayed_key.len();
    let (keys, _) = S::as_simd_f32s(decayed_key);
    let queries = if QUERY { &S::as_simd_f32s(decayed_query).0[..keys.len()] } else { keys };
    let places = predictions.as_chunks_mut::<R>().0.iter_mut().zip(sums.as_chunks_mut::<R>().0);
    for (rows, (predictions, sums)) in state.chunks_exact(R * length).zip(places) {
        let mut wide_predictions = [simd.splat_f32s(0.0); R];
        let mut wide_sums = [simd.splat_f32s(0.0); R];
        for (index, row) in rows.chunks_exact(length).enumerate() {
            for ((&value, &key), &query) in S::as_simd_f32s(row).0.iter().zip(keys).zip(queries) {
                wide_predictions[index] = simd.mul_add_e_f32s(value, key, wide_predictions[index]);
                if QUERY {
                    wide_sums[index] = simd.mul_add_e_f32s(value, query, wide_sums[index]);
                }
            }
        }
        lanes.add(simd, [wide_sums, wide_predictions], [sums, predictions]);
    }
}

/// M ← M · decay + key · δ for each row of a block, and sums over the new state.
pub struct Advance<'a> {
    /// The rows before the token, where they are not in `state`.
    pub from: Option<&'a [f32]>,
    pub state: &'a mut [f32],
    /// The key that is written; −0 where the token writes nothing, which adds nothing to the bit.
    pub key: &'a [f32],
    pub decay: &'a [f32],
    /// What the new state is multiplied with for `sums`, and for the next predictions. The second may be missing,
    /// or both, and always is where the rows come from elsewhere.
    pub factors: [Option<&'a [f32]>; 2],
    /// δ of each row; the next token's predictions afterwards, where they are wanted.
    pub deltas: &'a mut [f32],
    /// Written where there is a first factor.
    pub sums: &'a mut [f32],
}

impl WithSimd for Advance<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Two running sums a row, in registers with what they need: 32 registers where vectors are longest.
        let wide = S::F32_LANES == 16;
        match (self.from, self.factors) {
            (Some(from), [Some(first), _]) if wide => copy_rows::<S, 8, true>(simd, self, from, first),
            (Some(from), [Some(first), _]) => copy_rows::<S, 4, true>(simd, self, from, first),
            (Some(from), [None, _]) if wide => copy_rows::<S, 8, false>(simd, self, from, &[]),
            (Some(from), [None, _]) => copy_rows::<S, 4, false>(simd, self, from, &[]),
            (None, [Some(a), Some(b)]) if wide => move_rows::<S, 8, 2>(simd, self, [a, b]),
            (None, [Some(a), Some(b)]) => move_rows::<S, 4, 2>(simd, self, [a, b]),
            (None, [Some(a), None]) if wide => move_rows::<S, 8, 1>(simd, self, [a, a]),
            (None, [Some(a), None]) => move_rows::<S, 4, 1>(simd, self, [a, a]),
            (None, [None, _]) if wide => move_rows::<S, 8, 0>(simd, self, [&[]; 2]),
            (None, [None, _]) => move_rows::<S, 4, 0>(simd, self, [&[]; 2]),
        }
    }
}

// No closures over vectors: one that is not inlined loses the instruction set.
#[inline(always)]
fn move_rows<S: Simd, const R: usize, const SUMS: usize>(
    simd: S,
    advance: Advance<'_>,
    factors: [&[f32]; 2],
) {
    let Advance { state, key, decay, deltas, sums, .. } = advance;
    let lanes = Lanes::new(simd);
    let length = key.len();
    let (keys, _) = S::as_simd_f32s(key);
    let count = keys.len();
    let decays = &S::as_simd_f32s(decay).0[..count];
    let firsts = if SUMS > 0 { &S::as_simd_f32s(factors[0]).0[..count] } else { keys };
    let seconds = if SUMS > 1 { &S::as_simd_f32s(factors[1]).0[..count] } else { keys };
    let places = deltas.as_chunks_mut::<R>().0.iter_mut().zip(sums.as_chunks_mut::<R>().0);
    for (rows, (deltas, sums)) in state.chunks_exact_mut(R * length).zip(places) {
        let mut rows = rows.chunks_exact_mut(length);
        let rows: [&mut [S::f32s]; R] = std::array::from_fn(|_| {
            let row = rows.next().expect("R whole rows");
            &mut S::as_mut_simd_f32s(row).0[..count]
        });
        let mut wide_deltas = [simd.splat_f32s(0.0); R];
        for (wide, delta) in wide_deltas.iter_mut().zip(&*deltas) {
            *wide = simd.splat_f32s(*delta);
        }
        let mut wide_sums = [simd.splat_f32s(0.0); R];
        let mut predictions = [simd.splat_f32s(0.0); R];
        for place in 0..count {
            let (key, decay, first, second) = (keys[place], decays[place], firsts[place], seconds[place]);
            for row in 0..R {
                let value = &mut rows[row][place];
                let moved = simd.mul_add_e_f32s(key, wide_deltas[row], simd.mul_f32s(*value, decay));
                *value = moved;
                if SUMS > 0 {
                    wide_sums[row] = simd.mul_add_e_f32s(moved, first, wide_sums[row]);
                }
                if SUMS > 1 {
                    predictions[row] = simd.mul_add_e_f32s(moved, second, predictions[row]);
                }
            }
        }
        if SUMS > 0 {
            lanes.add(simd, [wide_sums, predictions], [sums, deltas]);
        }
    }
}

/// As [`move_rows`], with the rows before the token elsewhere: row after row, as memory likes to be read and written.
#[inline(always)]
fn copy_rows<S: Simd, const R: usize, const SUM: bool>(
    simd: S,
    advance: Advance<'_>,
    from: &[f32],
    factor: &[f32],
) {
    let Advance { state, key, decay, deltas, sums, .. } = advance;
    let lanes = Lanes::new(simd);
    let length = key.len();
    let (keys, _) = S::as_simd_f32s(key);
    let count = keys.len();
    let decays = &S::as_simd_f32s(decay).0[..count];
    let factors = if SUM { &S::as_simd_f32s(factor).0[..count] } else { keys };
    let places = deltas.as_chunks::<R>().0.iter().zip(sums.as_chunks_mut::<R>().0);
    let groups = from.chunks_exact(R * length).zip(state.chunks_exact_mut(R * length));
    for ((from, rows), (deltas, sums)) in groups.zip(places) {
        let mut wide_sums = [simd.splat_f32s(0.0); R];
        let pairs = from.chunks_exact(length).zip(rows.chunks_exact_mut(length));
        for ((row, (from, to)), &delta) in pairs.enumerate().zip(deltas) {
            let delta = simd.splat_f32s(delta);
            let (from, to) = (&S::as_simd_f32s(from).0[..count], &mut S::as_mut_simd_f32s(to).0[..count]);
            let mut sum = simd.splat_f32s(0.0);
            for place in 0..count {
                let moved =
                    simd.mul_add_e_f32s(keys[place], delta, simd.mul_f32s(from[place], decays[place]));
                to[place] = moved;
                if SUM {
                    sum = simd.mul_add_e_f32s(moved, factors[place], sum);
                }
            }
            wide_sums[row] = sum;
        }
        if SUM {
            lanes.add(simd, [wide_sums, [simd.splat_f32s(0.0); R]], [sums, &mut [0.0; R]]);
        }
    }
}

/// Adds vectors over their lanes. With 16 lanes, 16 vectors are added in one tree of 15 nodes: a node folds
/// two vectors in half, each into one half of its result. The order for each vector is halves, then quarters,
/// and so on.
struct Lanes<S: Simd> {
    /// Lanes in the lower half of each group of 2, 4, 8 and 16.
    lower: [S::m32s; 4],
}

impl<S: Simd> Lanes<S> {
    #[inline(always)]
    fn new(simd: S) -> Lanes<S> {
        let mut lower = [simd.greater_than_f32s(simd.splat_f32s(1.0), simd.splat_f32s(0.0)); 4];
        if S::F32_LANES == 16 {
            for (level, mask) in lower.iter_mut().enumerate() {
                let mut upper = [0.0f32; 16];
                for (lane, value) in upper.iter_mut().enumerate() {
                    *value = (lane >> level & 1) as f32;
                }
                *mask = simd.less_than_f32s(S::as_simd_f32s(&upper).0[0], simd.splat_f32s(0.5));
            }
        }
        Lanes { lower }
    }

    /// The sums of two times R vectors.
    #[inline(always)]
    fn add<const R: usize>(&self, simd: S, vectors: [[S::f32s; R]; 2], sums: [&mut [f32; R]; 2]) {
        let [first, second] = sums;
        if S::F32_LANES == 16 && R == 8 {
            let mut tree = [simd.splat_f32s(0.0); 16];
            tree[..R].copy_from_slice(&vectors[0]);
            tree[R..].copy_from_slice(&vectors[1]);
            for level in (0..4).rev() {
                let half = 1 << level;
                for place in 0..half {
                    tree[place] = self.fold(simd, level, tree[place], tree[place + half]);
                }
            }
            let mut all = [0.0f32; 16];
            S::as_mut_simd_f32s(&mut all).0[0] = tree[0];
            first.copy_from_slice(&all[..R]);
            second.copy_from_slice(&all[R..]);
            return;
        }
        for row in 0..R {
            first[row] = simd.reduce_sum_f32s(vectors[0][row]);
            second[row] = simd.reduce_sum_f32s(vectors[1][row]);
        }
    }

    /// In each group of 2^(level + 1) lanes: the sum of the halves of a's group below, of b's above.
    #[inline(always)]
    fn fold(&self, simd: S, level: usize, a: S::f32s, b: S::f32s) -> S::f32s {
        let (mask, half) = (self.lower[level], 1 << level);
        let own = simd.select_f32s(mask, a, b);
        let other = simd.select_f32s(mask, simd.rotate_left_f32s(a, half), simd.rotate_right_f32s(b, half));
        simd.add_f32s(own, other)
    }
}
