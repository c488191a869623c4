//! Softmax attention of new tokens over caches of keys and values, one cache per sequence, of different lengths.
//!
//! For query head h, token t and sequence b, with g = h div (H / G), r = slots[b] and n = past[b] + t:
//! ```text
//! s[j] = scale · Σ_d q[d, h, t, b] · k_cache[d, g, j, r]        for positions j = 0 … n
//! y[e, h, t, b] = Σ_j exp(s[j]) · v_cache[e, g, j, r] / Σ_j exp(s[j])
//! ```
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | q | D, H, T, B | f32 | queries of T new tokens |
//! | k_cache | D, G, L, R | f32, f16 | keys of R caches of L positions; G divides H |
//! | v_cache | E, G, L, R | type of k_cache | values |
//! | slots | B | i32 | the cache of each sequence |
//! | past | B | i32 | positions filled before these tokens, past + T ≤ L |
//!
//! Result: y {E, H, T, B}, f32, packed. The keys and values of the new tokens stand in the caches already, at
//! positions past … past + T − 1; a token sees those up to its own, so the mask is causal. Positions behind it
//! are not read, whatever they hold. Several sequences may share a cache. A NaN or +∞ among a token's scores, or
//! −∞ in all of them, makes its result NaN.
//!
//! Refused: T above L; a slot that is no cache (−1 too: there is nothing to attend to); past below 0, or without
//! room for T.
//! Source: Vaswani et al. 2017 (arXiv 1706.03762) equation 1; heads share keys as in Ainslie et al. 2023 (arXiv
//! 2305.13245).

use crate::case::{Arrangement, Values, fill};
use crate::shape::{checked_below, expect_dtype, expect_ne, expect_same_dtype, expect_shape, packed};
use crate::tensor::rows;
use crate::{Case, DType, Define, HostTensor, Layout, Layouts, OpError, Operand, Storage, Tolerance};
use crate::{View, ViewMut, Views};
use smallvec::smallvec;

/// Softmax attention over caches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Factor of the scores, most often 1/√D.
    pub scale: f32,
}

const OPERANDS: &[Operand] = &[
    Operand::new("q", "D, H, T, B", "f32", "queries of T new tokens"),
    Operand::new("k_cache", "D, G, L, R", "f32, f16", "keys of R caches of L positions; G divides H"),
    Operand::new("v_cache", "E, G, L, R", "type of k_cache", "values"),
    Operand::new("slots", "B", "i32", "the cache of each sequence"),
    Operand::new("past", "B", "i32", "positions filled before these tokens, past + T ≤ L"),
];

/// Why a slot is refused.
pub const SLOT_RULE: &str = "the caches of k_cache";
/// Why a past is refused.
pub const PAST_RULE: &str = "the new tokens of q must fit the positions of k_cache";

/// The cache of a sequence and how many positions it held before, from `slot` and `past` as they stand in the
/// operands of these layouts.
///
/// Errors: a slot or a past outside its range.
pub fn checked_cache(
    q: &Layout,
    k_cache: &Layout,
    sequence: usize,
    slot: i64,
    past: i64,
) -> Result<[usize; 2], OpError> {
    let at = [sequence, 0, 0];
    let [_, _, positions, caches] = k_cache.ne;
    let room = (positions + 1).saturating_sub(q.ne[2]);
    Ok([
        checked_below("attention", "slots", at, slot, caches, SLOT_RULE)?,
        checked_below("attention", "past", at, past, room, PAST_RULE)?,
    ])
}

