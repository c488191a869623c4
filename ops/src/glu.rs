//! Gated linear units: one half of the input, activated, times the other half.
//! ```text
//! split:      y[d, …] = f(a[d, …]) · b[d, …]
//! not split:  y[d, …] = f(x[d, …]) · x[D + d, …]
//! swapped:    y[d, …] = f(x[D + d, …]) · x[d, …]
//! ```
//!
//! | op | f(x) |
//! |---|---|
//! | reglu | max(x, 0); NaN stays NaN |
//! | geglu | GELU in its tanh form, 0 at −∞ |
//! | swiglu | x / (1 + e^−x), 0 at −∞ |
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | x (not split) | 2D, … | f32, f16, bf16 | both halves of each row |
//! | a (split) | D, … | f32, f16, bf16 | the half that is activated |
//! | b (split) | D, … | that of a | the other half |
//!
//! The result {D, …} has the type of the input and is packed. Refused: rows of odd length, `swapped` with
//! two operands, which can be exchanged instead.
//! Source: ggml's GLU; Shazeer 2020 (arXiv 2002.05202).

use crate::case::{Arrangement, Values};
use crate::shape::{FLOATS, expect_dtype, expect_same_dtype, expect_shape, packed};
use crate::tensor::indices;
use crate::unary::Function;
use crate::{Case, DType, Define, Layout, Layouts, OpError, Operand, Storage, Tolerance, ViewMut, Views};
use smallvec::smallvec;

/// Which activation is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GluFunction {
    /// max(x, 0)
    Reglu,
    /// GELU in its tanh form
    Geglu,
    /// x / (1 + e^−x)
    Swiglu,
}

impl GluFunction {
    /// Every activation.
    pub const ALL: &'static [GluFunction] = &[GluFunction::Reglu, GluFunction::Geglu, GluFunction::Swiglu];

    /// The op's name.
    pub fn name(self) -> &'static str {
        match self {
            GluFunction::Reglu => "reglu",
            GluFunction::Geglu => "geglu",
            GluFunction::Swiglu => "swiglu",
        }
    }

    /// The activation.
    pub fn activation(self) -> Function {
        match self {
            GluFunction::Reglu => Function::Relu,
            GluFunction::Geglu => Function::Gelu,
            GluFunction::Swiglu => Function::Silu,
        }
    }
}

/// The gated linear unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glu {
    /// The activation of one half.
    pub function: GluFunction,
    /// Whether the halves are two operands.
    pub split: bool,
    /// Whether the second half of each row is activated; for one operand only.
    pub swapped: bool,
}

const JOINED: &[Operand] = &[Operand::new("x", "2D, any", "f32, f16, bf16", "both halves of each row")];
const SPLIT: &[Operand] = &[
    Operand::new("a", "any", "f32, f16, bf16", "the half that is activated"),
    Operand::new("b", "that of a", "that of a", "the other half"),
];

