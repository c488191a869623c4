//! The selective scan of Mamba-1 and Mamba-2: one linear recurrence per state element.
//!
//! For each sequence b, head h, token t, row p of the head and state element n, with g = h div (H / G):
//! ```text
//! dt'        = softplus(dt[h, t, b])
//! s[n, p, h] = s[n, p, h] · exp(dt' · A[n, h]) + B[n, g, t, b] · x[p, h, t, b] · dt'
//! y[p, h, t, b] = Σ_n s[n, p, h] · C[n, g, t, b]
//! ```
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | s | N, P, H, R | f32 | pool of R states |
//! | x | P, H, T, B | f32 | input of each head's rows |
//! | dt | H, T, B | f32 | time step before softplus, bias included; −∞ makes the step the identity |
//! | A | N, H (Mamba-1, P = 1) or 1, H (Mamba-2) | f32 | −exp(A_log), below 0 |
//! | B | N, G, T, B | f32 | input projection, G divides H |
//! | C | N, G, T, B | f32 | output projection |
//! | ids | B | i32 | the row of s that each sequence starts from; −1 starts from zero |
//!
//! Results: y {P, H, T, B}; `state` {N, P, H, B} after the last token (a copy of the start when T = 0);
//! with K > 1 also `state_k`, the state k tokens before the last, for k < min(K, T). K is at most 65535.
//! There is no D term and no z gate. x, B and C may be views of one tensor.
//! Source: Gu & Dao 2023 (arXiv 2312.00752) algorithm 2; Dao & Gu 2024 (arXiv 2405.21060) section 6; group
//! mapping and layout as ggml's SSM_SCAN.

use crate::case::{Arrangement, Values, fill};
use crate::shape::{expect_dtype, expect_ne, expect_shape};
use crate::{Case, DType, Define, HostTensor, Layout, Layouts, OpError, Operand, Storage};
use crate::{Tolerance, ViewMut, Views, math, snapshots};

/// The selective scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SsmScan {
    /// How many of the last states are results: K ≥ 1.
    pub snapshots: usize,
}

const OPERANDS: &[Operand] = &[
    Operand::new("s", "N, P, H, R", "f32", "pool of R states"),
    Operand::new("x", "P, H, T, B", "f32", "input of each head's rows"),
    Operand::new("dt", "H, T, B", "f32", "time step before softplus; −∞ makes the step the identity"),
    Operand::new("A", "N or 1, H", "f32", "−exp(A_log), below 0"),
    Operand::new("B", "N, G, T, B", "f32", "input projection"),
    Operand::new("C", "N, G, T, B", "f32", "output projection"),
    Operand::new("ids", "B", "i32", "row of s each sequence starts from; −1 starts from zero"),
];