impl Define for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn operands(&self) -> &'static [Operand] {
        OPERANDS
    }

    fn result_name(&self, _index: usize) -> String {
        "y".into()
    }

    fn attributes(&self) -> String {
        format!("scale={}", self.scale)
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        let op = self.name();
        let [q, k, v, slots, past] = inputs else { unreachable!("the arity was checked") };
        expect_dtype(op, "q", q, &[DType::F32])?;
        expect_dtype(op, "k_cache", k, &[DType::F32, DType::F16])?;
        expect_same_dtype(op, "v_cache", v, k, "k_cache")?;
        expect_dtype(op, "slots", slots, &[DType::I32])?;
        expect_dtype(op, "past", past, &[DType::I32])?;
        let [_, heads, tokens, sequences] = q.ne;
        expect_ne(op, "k_cache", k, 0, q.ne[0], "the row length of q")?;
        let [_, groups, positions, caches] = k.ne;
        if heads != 0 && (groups == 0 || heads % groups != 0) {
            let what = format!("k_cache has ne[1] = {groups}, which does not divide {heads} (ne[1] of q)");
            return Err(OpError::new(op, what));
        }
        if positions < tokens {
            let what = format!("k_cache has ne[2] = {positions}, expected at least {tokens} (the tokens of q)");
            return Err(OpError::new(op, what));
        }
        let want = [v.ne[0], groups, positions, caches];
        expect_shape(op, "v_cache", v, want, "groups, positions and caches of k_cache")?;
        expect_shape(op, "slots", slots, [sequences, 1, 1, 1], "the sequences of q")?;
        expect_shape(op, "past", past, [sequences, 1, 1, 1], "the sequences of q")?;
        Ok(smallvec![packed(op, "y", DType::F32, &[v.ne[0], heads, tokens, sequences])?])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let [q, k, v, slots, past] = inputs else { unreachable!("the arity was checked") };
        let y = &mut results[0];
        for [head, token, sequence] in rows(y.ne()) {
            let at = [sequence, 0, 0, 0];
            let (slot, past) = (slots.get_int(at), past.get_int(at));
            let [cache, past] = checked_cache(q.layout(), k.layout(), sequence, slot, past)?;
            let group = head / (q.ne()[1] / k.ne()[1]);
            let scores: Vec<f64> = (0..=past + token)
                .map(|j| f64::from(self.scale) * dot(q, [head, token, sequence], k, [group, j, cache]))
                .collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let shares: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let total: f64 = shares.iter().sum();
            for e in 0..v.ne()[0] {
                let weighed = shares.iter().enumerate().map(|(j, share)| share * v.get([e, group, j, cache]));
                y.set([e, head, token, sequence], weighed.sum::<f64>() / total);
            }
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        let mut add = |name: &str, spec: Spec| cases.push(spec.case(name));
        let plain = Spec::new(16, 16, [4, 2], [3, 2], 40);
        for dtype in [DType::F32, DType::F16] {
            for &arrangement in Arrangement::ALL {
                add(&format!("{dtype}_{}", arrangement.name()), Spec { dtype, arrangement, ..plain.clone() });
            }
            // Lengths on both sides of blocks of 32, 64, 128 and 256 positions.
            for past in [0, 1, 30, 31, 32, 62, 63, 64, 126, 127, 128, 129, 255, 256, 300] {
                let spec = Spec::new(8, 5, [2, 1], [2, 1], past + 2).past(&[past]);
                add(&format!("{dtype}_past_{past}"), Spec { dtype, ..spec });
            }
        }
        add("one_token", Spec::new(64, 64, [8, 2], [1, 3], 70).past(&[69, 0, 33]));
        add("one_token_of_long", Spec::new(16, 16, [2, 1], [1, 2], 1100).past(&[1099, 500]));
        add("prompt", Spec::new(32, 32, [4, 4], [70, 1], 70).past(&[0]));
        add("prompt_after_prompt", Spec::new(24, 40, [6, 2], [37, 2], 120).past(&[80, 5]));
        add("rows_of_256", Spec::new(256, 256, [2, 1], [2, 1], 9).past(&[6]));
        add("rows_of_300_and_130", Spec::new(300, 130, [2, 2], [2, 1], 5).past(&[2]));
        add("rows_of_1", Spec::new(1, 1, [3, 1], [2, 2], 66).past(&[63, 64]));
        add("many_heads", Spec::new(6, 7, [66, 22], [2, 1], 10).past(&[7]));
        add("many_sequences", Spec::new(4, 4, [2, 1], [1, 70], 6));
        add("shared_cache", Spec { slots: Some(vec![1, 1, 0]), ..Spec::new(8, 8, [2, 1], [1, 3], 12).past(&[3, 7, 0]) });
        add("full_cache", Spec::new(8, 8, [2, 2], [5, 1], 5).past(&[0]));
        add("large_scores", Spec { scale: 40.0, ..Spec::new(16, 8, [2, 1], [3, 1], 140).past(&[130]) });
        add("no_queries", Spec::new(8, 8, [2, 1], [0, 2], 5));
        add("no_sequences", Spec::new(8, 8, [2, 1], [2, 0], 5));
        add("no_heads", Spec::new(8, 8, [0, 1], [2, 1], 5).past(&[0]));
        add("no_values", Spec::new(8, 0, [2, 1], [2, 1], 5).past(&[0]));
        add("rows_of_nothing", Spec::new(0, 3, [2, 1], [2, 1], 5).past(&[2]));
        cases.push(special_scores());
        cases
    }
}

