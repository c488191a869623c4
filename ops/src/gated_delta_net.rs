//! The gated delta rule: a matrix per head that forgets by a gate and learns by its own error.
//!
//! For each sequence b, value head h, token t and row j of the head's matrix, with c the key head of h:
//! ```text
//! M[j, i] = M[j, i] · exp(g[·, h, t, b])                       g[i, …] or one g for all i
//! δ[j]    = ( v[j, h, t, b] − Σ_i M[j, i] · k[i, c, t, b] ) · beta[0, h, t, b]
//! M[j, i] = M[j, i] + k[i, c, t, b] · δ[j]
//! y[j, h, t, b] = Σ_i M[j, i] · q[i, c, t, b] / √S
//! ```
//! `Tiled` reads key head c = h mod Hk, `Interleaved` c = h div (Hv / Hk).
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | state | S, S, Hv, R | f32 | pool of R states; axis 0 is the key's index i, axis 1 the value's index j |
//! | q | S, Hk, T, B | f32 | queries, normalised; Hk divides Hv |
//! | k | S, Hk, T, B | f32 | keys, normalised |
//! | v | S, Hv, T, B | f32 | values |
//! | g | 1 or S, Hv, T, B | f32 | logarithm of the decay, at most 0; with S one for each key index |
//! | beta | 1, Hv, T, B | f32 | writing strength, after the sigmoid; 0 writes nothing, whatever k and v hold |
//! | ids | B | i32 | the row of the pool that each sequence starts from; −1 starts from zero |
//!
//! Results: y {S, Hv, T, B}; `state` {S, S, Hv, B} after the last token (a copy of the start when T = 0);
//! with K > 1 also `state_k`, the state k tokens before the last, for k < min(K, T). K is at most 65535.
//! A token with g = 0 and beta = 0 leaves the state alone to the bit. q, k, v, g and beta may be views of one
//! tensor.
//!
//! Programs that keep the states after all T tokens, oldest first, find them as K = T with the results read
//! from the back: the state after token t is result `state_(T−1−t)`, and to accept the first m of T drafted
//! tokens is to go on from `state_(T−m)`. A start row per sequence makes independent slots of one token each
//! a batch with T = 1.
//!
//! Source: Yang, Kautz & Hatamizadeh 2024 (arXiv 2412.06464) equation 10; layout, scale and the mapping of
//! heads as ggml's GATED_DELTA_NET; one g per key index as in Kimi Delta Attention (arXiv 2510.26692).

use crate::case::{Arrangement, Values, fill};
use crate::shape::{expect_dtype, expect_ne, expect_shape};
use crate::{Case, DType, Define, HostTensor, Layout, Layouts, OpError, Operand, Storage};
use crate::{Tolerance, ViewMut, Views, snapshots};

/// Which key head a value head reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grouping {
    /// h mod Hk: the key heads follow one another, again and again.
    Tiled,
    /// h div (Hv / Hk): each key head serves neighbours.
    Interleaved,
}

impl Grouping {
    /// The name in texts.
    pub fn name(self) -> &'static str {
        match self {
            Grouping::Tiled => "tiled",
            Grouping::Interleaved => "interleaved",
        }
    }

    /// The key head, of `key_heads` ≥ 1, that head `head` of `heads` reads.
    pub fn key_head(self, head: usize, key_heads: usize, heads: usize) -> usize {
        match self {
            Grouping::Tiled => head % key_heads,
            Grouping::Interleaved => head / (heads / key_heads).max(1),
        }
    }
}

/// The gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatedDeltaNet {
    /// Which key head a value head reads.
    pub grouping: Grouping,
    /// How many of the last states are results: K ≥ 1.
    pub snapshots: usize,
}

const OPERANDS: &[Operand] = &[
    Operand::new("state", "S, S, Hv, R", "f32", "pool of R states; key index, then value index"),
    Operand::new("q", "S, Hk, T, B", "f32", "queries, normalised"),
    Operand::new("k", "S, Hk, T, B", "f32", "keys, normalised"),
    Operand::new("v", "S, Hv, T, B", "f32", "values"),
    Operand::new("g", "1 or S, Hv, T, B", "f32", "logarithm of the decay, at most 0"),
    Operand::new("beta", "1, Hv, T, B", "f32", "writing strength; 0 writes nothing"),
    Operand::new("ids", "B", "i32", "row of the pool each sequence starts from; −1 starts from zero"),
];

