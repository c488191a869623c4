//! The causal convolution in front of a scan: each channel on its own, along time.
//!
//! With k taps and k−1 earlier inputs in front of the new ones:
//! ```text
//! y[c, t, b] = act( Σ_j sx[t + j, c, b] · w[j, c]  + bias[c] )      j = 0 … k−1
//! ```
//! act is SiLU when `silu` is set and the identity otherwise; the bias is there when `bias` is set.
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | sx | k−1+T, C, B | f32 | per channel: the k−1 inputs before this call, then the T new ones |
//! | w | k, C | f32 | taps, oldest input first |
//! | bias | C | f32 | added before the activation; an operand only when `bias` is set |
//!
//! Result: y {C, T, B}, f32, packed. T = 0 is legal and gives an empty y; any width k ≥ 1 is legal. An sx
//! with fewer than k−1 inputs is refused. The window for the next call is the last k−1 columns of sx, which
//! the graph takes with a view; this op keeps no state.
//! Source: ggml's SSM_CONV without bias and activation; the fused form is causal_conv1d of the Mamba
//! programs (Gu & Dao 2023, arXiv 2312.00752, section 3.4).

use crate::case::{Arrangement, Values, fill};
use crate::shape::{expect_dtype, expect_ne, expect_shape, packed};
use crate::tensor::indices;
use crate::{Case, DType, Define, Layout, Layouts, OpError, Operand, Storage, Tolerance, ViewMut, Views, math};
use smallvec::smallvec;

/// The causal convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SsmConv {
    /// Whether a third operand is added to each channel.
    pub bias: bool,
    /// Whether SiLU is applied to the sum.
    pub silu: bool,
}

const OPERANDS: &[Operand] = &[
    Operand::new("sx", "k−1+T, C, B", "f32", "the k−1 inputs before this call, then the T new ones"),
    Operand::new("w", "k, C", "f32", "taps, oldest input first"),
    Operand::new("bias", "C", "f32", "added before the activation"),
];