fn dot(q: &View<'_>, [q1, q2, q3]: [usize; 3], k: &View<'_>, [k1, k2, k3]: [usize; 3]) -> f64 {
    (0..q.ne()[0]).map(|d| q.get([d, q1, q2, q3]) * k.get([d, k1, k2, k3])).sum()
}

/// Rows of one element, so that a key is a score: infinities and NaN, beside ordinary ones and far from them.
fn special_scores() -> Case {
    const POSITIONS: usize = 150;
    let (infinity, nan) = (f64::INFINITY, f64::NAN);
    let special: [&[(usize, f64)]; 5] =
        [&[(3, -infinity)], &[(130, nan)], &[(70, infinity)], &[(0, nan)], &[(149, infinity)]];
    let layout = Layout::contiguous(DType::F32, &[1, 1, POSITIONS, 7]).expect("a small shape");
    let k = fill(layout, |[_, _, j, cache]| match cache {
        5 => -infinity,
        6 if j < 140 => -infinity,
        _ => {
            let set = special.get(cache).and_then(|set| set.iter().find(|(at, _)| *at == j));
            set.map_or(j as f64 / 100.0, |&(_, value)| value)
        }
    });
    let q = HostTensor::from_f32(&[1, 1, 1, 7], &[1.0; 7]).expect("seven queries");
    let v = fill(layout, |[_, _, j, _]| j as f64 / 50.0 - 1.0);
    let slots = HostTensor::from_i32(&[7], &[0, 1, 2, 3, 4, 5, 6]).expect("seven slots");
    let past = HostTensor::from_i32(&[7], &[POSITIONS as i32 - 1; 7]).expect("seven lengths");
    Case::new("special_scores", Attention { scale: 1.0 }, vec![q, k, v, slots, past], Tolerance::F32_SUM)
}

/// The sizes of one case.
#[derive(Clone)]
struct Spec {
    row: usize,
    value_row: usize,
    heads: usize,
    groups: usize,
    tokens: usize,
    sequences: usize,
    positions: usize,
    past: Option<Vec<usize>>,
    slots: Option<Vec<i32>>,
    scale: f32,
    dtype: DType,
    arrangement: Arrangement,
}

impl Spec {
    fn new(
        row: usize,
        value_row: usize,
        [heads, groups]: [usize; 2],
        [tokens, sequences]: [usize; 2],
        positions: usize,
    ) -> Spec {
        Spec {
            row,
            value_row,
            heads,
            groups,
            tokens,
            sequences,
            positions,
            past: None,
            slots: None,
            scale: 0.3,
            dtype: DType::F32,
            arrangement: Arrangement::Contiguous,
        }
    }

    fn past(self, past: &[usize]) -> Spec {
        Spec { past: Some(past.to_vec()), ..self }
    }