impl Define for GatedDeltaNet {
    fn name(&self) -> &'static str {
        "gated_delta_net"
    }

    fn operands(&self) -> &'static [Operand] {
        OPERANDS
    }

    fn result_name(&self, index: usize) -> String {
        snapshots::result_name(index)
    }

    fn attributes(&self) -> String {
        let grouping = self.grouping.name();
        match self.snapshots {
            1 => format!("grouping={grouping}"),
            snapshots => format!("grouping={grouping}, snapshots={snapshots}"),
        }
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        let op = self.name();
        let [state, q, k, v, g, beta, ids] = inputs else { unreachable!("the arity was checked") };
        snapshots::check(op, self.snapshots)?;
        for (operand, layout) in OPERANDS[..6].iter().zip(inputs) {
            expect_dtype(op, operand.name, layout, &[DType::F32])?;
        }
        expect_dtype(op, "ids", ids, &[DType::I32])?;
        let [size, _, heads, _] = state.ne;
        let [_, _, tokens, sequences] = v.ne;
        expect_ne(op, "state", state, 1, size, "the state of a head is square")?;
        expect_shape(op, "v", v, [size, heads, tokens, sequences], "rows and heads of the state")?;
        let key_heads = q.ne[1];
        expect_shape(op, "q", q, [size, key_heads, tokens, sequences], "size of the state, tokens of v")?;
        expect_shape(op, "k", k, q.ne, "the shape of q")?;
        if heads != 0 && (key_heads == 0 || heads % key_heads != 0) {
            let what = format!("q has ne[1] = {key_heads}, which does not divide {heads} heads of v");
            return Err(OpError::new(op, what));
        }
        if g.ne[0] != 1 {
            expect_ne(op, "g", g, 0, size, "the size of the state, or 1 for one decay per head")?;
        }
        expect_shape(op, "g", g, [g.ne[0], heads, tokens, sequences], "heads, tokens, sequences of v")?;
        expect_shape(op, "beta", beta, [1, heads, tokens, sequences], "one for each head and token of v")?;
        expect_shape(op, "ids", ids, [sequences, 1, 1, 1], "the sequences of v")?;

        snapshots::results(op, v, [size, size, heads, sequences], self.snapshots, tokens)
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let [state, q, k, v, g, beta, ids] = inputs else { unreachable!("the arity was checked") };
        let [size, heads, tokens, sequences] = v.ne();
        let (rows, key_heads) = (state.ne()[3], q.ne()[1]);
        let (y, snapshots) = results.split_first_mut().expect("y comes first");
        for sequence in 0..sequences {
            let start = snapshots::start_row(self.name(), ids, sequence, rows)?;
            for head in 0..heads {
                let key_head = self.grouping.key_head(head, key_heads, heads);
                for j in 0..size {
                    let mut memory: Vec<f64> = (0..size)
                        .map(|i| start.map_or(0.0, |row| state.get([i, j, head, row])))
                        .collect();
                    let mut store = |tokens_back: usize, memory: &[f64]| {
                        if let Some(snapshot) = snapshots.get_mut(tokens_back) {
                            for (i, &value) in memory.iter().enumerate() {
                                snapshot.set([i, j, head, sequence], value);
                            }
                        }
                    };
                    if tokens == 0 {
                        store(0, &memory);
                    }
                    for token in 0..tokens {
                        let at = [head, token, sequence];
                        let key = |i: usize| k.get([i, key_head, token, sequence]);
                        let query = |i: usize| q.get([i, key_head, token, sequence]);
                        for (i, value) in memory.iter_mut().enumerate() {
                            let gate = if g.ne()[0] == 1 { 0 } else { i };
                            *value *= g.get([gate, at[0], at[1], at[2]]).exp();
                        }
                        let strength = beta.get([0, at[0], at[1], at[2]]);
                        if strength != 0.0 {
                            let predicted: f64 = memory.iter().enumerate().map(|(i, m)| m * key(i)).sum();
                            let delta = (v.get([j, at[0], at[1], at[2]]) - predicted) * strength;
                            memory.iter_mut().enumerate().for_each(|(i, value)| *value += key(i) * delta);
                        }
                        let sum: f64 = memory.iter().enumerate().map(|(i, value)| value * query(i)).sum();
                        y.set([j, at[0], at[1], at[2]], sum / (size as f64).sqrt());
                        store(tokens - 1 - token, &memory);
                    }
                }
            }
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        let mut add = |name: &str, spec: Spec| cases.push(spec.case(name));
        for size in [1, 2, 4, 8, 15, 16, 17, 24, 32, 33, 48, 64, 80, 96, 100] {
            add(&format!("size_{size}"), Spec::new(size, 1, 2, 3, 2));
        }
        for size in [128, 130, 160, 192, 256, 260, 300] {
            add(&format!("size_{size}"), Spec::new(size, 1, 1, 2, 1));
        }
        for size in [16, 33, 64, 96, 128, 192, 256, 260] {
            let spec = Spec { vector_gate: true, ..Spec::new(size, 1, 1, 2, 1) };
            add(&format!("vector_gate_{size}"), spec);
        }
        for grouping in [Grouping::Tiled, Grouping::Interleaved] {
            let name = grouping.name();
            add(name, Spec { grouping, ..Spec::new(16, 2, 4, 3, 2) });
            add(&format!("{name}_6_by_3"), Spec { grouping, ..Spec::new(8, 3, 6, 2, 1) });
        }
        for tokens in [1, 15, 17, 33, 65] {
            add(&format!("tokens_{tokens}"), Spec::new(4, 1, 2, tokens, 2));
        }
        add("one_token_128", Spec::new(128, 1, 2, 1, 2));
        add("long", Spec::new(16, 1, 1, 300, 1));
        for tokens in [1, 2, 4, 5] {
            let spec = Spec { snapshots: 3, ..Spec::new(8, 2, 4, tokens, 2) };
            add(&format!("snapshots_3_tokens_{tokens}"), spec);
        }
        add("snapshots_all_of_20", Spec { snapshots: 20, ..Spec::new(16, 1, 2, 20, 1) });
        add("snapshots_10_size_260", Spec { snapshots: 10, ..Spec::new(260, 1, 1, 11, 1) });
        add("shared_start", Spec { ids: Some(vec![2, 2, 0]), ..Spec::new(16, 1, 2, 3, 3) });
        add("start_from_zero", Spec { ids: Some(vec![-1, 1]), ..Spec::new(16, 1, 2, 3, 2) });
        add("empty_pool", Spec { ids: Some(vec![-1, -1]), slots: 0, ..Spec::new(16, 1, 2, 3, 2) });
        add("empty_pool_260", Spec { ids: Some(vec![-1]), slots: 0, ..Spec::new(260, 1, 1, 2, 1) });
        add("pads", Spec { pads: 2, ..Spec::new(20, 1, 2, 4, 2) });
        add("pads_vector_gate", Spec { pads: 2, vector_gate: true, ..Spec::new(16, 1, 2, 4, 2) });
        add("pads_size_260", Spec { pads: 1, ..Spec::new(260, 1, 1, 2, 1) });
        add("views_of_one_tensor", Spec { packed_together: true, ..Spec::new(16, 2, 4, 5, 2) });
        add("many_heads", Spec::new(5, 1, 40, 2, 3));
        add("no_tokens", Spec::new(16, 1, 2, 0, 2));
        add("no_tokens_size_260", Spec::new(260, 1, 1, 0, 1));
        add("no_sequences", Spec::new(16, 1, 2, 3, 0));
        add("no_heads", Spec::new(16, 1, 0, 3, 2));
        add("no_size", Spec::new(0, 1, 2, 3, 2));
        for &arrangement in Arrangement::ALL {
            let name = arrangement.name();
            add(name, Spec { arrangement, snapshots: 2, ..Spec::new(16, 2, 4, 3, 2) });
            let spec = Spec { arrangement, vector_gate: true, ..Spec::new(19, 1, 2, 3, 2) };
            add(&format!("vector_gate_{name}"), spec);
        }
        add("transposed_260", Spec { arrangement: Arrangement::Transposed, ..Spec::new(260, 1, 1, 2, 1) });
        cases
    }
}

