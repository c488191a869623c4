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
        if S::F32_LANES == 16 { predict::<S, 8>(simd, self) } else { predict::<S, 4>(simd, self) }
    }
}

#[inline(always)]
fn predict<S: Simd, const R: usize>(simd: S, Predict { state, decayed_key, predictions }: Predict<'_>) {
    let lanes = Lanes::new(simd);
    let length = decayed_key.len();
    let (keys, _) = S::as_simd_f32s(decayed_key);
    for (rows, predictions) in state.chunks_exact(R * length).zip(predictions.as_chunks_mut::<R>().0) {
        let mut sums = [simd.splat_f32s(0.0); R];
        for (row, sum) in rows.chunks_exact(length).zip(&mut sums) {
            for (&value, &key) in S::as_simd_f32s(row).0.iter().zip(keys) {
                *sum = simd.mul_add_e_f32s(value, key, *sum);
            }
        }
        lanes.add(simd, [sums, [simd.splat_f32s(0.0); R]], [predictions, &mut [0.0; R]]);
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
        match (S::F32_LANES == 16, self.next) {
            (true, Some(next)) => move_rows::<S, 8, true>(simd, self, next),
            (true, None) => move_rows::<S, 8, false>(simd, self, &[]),
            (false, Some(next)) => move_rows::<S, 4, true>(simd, self, next),
            (false, None) => move_rows::<S, 4, false>(simd, self, &[]),
        }
    }
}

// No closures over vectors: one that is not inlined loses the instruction set.
#[inline(always)]
fn move_rows<S: Simd, const R: usize, const NEXT: bool>(simd: S, advance: Advance<'_>, next: &[f32]) {
    let Advance { state, token, deltas, sums, .. } = advance;
    let lanes = Lanes::new(simd);
    let length = token.key.len();
    let (keys, _) = S::as_simd_f32s(token.key);
    let count = keys.len();
    let (queries, decays) =
        (&S::as_simd_f32s(token.query).0[..count], &S::as_simd_f32s(token.decay).0[..count]);
    let nexts = if NEXT { &S::as_simd_f32s(next).0[..count] } else { queries };
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
        lanes.add(simd, [wide_sums, predictions], [sums, deltas]);
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