    fn case(self, name: &str) -> Case {
        let mut values = Values::new(name.bytes().map(u64::from).sum());
        let Spec { tokens, sequences, positions, arrangement, dtype, .. } = self;
        let caches = sequences + 1;
        let room = positions - tokens + 1;
        let past = self.past.unwrap_or_else(|| (0..sequences).map(|b| (b * 7 + 5) % room).collect());
        let slots = self.slots.unwrap_or_else(|| (0..sequences as i32).rev().collect());
        let q = values.arranged(arrangement, DType::F32, &[self.row, self.heads, tokens, sequences], -1.0, 1.0);
        let lengths: Vec<usize> = (0..caches)
            .map(|cache| {
                let mine = slots.iter().zip(&past).filter(|(slot, _)| **slot == cache as i32);
                mine.map(|(_, past)| past + tokens).max().unwrap_or(0)
            })
            .collect();
        // What stands behind a sequence's last token must not be seen.
        let mut cache = |row: usize| {
            let layout = arrangement.layout(dtype, &[row, self.groups, positions, caches]);
            fill(layout, |[_, _, j, cache]| if j < lengths[cache] { values.uniform(-1.0, 1.0) } else { f64::NAN })
        };
        let (k, v) = (cache(self.row), cache(self.value_row));
        let past: Vec<i32> = past.iter().map(|&past| past as i32).collect();
        let ints = |numbers: &[i32]| {
            let list = arrangement.layout(DType::I32, &[sequences]);
            fill(list, |[b, ..]| f64::from(numbers[b]))
        };
        let inputs = vec![q, k, v, ints(&slots), ints(&past)];
        Case::new(name, Attention { scale: self.scale }, inputs, Tolerance::F32_SUM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    fn f32s(ne: &[usize], values: &[f32]) -> HostTensor {
        HostTensor::from_f32(ne, values).unwrap()
    }

    fn one(value: i32) -> HostTensor {
        HostTensor::from_i32(&[1], &[value]).unwrap()
    }

    #[test]
    fn a_token_sees_itself_and_those_before() {
        // Keys of zero: every position weighs the same, and y is the mean of what a token sees.
        let q = f32s(&[1, 1, 2], &[1.0, 1.0]);
        let k = f32s(&[1, 1, 4], &[0.0; 4]);
        let v = f32s(&[1, 1, 4], &[1.0, 3.0, 8.0, 100.0]);
        let y = Op::from(Attention { scale: 1.0 }).evaluate(&[q, k, v, one(0), one(1)]).unwrap();
        assert_eq!(y[0].to_f64(), [2.0, 4.0]);
    }

    #[test]
    fn neighbouring_heads_share_keys() {
        // Two groups of two heads: values 1 and 2.
        let q = f32s(&[1, 4, 1], &[0.0; 4]);
        let k = f32s(&[1, 2, 1], &[0.0; 2]);
        let v = f32s(&[1, 2, 1], &[1.0, 2.0]);
        let y = Op::from(Attention { scale: 1.0 }).evaluate(&[q, k, v, one(0), one(0)]).unwrap();
        assert_eq!(y[0].to_f64(), [1.0, 1.0, 2.0, 2.0]);
    }

    #[test]
    fn lengths_and_slots_are_checked() {
        let refused = |slot: i32, past: i32| {
            let q = f32s(&[1, 1, 2], &[0.0; 2]);
            let k = f32s(&[1, 1, 4], &[0.0; 4]);
            let v = k.clone();
            let op = Op::from(Attention { scale: 1.0 });
            op.evaluate(&[q, k, v, one(slot), one(past)]).unwrap_err().to_string()
        };
        assert_eq!(
            refused(-1, 0),
            "attention: slots[0, 0, 0] = -1, expected at least 0 and below 1 (the caches of k_cache)"
        );
        assert_eq!(
            refused(0, 3),
            "attention: past[0, 0, 0] = 3, expected at least 0 and below 3 \
             (the new tokens of q must fit the positions of k_cache)"
        );
        assert!(refused(0, -1).starts_with("attention: past[0, 0, 0] = -1,"));
    }

    #[test]
    fn refusals_name_the_operand() {
        let layout = |dtype, ne: &[usize]| Layout::contiguous(dtype, ne).unwrap();
        let refused = |k: Layout, v: Layout| {
            let (q, ids) = (layout(DType::F32, &[8, 6, 3, 2]), layout(DType::I32, &[2]));
            Op::from(Attention { scale: 1.0 }).infer(&[q, k, v, ids, ids]).unwrap_err().to_string()
        };
        let f16 = |ne: &[usize]| layout(DType::F16, ne);
        assert_eq!(
            refused(f16(&[8, 4, 9, 3]), f16(&[8, 4, 9, 3])),
            "attention: k_cache has ne[1] = 4, which does not divide 6 (ne[1] of q)"
        );
        assert_eq!(
            refused(f16(&[8, 2, 2, 3]), f16(&[8, 2, 2, 3])),
            "attention: k_cache has ne[2] = 2, expected at least 3 (the tokens of q)"
        );
        assert_eq!(
            refused(f16(&[8, 2, 9, 3]), f16(&[8, 2, 8, 3])),
            "attention: v_cache has ne[2] = 8, expected 9 (groups, positions and caches of k_cache)"
        );
        assert_eq!(
            refused(f16(&[8, 2, 9, 3]), layout(DType::F32, &[8, 2, 9, 3])),
            "attention: v_cache has type f32, expected f16 (the type of k_cache)"
        );
    }
}