/// The sizes of one case.
struct Spec {
    size: usize,
    key_heads: usize,
    heads: usize,
    tokens: usize,
    sequences: usize,
    grouping: Grouping,
    vector_gate: bool,
    snapshots: usize,
    ids: Option<Vec<i32>>,
    /// Tokens at the end with g = 0 and beta = 0, and NaN for k and v.
    pads: usize,
    slots: usize,
    /// q, k and v are parts of the rows of one tensor, as a convolution leaves them.
    packed_together: bool,
    arrangement: Arrangement,
}

impl Spec {
    fn new(size: usize, key_heads: usize, heads: usize, tokens: usize, sequences: usize) -> Spec {
        Spec {
            size,
            key_heads,
            heads,
            tokens,
            sequences,
            grouping: Grouping::Tiled,
            vector_gate: false,
            snapshots: 1,
            ids: None,
            pads: 0,
            slots: sequences + 1,
            packed_together: false,
            arrangement: Arrangement::Contiguous,
        }
    }

    fn case(self, name: &str) -> Case {
        let mut values = Values::new(name.bytes().map(u64::from).sum());
        let Spec { size, key_heads, heads, tokens, sequences, arrangement, .. } = self;
        let real = tokens - self.pads;
        let mut tensor = |ne: &[usize], low: f64, high: f64| {
            let layout = match self.packed_together && ne[1] != size {
                true => self.part(ne),
                false => arrangement.layout(DType::F32, ne),
            };
            fill(layout, |_| values.uniform(low, high))
        };
        let state = tensor(&[size, size, heads, self.slots], -1.0, 1.0);
        // Rows of about unit length.
        let unit = 1.7 / (size.max(1) as f64).sqrt();
        let q = tensor(&[size, key_heads, tokens, sequences], -unit, unit);
        let k = tensor(&[size, key_heads, tokens, sequences], -unit, unit);
        let v = tensor(&[size, heads, tokens, sequences], -1.0, 1.0);
        let g = tensor(&[if self.vector_gate { size } else { 1 }, heads, tokens, sequences], -2.0, -0.01);
        let beta = tensor(&[1, heads, tokens, sequences], 0.05, 0.95);
        let padded = |x: HostTensor, pad: f64| match self.pads {
            0 => x,
            _ => fill(*x.layout(), |index| if index[2] < real { x.get(index) } else { pad }),
        };
        let (k, v) = (padded(k, f64::NAN), padded(v, f64::NAN));
        let (g, beta) = (padded(g, 0.0), padded(beta, 0.0));
        // A permutation by default, so that a kernel that ignores ids fails.
        let ids = self.ids.unwrap_or_else(|| (0..sequences as i32).rev().collect());
        let ids = HostTensor::from_i32(&[sequences], &ids).expect("one id per sequence");
        let op = GatedDeltaNet { grouping: self.grouping, snapshots: self.snapshots };
        Case::new(name, op, vec![state, q, k, v, g, beta, ids], Tolerance { rtol: 1e-5, atol: 1e-5 })
    }

