//! The causal convolution in front of a scan with the window that it keeps from call to call.
//!
//! For each sequence b and channel c, with `in` the window that b starts from and then the T tokens of x:
//! ```text
//! y[c, t, b] = act( Σ_j in[t + j, c, b] · w[j, c]  + bias[c] )      j = 0 … k−1
//! window after n tokens = in[n … n + k−2]
//! ```
//! act is SiLU when `silu` is set and the identity otherwise; the bias is there when `bias` is set.
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | s | k−1, C, 1, R | f32 | pool of R windows: the last k−1 inputs of each channel, oldest first |
//! | x | C, T, B | f32 | the new inputs, token by token |
//! | w | k, C | f32 | taps, oldest input first |
//! | bias | C | f32 | added before the activation; an operand only when `bias` is set |
//! | ids | B | i32 | the row of s that each sequence starts from; −1 starts from zero |
//!
//! Results: y {C, T, B}; `state` {k−1, C, 1, B}, the window after the last token (a copy of the start when
//! T = 0); with K snapshots, K > 1, also `state_i`, the window i tokens before the last, for i < min(K, T).
//! K is at most 65535. Any width k ≥ 1 is legal; with k = 1 the windows have no elements. The taps are added
//! in the order of `ssm_conv`, so that on the CPU y is what that op gives for the joined inputs, to the bit.
//! Source: the step form of causal_conv1d of the Mamba programs (Gu & Dao 2023, arXiv 2312.00752, section
//! 3.4), for any number of tokens.

use crate::case::{Arrangement, Values, fill};
use crate::shape::{expect_dtype, expect_ne, expect_shape};
use crate::tensor::indices;
use crate::{Case, DType, Define, HostTensor, Layout, Layouts, OpError, Operand, Storage, Tolerance};
use crate::{ViewMut, Views, math, snapshots};

/// The causal convolution with its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SsmConvStep {
    /// Whether a bias is added to each channel.
    pub bias: bool,
    /// Whether SiLU is applied to the sum.
    pub silu: bool,
    /// How many of the last windows are results: K ≥ 1.
    pub snapshots: usize,
}

const S: Operand = Operand::new("s", "k−1, C, 1, R", "f32", "pool of R windows, oldest input first");
const X: Operand = Operand::new("x", "C, T, B", "f32", "the new inputs, token by token");
const W: Operand = Operand::new("w", "k, C", "f32", "taps, oldest input first");
const BIAS: Operand = Operand::new("bias", "C", "f32", "added before the activation");
const IDS: Operand = Operand::new("ids", "B", "i32", "row of s each sequence starts from; −1 starts from zero");