impl Define for SsmScan {
    fn name(&self) -> &'static str {
        "ssm_scan"
    }

    fn operands(&self) -> &'static [Operand] {
        OPERANDS
    }

    fn result_name(&self, index: usize) -> String {
        snapshots::result_name(index)
    }

    fn attributes(&self) -> String {
        if self.snapshots == 1 { String::new() } else { format!("snapshots={}", self.snapshots) }
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        let op = self.name();
        let [s, x, dt, a, b, c, ids] = inputs else { unreachable!("the arity was checked") };
        snapshots::check(op, self.snapshots)?;
        for (operand, layout) in OPERANDS[..6].iter().zip(inputs) {
            expect_dtype(op, operand.name, layout, &[DType::F32])?;
        }
        expect_dtype(op, "ids", ids, &[DType::I32])?;
        let [states, head_dim, heads, _] = s.ne;
        let [_, _, tokens, sequences] = x.ne;
        expect_shape(op, "x", x, [head_dim, heads, tokens, sequences], "the rows and heads of s")?;
        expect_shape(op, "dt", dt, [heads, tokens, sequences, 1], "heads of s, tokens and sequences of x")?;
        if a.ne[0] != 1 {
            expect_ne(op, "A", a, 0, states, "d_state of s, or 1 for one decay per head")?;
            expect_ne(op, "s", s, 1, 1, "head_dim is 1 where A has one decay per state, as in Mamba-1")?;
        }
        expect_shape(op, "A", a, [a.ne[0], heads, 1, 1], "the heads of s")?;
        let groups = b.ne[1];
        expect_shape(op, "B", b, [states, groups, tokens, sequences], "d_state of s, tokens, sequences of x")?;
        expect_shape(op, "C", c, [states, groups, tokens, sequences], "the shape of B")?;
        if heads != 0 && (groups == 0 || heads % groups != 0) {
            return Err(OpError::new(op, format!("B has ne[1] = {groups}, which does not divide {heads} heads")));
        }
        expect_shape(op, "ids", ids, [sequences, 1, 1, 1], "the sequences of x")?;

        snapshots::results(op, x, [states, head_dim, heads, sequences], self.snapshots, tokens)
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let [s, x, dt, a, b, c, ids] = inputs else { unreachable!("the arity was checked") };
        let [states, head_dim, heads, _] = s.ne();
        let [_, _, tokens, sequences] = x.ne();
        let heads_per_group = heads / b.ne()[1].max(1);
        let (y, snapshots) = results.split_first_mut().expect("y comes first");
        for sequence in 0..sequences {
            let start = snapshots::start_row(self.name(), ids, sequence, s.ne()[3])?;
            for head in 0..heads {
                let group = head / heads_per_group.max(1);
                for row in 0..head_dim {
                    let mut state: Vec<f64> = (0..states)
                        .map(|n| start.map_or(0.0, |slot| s.get([n, row, head, slot])))
                        .collect();
                    let mut store = |tokens_back: usize, state: &[f64]| {
                        if let Some(snapshot) = snapshots.get_mut(tokens_back) {
                            for (n, &value) in state.iter().enumerate() {
                                snapshot.set([n, row, head, sequence], value);
                            }
                        }
                    };
                    if tokens == 0 {
                        store(0, &state);
                    }
                    for token in 0..tokens {
                        let step = math::softplus(dt.get([head, token, sequence, 0]));
                        let mut sum = 0.0;
                        for (n, value) in state.iter_mut().enumerate() {
                            if step != 0.0 {
                                let decay = a.get([if a.ne()[0] == 1 { 0 } else { n }, head, 0, 0]);
                                *value = *value * (step * decay).exp()
                                    + b.get([n, group, token, sequence])
                                        * x.get([row, head, token, sequence])
                                        * step;
                            }
                            sum += *value * c.get([n, group, token, sequence]);
                        }
                        y.set([row, head, token, sequence], sum);
                        store(tokens - 1 - token, &state);
                    }
                }
            }
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        let mut add = |name: &str, spec: Spec| cases.push(spec.case(name));
        add("mamba1", Spec::mamba1(16, 6, 7, 2));
        add("mamba1_130_channels", Spec::mamba1(16, 130, 3, 1));
        add("mamba1_d_state_5", Spec::mamba1(5, 9, 4, 1));
        add("mamba1_one_token", Spec::mamba1(16, 33, 1, 3));
        add("mamba1_33_tokens", Spec::mamba1(16, 20, 33, 1));
        add("mamba2", Spec::mamba2(64, 8, 4, 2, 5, 2));
        add("mamba2_one_token", Spec::mamba2(128, 64, 2, 1, 1, 2));
        add("mamba2_groups_3", Spec::mamba2(8, 1, 6, 3, 2, 1));
        add("mamba2_head_dim_7", Spec::mamba2(64, 7, 2, 1, 3, 1));
        add("mamba2_head_dim_33", Spec::mamba2(16, 33, 1, 1, 3, 1));
        add("mamba2_d_state_24", Spec::mamba2(24, 5, 3, 1, 9, 2));
        add("snapshots_3_tokens_1", Spec { snapshots: 3, ..Spec::mamba2(4, 2, 2, 1, 1, 2) });
        add("snapshots_3_tokens_5", Spec { snapshots: 3, ..Spec::mamba2(4, 2, 2, 1, 5, 2) });
        add("mamba1_snapshots_2", Spec { snapshots: 2, ..Spec::mamba1(16, 6, 4, 2) });
        add("shared_start", Spec { ids: Some(vec![2, 2, 0]), ..Spec::mamba2(16, 4, 2, 1, 3, 3) });
        add("start_from_zero", Spec { ids: Some(vec![-1, 1]), ..Spec::mamba1(16, 8, 2, 2) });
        add("empty_pool", Spec { ids: Some(vec![-1, -1]), slots: 0, ..Spec::mamba1(16, 20, 3, 2) });
        add("empty_pool_mamba2", Spec { ids: Some(vec![-1]), slots: 0, ..Spec::mamba2(16, 8, 2, 1, 3, 1) });
        add("long", Spec::mamba1(4, 3, 300, 1));
        add("long_mamba2", Spec::mamba2(16, 2, 2, 1, 300, 1));
        add("mamba1_groups_2", Spec { groups: 2, ..Spec::mamba1(8, 44, 3, 2) });
        add("mamba2_head_dim_1", Spec::mamba2(128, 1, 5, 1, 3, 1));
        add("identity_steps_mamba1", Spec { pads: 2, ..Spec::mamba1(16, 20, 4, 2) });
        add("identity_steps", Spec { pads: 2, ..Spec::mamba2(16, 3, 2, 1, 4, 2) });
        add("no_tokens", Spec::mamba2(16, 4, 2, 1, 0, 2));
        add("no_sequences", Spec::mamba1(16, 4, 3, 0));
        add("no_heads", Spec::mamba2(16, 4, 0, 1, 3, 2));
        add("no_rows", Spec::mamba2(16, 0, 2, 1, 3, 2));
        add("no_states", Spec::mamba2(0, 4, 2, 1, 3, 2));
        // Sizes between and past those that kernels hold in registers, and enough rows to share B and C.
        for states in [24, 40, 100, 160] {
            add(&format!("mamba1_d_state_{states}"), Spec::mamba1(states, 5, 3, 2));
        }
        for states in [80, 100, 160, 176, 224, 256] {
            add(&format!("mamba2_d_state_{states}"), Spec::mamba2(states, 3, 2, 1, 3, 2));
        }
        add("mamba1_d_state_300", Spec { snapshots: 2, ..Spec::mamba1(300, 3, 3, 2) });
        add("mamba2_d_state_300", Spec { snapshots: 2, ..Spec::mamba2(300, 3, 2, 1, 3, 2) });
        add("mamba2_many_rows", Spec::mamba2(33, 5, 16, 2, 2, 64));
        add("mamba2_many_rows_128", Spec { snapshots: 2, ..Spec::mamba2(100, 2, 64, 1, 2, 32) });
        add("snapshots_20", Spec { snapshots: 20, ..Spec::mamba2(16, 3, 2, 1, 27, 2) });
        add("mamba1_snapshots_17", Spec { snapshots: 17, ..Spec::mamba1(16, 5, 17, 2) });
        add("snapshots_10_d_state_260", Spec { snapshots: 10, ..Spec::mamba2(260, 2, 2, 1, 12, 1) });
        for &arrangement in Arrangement::ALL {
            let name = arrangement.name();
            add(&format!("mamba1_{name}"), Spec { arrangement, ..Spec::mamba1(16, 18, 3, 2) });
            add(&format!("mamba2_{name}"), Spec { arrangement, ..Spec::mamba2(32, 4, 4, 2, 3, 2) });
        }
        cases
    }
}