impl Define for Glu {
    fn name(&self) -> &'static str {
        self.function.name()
    }

    fn operands(&self) -> &'static [Operand] {
        if self.split { SPLIT } else { JOINED }
    }

    fn result_name(&self, _index: usize) -> String {
        "y".into()
    }

    fn attributes(&self) -> String {
        match (self.split, self.swapped) {
            (false, false) => String::new(),
            (true, false) => "split".into(),
            (false, true) => "swapped".into(),
            (true, true) => "split swapped".into(),
        }
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        let op = self.name();
        expect_dtype(op, self.operands()[0].name, &inputs[0], FLOATS)?;
        match inputs {
            [_, _] if self.swapped => {
                Err(OpError::new(op, "swapped is for one operand of two halves; exchange a and b instead"))
            }
            [a, b] => {
                expect_same_dtype(op, "b", b, a, "a")?;
                expect_shape(op, "b", b, a.ne, "the shape of a")?;
                Ok(smallvec![a.to_contiguous()])
            }
            [x, ..] => {
                let [row, n1, n2, n3] = x.ne;
                if row % 2 != 0 {
                    let what = format!("x has ne[0] = {row}, expected an even number (two halves)");
                    return Err(OpError::new(op, what));
                }
                Ok(smallvec![packed(op, "y", x.dtype, &[row / 2, n1, n2, n3])?])
            }
            [] => unreachable!("the arity was checked"),
        }
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: if self.split { &[0, 1] } else { &[] } }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let activation = self.function.activation();
        let half = results[0].ne()[0];
        for index in indices(results[0].ne()) {
            let [d, i1, i2, i3] = index;
            let (first, second) = match inputs {
                [a, b] => (a.get(index), b.get(index)),
                _ => (inputs[0].get(index), inputs[0].get([half + d, i1, i2, i3])),
            };
            let (active, other) = if self.swapped { (second, first) } else { (first, second) };
            results[0].set(index, activation.apply(active) * other);
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for (seed, &function) in GluFunction::ALL.iter().enumerate() {
            let mut values = Values::new(seed as u64);
            for (split, swapped) in [(true, false), (false, false), (false, true)] {
                let op = Glu { function, split, swapped };
                let mut add = |name: String, arrangement: Arrangement, dtype: DType, ne: [usize; 4]| {
                    let tolerance = Tolerance::rounded_to(dtype);
                    let row = ne[0] * if split { 1 } else { 2 };
                    let mut half = || values.arranged(arrangement, dtype, &[row, ne[1], ne[2], ne[3]], -3.0, 3.0);
                    let inputs = if split { vec![half(), half()] } else { vec![half()] };
                    let kind = op.attributes().replace(' ', "_");
                    let kind = if kind.is_empty() { "joined".into() } else { kind };
                    cases.push(Case::new(format!("{}_{kind}_{name}", op.name()), op, inputs, tolerance));
                };
                for &arrangement in Arrangement::ALL {
                    add(arrangement.name().into(), arrangement, DType::F32, [17, 3, 2, 2]);
                }
                for dtype in [DType::F16, DType::BF16] {
                    add(dtype.to_string(), Arrangement::GappedRows, dtype, [19, 3, 1, 1]);
                }
                for size in [1, 15, 16, 31, 33, 64, 65, 130] {
                    add(format!("size_{size}"), Arrangement::Contiguous, DType::F32, [size, 2, 1, 1]);
                }
                for ne in [[0, 3, 1, 1], [3, 0, 1, 1], [3, 1, 0, 1], [3, 1, 1, 0]] {
                    add(format!("empty_{ne:?}"), Arrangement::Contiguous, DType::F32, ne);
                }
            }
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostTensor, Op};

    const REGLU: Glu = Glu { function: GluFunction::Reglu, split: false, swapped: false };

    #[test]
    fn swapped_activates_the_second_half() {
        let x = HostTensor::from_f32(&[4], &[-1.0, 2.0, 3.0, -4.0]).unwrap();
        let y = |op: Glu, inputs: &[HostTensor]| Op::from(op).evaluate(inputs).unwrap()[0].to_f64();
        assert_eq!(y(REGLU, std::slice::from_ref(&x)), [0.0, -8.0]);
        assert_eq!(y(Glu { swapped: true, ..REGLU }, &[x]), [-3.0, 0.0]);
        let a = HostTensor::from_f32(&[2], &[-1.0, 2.0]).unwrap();
        let b = HostTensor::from_f32(&[2], &[3.0, -4.0]).unwrap();
        assert_eq!(y(Glu { split: true, ..REGLU }, &[a, b]), [0.0, -8.0]);
    }

    #[test]
    fn refusals_name_the_operand() {
        let layout = |dtype: DType, ne: &[usize]| Layout::contiguous(dtype, ne).unwrap();
        let refused = |op: Glu, inputs: &[Layout]| Op::from(op).infer(inputs).unwrap_err().to_string();
        let (row, split) = (layout(DType::F32, &[4, 2]), Glu { split: true, ..REGLU });
        assert_eq!(
            refused(REGLU, &[layout(DType::F32, &[5, 2])]),
            "reglu: x has ne[0] = 5, expected an even number (two halves)"
        );
        assert_eq!(
            refused(split, &[row, layout(DType::F32, &[4, 3])]),
            "reglu: b has ne[1] = 3, expected 2 (the shape of a)"
        );
        assert_eq!(
            refused(split, &[row, layout(DType::F16, &[4, 2])]),
            "reglu: b has type f16, expected f32 (the type of a)"
        );
        assert_eq!(
            refused(Glu { swapped: true, ..split }, &[row, row]),
            "reglu: swapped is for one operand of two halves; exchange a and b instead"
        );
        assert_eq!(refused(split, &[row]), "reglu: 1 operands, expected 2 (a, b)");
    }
}