impl Define for SsmConvStep {
    fn name(&self) -> &'static str {
        "ssm_conv_step"
    }

    fn operands(&self) -> &'static [Operand] {
        if self.bias { &[S, X, W, BIAS, IDS] } else { &[S, X, W, IDS] }
    }

    fn result_name(&self, index: usize) -> String {
        snapshots::result_name(index)
    }

    fn attributes(&self) -> String {
        let flags = [(self.bias, "bias"), (self.silu, "silu")];
        let mut parts: Vec<String> =
            flags.iter().filter(|(set, _)| *set).map(|(_, name)| (*name).to_owned()).collect();
        if self.snapshots != 1 {
            parts.push(format!("snapshots={}", self.snapshots));
        }
        parts.join(", ")
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        let op = self.name();
        snapshots::check(op, self.snapshots)?;
        for (operand, layout) in self.operands().iter().zip(inputs) {
            let wanted = if operand.name == IDS.name { DType::I32 } else { DType::F32 };
            expect_dtype(op, operand.name, layout, &[wanted])?;
        }
        let (s, x, w, ids) = (&inputs[0], &inputs[1], &inputs[2], &inputs[inputs.len() - 1]);
        let [channels, tokens, sequences, _] = x.ne;
        let width = w.ne[0];
        if width == 0 {
            return Err(OpError::new(op, "w has ne[0] = 0, expected at least 1 tap"));
        }
        expect_ne(op, "x", x, 3, 1, "sequences lie on axis 2")?;
        expect_shape(op, "w", w, [width, channels, 1, 1], "the channels of x")?;
        let window = "width of w − 1, then the channels of x";
        expect_shape(op, "s", s, [width - 1, channels, 1, s.ne[3]], window)?;
        if self.bias {
            expect_shape(op, "bias", &inputs[3], [channels, 1, 1, 1], "the channels of x")?;
        }
        expect_shape(op, "ids", ids, [sequences, 1, 1, 1], "the sequences of x")?;

        snapshots::results(op, x, [width - 1, channels, 1, sequences], self.snapshots, tokens)
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let (s, x, w, ids) = (&inputs[0], &inputs[1], &inputs[2], &inputs[inputs.len() - 1]);
        let bias = self.bias.then(|| &inputs[3]);
        let [_, tokens, sequences, _] = x.ne();
        let (width, rows) = (w.ne()[0], s.ne()[3]);
        let (y, snapshots) = results.split_first_mut().expect("y comes first");
        let mut starts = Vec::new();
        for sequence in 0..sequences {
            starts.push(snapshots::start_row(self.name(), ids, sequence, rows)?);
        }
        // `place` counts the window and then the new inputs.
        let input = |place: usize, channel: usize, sequence: usize| match place.checked_sub(width - 1) {
            Some(token) => x.get([channel, token, sequence, 0]),
            None => starts[sequence].map_or(0.0, |row| s.get([place, channel, 0, row])),
        };
        for index @ [channel, token, sequence, _] in indices(y.ne()) {
            let sum: f64 =
                (0..width).map(|tap| input(token + tap, channel, sequence) * w.get([tap, channel, 0, 0])).sum();
            let sum = sum + bias.map_or(0.0, |bias| bias.get([channel, 0, 0, 0]));
            y.set(index, if self.silu { math::silu(sum) } else { sum });
        }
        for (back, snapshot) in snapshots.iter_mut().enumerate() {
            for index @ [place, channel, _, sequence] in indices(snapshot.ne()) {
                snapshot.set(index, input(tokens - back + place, channel, sequence));
            }
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        let mut add = |name: String, spec: Spec| cases.push(spec.case(&name));
        for width in [1, 2, 3, 4, 5, 6, 7, 8, 9, 15] {
            add(format!("width_{width}"), Spec::new(width, 6, 7, 2));
            add(format!("width_{width}_no_tokens"), Spec::new(width, 3, 0, 2));
            let few = Spec { snapshots: 3, bias: true, silu: true, ..Spec::new(width, 19, 2, 3) };
            add(format!("width_{width}_snapshots_3"), few);
        }
        for tokens in [1, 2, 15, 16, 17, 33, 70] {
            let spec = Spec::new(4, 21, tokens, 2);
            add(format!("tokens_{tokens}"), Spec { bias: true, silu: true, ..spec });
        }
        for channels in [1, 15, 16, 17, 63, 64, 65, 130, 257] {
            add(format!("channels_{channels}"), Spec::new(4, channels, 3, 2));
        }
        for (bias, silu) in [(true, false), (false, true), (true, true)] {
            add(format!("bias_{bias}_silu_{silu}"), Spec { bias, silu, ..Spec::new(4, 19, 21, 2) });
            add(format!("bias_{bias}_silu_{silu}_width_3"), Spec { bias, silu, ..Spec::new(3, 19, 5, 2) });
        }
        for (snapshots, tokens) in [(2, 0), (3, 1), (3, 3), (5, 7), (21, 70)] {
            let name = format!("snapshots_{snapshots}_tokens_{tokens}");
            add(name, Spec { snapshots, ..Spec::new(4, 18, tokens, 2) });
        }
        add("one_token_fused".into(), Spec { bias: true, silu: true, ..Spec::new(4, 130, 1, 3) });
        add("long".into(), Spec { bias: true, silu: true, ..Spec::new(4, 2, 3001, 1) });
        add("shared_start".into(), Spec { ids: Some(vec![2, 2, 0]), ..Spec::new(4, 20, 2, 3) });
        add("start_from_zero".into(), Spec { ids: Some(vec![-1, 1]), ..Spec::new(4, 20, 2, 2) });
        add("no_tokens_from_zero".into(), Spec { ids: Some(vec![1, -1]), ..Spec::new(4, 20, 0, 2) });
        add("empty_pool".into(), Spec { ids: Some(vec![-1, -1]), rows: 0, ..Spec::new(4, 20, 3, 2) });
        add("no_channels".into(), Spec { bias: true, ..Spec::new(4, 0, 3, 2) });
        add("no_sequences".into(), Spec::new(4, 3, 2, 0));
        for &arrangement in Arrangement::ALL {
            let name = arrangement.name();
            let fused = Spec { arrangement, bias: true, silu: true, snapshots: 2, ..Spec::new(4, 37, 9, 3) };
            add(format!("fused_{name}"), fused);
            add(name.into(), Spec { arrangement, ..Spec::new(9, 18, 4, 2) });
            add(format!("one_element_{name}"), Spec { arrangement, bias: true, ..Spec::new(2, 1, 1, 1) });
        }
        cases.push(special_values());
        cases
    }
}