impl Define for SsmConv {
    fn name(&self) -> &'static str {
        "ssm_conv"
    }

    fn operands(&self) -> &'static [Operand] {
        if self.bias { OPERANDS } else { &OPERANDS[..2] }
    }

    fn result_name(&self, _index: usize) -> String {
        "y".into()
    }

    fn attributes(&self) -> String {
        match (self.bias, self.silu) {
            (false, false) => "",
            (true, false) => "bias",
            (false, true) => "silu",
            (true, true) => "bias, silu",
        }
        .into()
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        let op = self.name();
        for (operand, layout) in self.operands().iter().zip(inputs) {
            expect_dtype(op, operand.name, layout, &[DType::F32])?;
        }
        let (sx, w) = (&inputs[0], &inputs[1]);
        let [columns, channels, sequences, _] = sx.ne;
        let width = w.ne[0];
        if width == 0 {
            return Err(OpError::new(op, "w has ne[0] = 0, expected at least 1 tap"));
        }
        expect_shape(op, "w", w, [width, channels, 1, 1], "the channels of sx")?;
        expect_ne(op, "sx", sx, 3, 1, "sequences lie on axis 2")?;
        let Some(tokens) = columns.checked_sub(width - 1) else {
            return Err(OpError::new(
                op,
                format!("sx has ne[0] = {columns}, expected at least {} (width of w − 1)", width - 1),
            ));
        };
        if let Some(bias) = inputs.get(2) {
            expect_shape(op, "bias", bias, [channels, 1, 1, 1], "the channels of sx")?;
        }
        Ok(smallvec![packed(op, "y", DType::F32, &[channels, tokens, sequences])?])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let (sx, w) = (&inputs[0], &inputs[1]);
        for index @ [channel, token, sequence, _] in indices(results[0].ne()) {
            let taps = 0..w.ne()[0];
            let sum: f64 = taps
                .map(|tap| sx.get([token + tap, channel, sequence, 0]) * w.get([tap, channel, 0, 0]))
                .sum();
            let sum = sum + inputs.get(2).map_or(0.0, |bias| bias.get([channel, 0, 0, 0]));
            results[0].set(index, if self.silu { math::silu(sum) } else { sum });
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        let mut add = |name: String, spec: Spec| cases.push(spec.case(name));
        for width in [1, 2, 3, 4, 5, 8, 9, 15] {
            add(format!("width_{width}"), Spec::new(width, 6, 7, 2));
            add(format!("width_{width}_no_tokens"), Spec::new(width, 3, 0, 2));
        }
        for tokens in [1, 15, 16, 17, 31, 32, 33, 65, 257] {
            add(format!("tokens_{tokens}"), Spec::new(4, 5, tokens, 1));
        }
        for channels in [1, 15, 17, 31, 33, 64, 65, 130, 257] {
            add(format!("channels_{channels}"), Spec::new(4, channels, 3, 2));
        }
        add("one_token_fused".into(), Spec { bias: true, silu: true, ..Spec::new(4, 130, 1, 3) });
        add("long".into(), Spec { bias: true, silu: true, ..Spec::new(4, 2, 3001, 1) });
        for (bias, silu) in [(true, false), (false, true), (true, true)] {
            let fused = |width, tokens| Spec { bias, silu, ..Spec::new(width, 19, tokens, 2) };
            add(format!("bias_{bias}_silu_{silu}"), fused(4, 21));
            add(format!("bias_{bias}_silu_{silu}_width_3"), fused(3, 5));
            add(format!("bias_{bias}_silu_{silu}_no_tokens"), fused(4, 0));
        }
        for &arrangement in Arrangement::ALL {
            let spec = Spec { arrangement, bias: true, silu: true, ..Spec::new(4, 37, 9, 3) };
            add(format!("fused_{}", arrangement.name()), spec);
            add(arrangement.name().into(), Spec { arrangement, ..Spec::new(5, 18, 4, 2) });
            let one = Spec { arrangement, bias: true, ..Spec::new(1, 1, 1, 1) };
            add(format!("one_element_{}", arrangement.name()), one);
        }
        add("no_channels".into(), Spec { bias: true, ..Spec::new(4, 0, 3, 2) });
        add("no_sequences".into(), Spec::new(4, 3, 2, 0));
        cases.push(special_values(false));
        cases.push(special_values(true));
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
    arrangement: Arrangement,
}

impl Spec {
    fn new(width: usize, channels: usize, tokens: usize, sequences: usize) -> Spec {
        let arrangement = Arrangement::Contiguous;
        Spec { width, channels, tokens, sequences, bias: false, silu: false, arrangement }
    }

    fn case(self, name: String) -> Case {
        let mut values = Values::new(name.bytes().map(u64::from).sum());
        let mut tensor = |ne: &[usize]| values.arranged(self.arrangement, DType::F32, ne, -1.0, 1.0);
        let mut inputs = vec![
            tensor(&[self.width - 1 + self.tokens, self.channels, self.sequences]),
            tensor(&[self.width, self.channels]),
        ];
        if self.bias {
            inputs.push(tensor(&[self.channels]));
        }
        Case::new(name, SsmConv { bias: self.bias, silu: self.silu }, inputs, Tolerance::F32)
    }
}

/// One NaN or infinity per channel: it reaches the k outputs whose window holds it and no others.
fn special_values(silu: bool) -> Case {
    let specials = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.5];
    let sx = Layout::contiguous(DType::F32, &[3 + 9, 4, 1]).expect("a small shape");
    let sx = fill(sx, |[column, channel, ..]| {
        if column == 4 + channel { specials[channel] } else { column as f64 * 0.25 - 1.0 }
    });
    let w = Layout::contiguous(DType::F32, &[4, 4]).expect("a small shape");
    let w = fill(w, |[tap, channel, ..]| 0.5 + 0.25 * tap as f64 + 0.125 * channel as f64);
    let name = if silu { "special_values_silu" } else { "special_values" };
    Case::new(name, SsmConv { bias: false, silu }, vec![sx, w], Tolerance::F32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostTensor, Op};

    fn conv(bias: bool, silu: bool) -> Op {
        SsmConv { bias, silu }.into()
    }

    fn f32s(ne: &[usize], values: &[f32]) -> HostTensor {
        HostTensor::from_f32(ne, values).unwrap()
    }

    #[test]
    fn slides_the_window_along_time() {
        let sx = f32s(&[4, 2], &[1.0, 2.0, 3.0, 4.0, 10.0, 20.0, 30.0, 40.0]);
        let w = f32s(&[2, 2], &[1.0, 100.0, 2.0, 0.5]);
        let y = &conv(false, false).evaluate(&[sx.clone(), w.clone()]).unwrap()[0];
        assert_eq!(y.ne(), [2, 3, 1, 1]);
        assert_eq!(y.to_f64(), [201.0, 30.0, 302.0, 55.0, 403.0, 80.0]);
        let bias = f32s(&[2], &[-201.0, 0.25]);
        let y = &conv(true, false).evaluate(&[sx, w, bias]).unwrap()[0];
        assert_eq!(y.to_f64(), [0.0, 30.25, 101.0, 55.25, 202.0, 80.25]);
    }

    #[test]
    fn width_one_scales_and_silu_follows_the_bias() {
        let sx = f32s(&[2, 1], &[3.0, -1.0]);
        let w = f32s(&[1, 1], &[2.0]);
        let y = &conv(true, true).evaluate(&[sx, w, f32s(&[1], &[2.0])]).unwrap()[0];
        assert_eq!(y.to_f64(), [(8.0 / (1.0 + (-8f64).exp())) as f32 as f64, 0.0]);
    }

    #[test]
    fn history_alone_gives_no_output() {
        let y = &conv(false, false).evaluate(&[f32s(&[3, 2], &[1.0; 6]), f32s(&[4, 2], &[1.0; 8])]).unwrap()[0];
        assert_eq!(y.ne(), [2, 0, 1, 1]);
    }

    #[test]
    fn refusals_name_operand_and_axis() {
        let layout = |ne: &[usize]| Layout::contiguous(DType::F32, ne).unwrap();
        let refusal = |op: Op, shapes: &[&[usize]]| {
            let layouts: Vec<Layout> = shapes.iter().map(|ne| layout(ne)).collect();
            op.infer(&layouts).unwrap_err().to_string()
        };
        assert_eq!(
            refusal(conv(false, false), &[&[2, 5], &[4, 5]]),
            "ssm_conv: sx has ne[0] = 2, expected at least 3 (width of w − 1)"
        );
        assert_eq!(
            refusal(conv(false, false), &[&[8, 5], &[4, 6]]),
            "ssm_conv: w has ne[1] = 6, expected 5 (the channels of sx)"
        );
        assert_eq!(
            refusal(conv(false, false), &[&[8, 5], &[0, 5]]),
            "ssm_conv: w has ne[0] = 0, expected at least 1 tap"
        );
        assert_eq!(
            refusal(conv(false, false), &[&[8, 5, 1, 2], &[4, 5]]),
            "ssm_conv: sx has ne[3] = 2, expected 1 (sequences lie on axis 2)"
        );
        assert_eq!(
            refusal(conv(true, false), &[&[8, 5], &[4, 5], &[1]]),
            "ssm_conv: bias has ne[0] = 1, expected 5 (the channels of sx)"
        );
        assert_eq!(
            refusal(conv(true, false), &[&[8, 5], &[4, 5]]),
            "ssm_conv: 2 operands, expected 3 (sx, w, bias)"
        );
    }
}