    /// Rows as long as those of q, k and v together.
    fn part(&self, ne: &[usize]) -> Layout {
        let packed = Layout::contiguous(DType::F32, ne).expect("a case's shape fits");
        let mut nb = packed.nb;
        nb[2] = self.size * (2 * self.key_heads + self.heads) * size_of::<f32>();
        nb[3] = nb[2] * self.tokens;
        Layout::strided(DType::F32, packed.ne, nb).expect("a case's strides fit")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    fn f32s(ne: &[usize], values: &[f32]) -> HostTensor {
        HostTensor::from_f32(ne, values).unwrap()
    }

    fn ids(ids: &[i32]) -> HostTensor {
        HostTensor::from_i32(&[ids.len()], ids).unwrap()
    }

    fn numbers(results: &[HostTensor]) -> Vec<Vec<f64>> {
        results.iter().map(HostTensor::to_f64).collect()
    }

    fn tiled(snapshots: usize) -> Op {
        GatedDeltaNet { grouping: Grouping::Tiled, snapshots }.into()
    }

    #[test]
    fn a_state_halves_and_takes_up_its_error() {
        // One element: 8 halves to 4; k = 2 predicts 8 of v = 9; half of the error 1 is δ = 0.5; 4 + 2·0.5 = 5.
        let one = |value: f32| f32s(&[1, 1, 1, 1], &[value]);
        let inputs = [one(8.0), one(3.0), one(2.0), one(9.0), one(-std::f32::consts::LN_2), one(0.5), ids(&[0])];
        let results = numbers(&tiled(1).evaluate(&inputs).unwrap());
        assert!((results[0][0] - 15.0).abs() < 1e-5 && (results[1][0] - 5.0).abs() < 1e-5, "{results:?}");
    }

    #[test]
    fn value_heads_find_their_key_heads() {
        let heads = |grouping: Grouping| (0..6).map(move |head| grouping.key_head(head, 2, 6));
        assert!(heads(Grouping::Tiled).eq([0, 1, 0, 1, 0, 1]));
        assert!(heads(Grouping::Interleaved).eq([0, 0, 0, 1, 1, 1]));
    }

    #[test]
    fn the_memory_is_transposed() {
        // From zero, k = e0 and v = (0, 1) write row j = 1 at key index i = 0.
        let two = |values: [f32; 2]| f32s(&[2, 1, 1, 1], &values);
        let one = |value: f32| f32s(&[1, 1, 1, 1], &[value]);
        let state = f32s(&[2, 2, 1, 0], &[]);
        let (q, k, v) = (two([1.0, 0.0]), two([1.0, 0.0]), two([0.0, 1.0]));
        let results = tiled(4).evaluate(&[state, q, k, v, one(0.0), one(1.0), ids(&[-1])]).unwrap();
        let results = numbers(&results);
        assert_eq!(results.len(), 2);
        assert_eq!(results[1], [0.0, 0.0, 1.0, 0.0]);
        assert_eq!(results[0], [0.0, f64::from(0.5f64.sqrt() as f32)]);
    }

    #[test]
    fn no_tokens_copy_the_state() {
        let empty = |ne: &[usize]| f32s(ne, &[]);
        let inputs = [
            f32s(&[1, 1, 1, 2], &[3.0, 4.0]),
            empty(&[1, 1, 0, 1]),
            empty(&[1, 1, 0, 1]),
            empty(&[1, 1, 0, 1]),
            empty(&[1, 1, 0, 1]),
            empty(&[1, 1, 0, 1]),
            ids(&[1]),
        ];
        assert_eq!(numbers(&tiled(3).evaluate(&inputs).unwrap()), [vec![], vec![4.0]]);
    }

    #[test]
    fn refusals_name_operand_and_axis() {
        let refusal = |snapshots: usize, change: &dyn Fn(&mut [[usize; 4]; 6])| {
            let mut shapes =
                [[8, 8, 4, 2], [8, 2, 3, 2], [8, 2, 3, 2], [8, 4, 3, 2], [1, 4, 3, 2], [1, 4, 3, 2]];
            change(&mut shapes);
            let mut layouts: Vec<Layout> =
                shapes.iter().map(|ne| Layout::contiguous(DType::F32, ne).unwrap()).collect();
            layouts.push(Layout::contiguous(DType::I32, &[2]).unwrap());
            tiled(snapshots).infer(&layouts).unwrap_err().to_string()
        };
        let texts = [
            (refusal(0, &|_| {}), "snapshots = 0, expected at least 1 (the final state)"),
            (refusal(65_536, &|_| {}), "snapshots = 65536, expected at most 65535"),
            (
                refusal(1, &|shapes| shapes[0][1] = 7),
                "state has ne[1] = 7, expected 8 (the state of a head is square)",
            ),
            (
                refusal(1, &|shapes| (shapes[1][1], shapes[2][1]) = (3, 3)),
                "q has ne[1] = 3, which does not divide 4 heads of v",
            ),
            (refusal(1, &|shapes| shapes[2][1] = 4), "k has ne[1] = 4, expected 2 (the shape of q)"),
            (
                refusal(1, &|shapes| shapes[4][0] = 3),
                "g has ne[0] = 3, expected 8 (the size of the state, or 1 for one decay per head)",
            ),
            (
                refusal(1, &|shapes| shapes[5][1] = 8),
                "beta has ne[1] = 8, expected 4 (one for each head and token of v)",
            ),
        ];
        for (got, want) in texts {
            assert_eq!(got, format!("gated_delta_net: {want}"));
        }
    }

    #[test]
    fn ids_outside_the_pool_are_refused() {
        let one = || f32s(&[1, 1, 1, 1], &[0.0]);
        for id in [1, -2, i32::MIN] {
            let inputs = [one(), one(), one(), one(), one(), one(), ids(&[id])];
            let error = tiled(1).evaluate(&inputs).unwrap_err();
            let want = format!("gated_delta_net: ids[0, 0, 0] = {id}, expected −1 or a row below 1");
            assert_eq!(error.to_string(), want);
        }
    }
}