/// The sizes of one case.
struct Spec {
    width: usize,
    channels: usize,
    tokens: usize,
    sequences: usize,
    bias: bool,
    silu: bool,
    snapshots: usize,
    rows: usize,
    ids: Option<Vec<i32>>,
    arrangement: Arrangement,
}

impl Spec {
    fn new(width: usize, channels: usize, tokens: usize, sequences: usize) -> Spec {
        Spec {
            width,
            channels,
            tokens,
            sequences,
            bias: false,
            silu: false,
            snapshots: 1,
            rows: sequences + 1,
            ids: None,
            arrangement: Arrangement::Contiguous,
        }
    }

    fn case(self, name: &str) -> Case {
        let Spec { width, channels, tokens, sequences, bias, silu, snapshots, rows, arrangement, .. } = self;
        let mut values = Values::new(name.bytes().map(u64::from).sum());
        let mut tensor = |ne: &[usize]| values.arranged(arrangement, DType::F32, ne, -1.0, 1.0);
        let mut inputs = vec![
            tensor(&[width - 1, channels, 1, rows]),
            tensor(&[channels, tokens, sequences]),
            tensor(&[width, channels]),
        ];
        if bias {
            inputs.push(tensor(&[channels]));
        }
        // A permutation by default, so that a kernel that ignores ids fails.
        let ids = self.ids.unwrap_or_else(|| (0..sequences as i32).rev().collect());
        inputs.push(HostTensor::from_i32(&[sequences], &ids).expect("one id per sequence"));
        Case::new(name, SsmConvStep { bias, silu, snapshots }, inputs, Tolerance::F32)
    }
}