/// The sizes of one case.
struct Spec {
    states: usize,
    head_dim: usize,
    heads: usize,
    groups: usize,
    tokens: usize,
    sequences: usize,
    decay_per_state: bool,
    snapshots: usize,
    ids: Option<Vec<i32>>,
    pads: usize,
    slots: usize,
    arrangement: Arrangement,
}

impl Spec {
    fn mamba1(states: usize, channels: usize, tokens: usize, sequences: usize) -> Spec {
        Spec { decay_per_state: true, ..Spec::mamba2(states, 1, channels, 1, tokens, sequences) }
    }

    fn mamba2(
        states: usize,
        head_dim: usize,
        heads: usize,
        groups: usize,
        tokens: usize,
        sequences: usize,
    ) -> Spec {
        Spec {
            states,
            head_dim,
            heads,
            groups,
            tokens,
            sequences,
            decay_per_state: false,
            snapshots: 1,
            ids: None,
            pads: 0,
            slots: sequences + 1,
            arrangement: Arrangement::Contiguous,
        }
    }

    fn case(self, name: &str) -> Case {
        let mut values = Values::new(name.bytes().map(u64::from).sum());
        let Spec { states, head_dim, heads, groups, tokens, sequences, arrangement, .. } = self;
        let mut tensor =
            |ne: &[usize], low: f64, high: f64| values.arranged(arrangement, DType::F32, ne, low, high);
        let s = tensor(&[states, head_dim, heads, self.slots], -1.0, 1.0);
        let x = tensor(&[head_dim, heads, tokens, sequences], -1.0, 1.0);
        let dt = tensor(&[heads, tokens, sequences], -4.0, 2.0);
        let dt = if self.pads == 0 { dt } else { padded(&dt, tokens - self.pads) };
        let a = tensor(&[if self.decay_per_state { states } else { 1 }, heads], -4.0, -0.1);
        let b = tensor(&[states, groups, tokens, sequences], -1.0, 1.0);
        let c = tensor(&[states, groups, tokens, sequences], -1.0, 1.0);
        // A permutation by default, so that a kernel that ignores ids fails.
        let ids = self.ids.unwrap_or_else(|| (0..sequences as i32).rev().collect());
        let ids = HostTensor::from_i32(&[sequences], &ids).expect("one id per sequence");
        let op = SsmScan { snapshots: self.snapshots };
        Case::new(name, op, vec![s, x, dt, a, b, c, ids], Tolerance { rtol: 1e-5, atol: 1e-5 })
    }
}

/// dt with −∞ from token `first` on: padding that must leave the state alone.
fn padded(dt: &HostTensor, first: usize) -> HostTensor {
    fill(*dt.layout(), |index| if index[1] < first { dt.get(index) } else { f64::NEG_INFINITY })
}