/// One NaN or infinity per channel: it reaches the k outputs whose window holds it and no others. The pool is
/// full of NaN, which a start from zero must not see.
fn special_values() -> Case {
    let specials = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.5];
    let tensor = |ne: &[usize], value: &dyn Fn([usize; 4]) -> f64| {
        fill(Layout::contiguous(DType::F32, ne).expect("a small shape"), value)
    };
    let inputs = vec![
        tensor(&[3, 4, 1, 2], &|_| f64::NAN),
        tensor(&[4, 9, 1], &|[channel, token, ..]| {
            if token == 1 + channel { specials[channel] } else { token as f64 * 0.25 - 1.0 }
        }),
        tensor(&[4, 4], &|[tap, channel, ..]| 0.5 + 0.25 * tap as f64 + 0.125 * channel as f64),
        HostTensor::from_i32(&[1], &[-1]).expect("one id"),
    ];
    let op = SsmConvStep { bias: false, silu: true, snapshots: 6 };
    Case::new("special_values", op, inputs, Tolerance::F32)
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

    #[test]
    fn windows_roll_and_sequences_pick_theirs() {
        let op = Op::from(SsmConvStep { bias: false, silu: false, snapshots: 2 });
        let s = f32s(&[2, 1, 1, 2], &[1.0, 2.0, 10.0, 20.0]);
        let x = f32s(&[1, 2, 2], &[3.0, 4.0, 30.0, 40.0]);
        let w = f32s(&[3, 1], &[100.0, 10.0, 1.0]);
        let results = op.evaluate(&[s, x, w, ids(&[0, -1])]).unwrap();
        let numbers: Vec<Vec<f64>> = results.iter().map(HostTensor::to_f64).collect();
        assert_eq!(numbers[0], [123.0, 234.0, 30.0, 340.0]);
        assert_eq!(numbers[1], [3.0, 4.0, 30.0, 40.0]);
        assert_eq!(numbers[2], [2.0, 3.0, 0.0, 30.0]);
    }

    #[test]
    fn no_tokens_copy_the_window() {
        let op = Op::from(SsmConvStep { bias: true, silu: true, snapshots: 4 });
        let s = f32s(&[2, 1, 1, 2], &[1.0, 2.0, 10.0, 20.0]);
        let inputs = [s, f32s(&[1, 0, 1], &[]), f32s(&[3, 1], &[1.0; 3]), f32s(&[1], &[1.0]), ids(&[1])];
        let results = op.evaluate(&inputs).unwrap();
        assert_eq!((results.len(), results[1].to_f64()), (2, vec![10.0, 20.0]));
    }

    #[test]
    fn refusals_name_operand_and_axis() {
        let layout = |ne: &[usize]| Layout::contiguous(DType::F32, ne).unwrap();
        let refusal = |snapshots: usize, s: &[usize], x: &[usize], w: &[usize], ids: usize| {
            let ids = Layout::contiguous(DType::I32, &[ids]).unwrap();
            let op = Op::from(SsmConvStep { bias: false, silu: false, snapshots });
            op.infer(&[layout(s), layout(x), layout(w), ids]).unwrap_err().to_string()
        };
        let (s, x, w) = (&[3, 5, 1, 2][..], &[5, 7, 2][..], &[4, 5][..]);
        let texts = [
            (refusal(0, s, x, w, 2), "snapshots = 0, expected at least 1 (the final state)"),
            (refusal(65_536, s, x, w, 2), "snapshots = 65536, expected at most 65535"),
            (
                refusal(1, &[2, 5, 1, 2], x, w, 2),
                "s has ne[0] = 2, expected 3 (width of w − 1, then the channels of x)",
            ),
            (refusal(1, s, x, &[4, 6], 2), "w has ne[1] = 6, expected 5 (the channels of x)"),
            (refusal(1, s, x, &[0, 5], 2), "w has ne[0] = 0, expected at least 1 tap"),
            (refusal(1, s, &[5, 7, 2, 2], w, 2), "x has ne[3] = 2, expected 1 (sequences lie on axis 2)"),
            (refusal(1, s, x, w, 3), "ids has ne[0] = 3, expected 2 (the sequences of x)"),
        ];
        for (got, want) in texts {
            assert_eq!(got, format!("ssm_conv_step: {want}"));
        }
    }

    #[test]
    fn ids_outside_the_pool_are_refused() {
        let op = Op::from(SsmConvStep { bias: false, silu: false, snapshots: 1 });
        for id in [2, -2, i32::MIN] {
            let inputs = [f32s(&[1, 1, 1, 2], &[0.0; 2]), f32s(&[1, 1], &[1.0]), f32s(&[2, 1], &[1.0; 2])];
            let error = op.evaluate(&[&inputs[..], &[ids(&[id])]].concat()).unwrap_err();
            let want = format!("ssm_conv_step: ids[0, 0, 0] = {id}, expected −1 or a row below 2");
            assert_eq!(error.to_string(), want);
        }
    }
}
