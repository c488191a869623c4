//! Element-wise arithmetic on two operands, b repeated to the shape of a:
//! `y[i] = a[i] ∘ b[i mod shape of b]`, axis by axis.
//!
//! | op | a ∘ b |
//! |---|---|
//! | add | a + b |
//! | sub | a − b |
//! | mul | a · b |
//! | div | a / b; ±∞ or NaN for b = 0, as IEEE 754 has it |
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | a | any | f32, f16, bf16 | any real number |
//! | b | each count divides that of a | f32, f16, bf16 | any real number |
//!
//! The result has the shape and type of a and is packed. b never stretches a.
//! Source: ADD, SUB, MUL and DIV of ggml, and its rule for repeating b.

use crate::case::{Arrangement, Values};
use crate::shape::{FLOATS, expect_dtype, expect_repeats, repeated_index};
use crate::tensor::indices;
use crate::{Case, DType, Define, HostTensor, Layout, Layouts, OpError, Operand, Storage, Tolerance};
use crate::{ViewMut, Views};
use smallvec::smallvec;

/// Which operation is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryFunction {
    /// a + b
    Add,
    /// a − b
    Sub,
    /// a · b
    Mul,
    /// a / b
    Div,
}

impl BinaryFunction {
    /// Every operation.
    pub const ALL: &'static [BinaryFunction] =
        &[BinaryFunction::Add, BinaryFunction::Sub, BinaryFunction::Mul, BinaryFunction::Div];

    /// The op's name.
    pub fn name(self) -> &'static str {
        match self {
            BinaryFunction::Add => "add",
            BinaryFunction::Sub => "sub",
            BinaryFunction::Mul => "mul",
            BinaryFunction::Div => "div",
        }
    }

    /// The operation itself.
    pub fn apply(self, a: f64, b: f64) -> f64 {
        match self {
            BinaryFunction::Add => a + b,
            BinaryFunction::Sub => a - b,
            BinaryFunction::Mul => a * b,
            BinaryFunction::Div => a / b,
        }
    }
}

/// `y[i] = a[i] ∘ b[i mod shape of b]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binary {
    /// The operation applied to every pair.
    pub function: BinaryFunction,
}

const OPERANDS: &[Operand] = &[
    Operand::new("a", "any", "f32, f16, bf16", "any real number"),
    Operand::new("b", "each count divides that of a", "f32, f16, bf16", "any real number"),
];

impl Define for Binary {
    fn name(&self) -> &'static str {
        self.function.name()
    }

    fn operands(&self) -> &'static [Operand] {
        OPERANDS
    }

    fn result_name(&self, _index: usize) -> String {
        "y".into()
    }

    fn attributes(&self) -> String {
        String::new()
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        let [a, b] = inputs else { unreachable!("the arity was checked") };
        expect_dtype(self.name(), "a", a, FLOATS)?;
        expect_dtype(self.name(), "b", b, FLOATS)?;
        expect_repeats(self.name(), "b", b, a, "a")?;
        Ok(smallvec![a.to_contiguous()])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[0] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let [a, b] = inputs else { unreachable!("the arity was checked") };
        for index in indices(a.ne()) {
            let repeated = repeated_index(b.ne(), index);
            results[0].set(index, self.function.apply(a.get(index), b.get(repeated)));
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for (seed, &function) in BinaryFunction::ALL.iter().enumerate() {
            let op = Binary { function };
            let mut values = Values::new(seed as u64);
            let mut add = |name: String, a: HostTensor, b: HostTensor| {
                let tolerance = Tolerance::rounded_to(a.layout().dtype);
                cases.push(Case::new(format!("{}_{name}", op.name()), op, vec![a, b], tolerance));
            };
            let mut pair = |name: String, (arrange_a, a): (Arrangement, DType), (arrange_b, b): (Arrangement, DType), ne: [usize; 4], b_ne: [usize; 4]| {
                let a = values.arranged(arrange_a, a, &ne, -2.0, 2.0);
                // Away from zero, so that a quotient stays of order one.
                add(name, a, values.arranged(arrange_b, b, &b_ne, 0.5, 2.0));
            };
            let plain = (Arrangement::Contiguous, DType::F32);
            for &arrangement in Arrangement::ALL {
                let (name, ne) = (arrangement.name(), [17, 3, 2, 2]);
                let arranged = (arrangement, DType::F32);
                pair(format!("a_{name}"), arranged, plain, ne, ne);
                pair(format!("b_{name}"), plain, arranged, ne, ne);
                pair(format!("both_{name}"), arranged, arranged, [33, 2, 1, 1], [33, 1, 1, 1]);
            }
            let ne = [6, 4, 6, 4];
            for b_ne in [[1, 4, 6, 4], [6, 1, 6, 4], [6, 4, 1, 4], [6, 4, 6, 1], [1, 1, 1, 1], [6, 1, 1, 1], [3, 2, 3, 2]] {
                pair(format!("repeats_{}", b_ne.map(|n| n.to_string()).join("_")), plain, plain, ne, b_ne);
            }
            for size in [1, 15, 16, 31, 64, 65, 130, 1028, 1030] {
                pair(format!("size_{size}"), plain, plain, [size, 3, 1, 1], [size, 1, 1, 1]);
            }
            for &a in FLOATS {
                for &b in FLOATS {
                    let rows = Arrangement::GappedRows;
                    pair(format!("{a}_{b}"), (rows, a), (rows, b), [19, 2, 1, 1], [19, 2, 1, 1]);
                }
            }
            for ne in [[0, 3, 1, 1], [3, 0, 1, 1], [3, 1, 0, 1], [3, 1, 1, 0]] {
                let row = [ne[0].min(1), 1, 1, 1];
                pair(format!("empty_{ne:?}"), plain, plain, ne, ne);
                pair(format!("empty_{ne:?}_from_one"), plain, plain, ne, row.map(|n: usize| n.max(1)));
            }
            let special = [0.0, -0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 3e38, 1e-40];
            let special = HostTensor::from_f32(&[special.len()], &special).expect("a short row");
            let numbers = special.to_f64();
            let spread = Layout::contiguous(DType::F32, &[8, 8]).expect("a small square");
            let columns = crate::case::fill(spread, |index| numbers[index[1]]);
            add("special".into(), columns, special);
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    #[test]
    fn b_repeats_along_every_axis() {
        let a = HostTensor::from_f32(&[4, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).unwrap();
        let b = HostTensor::from_f32(&[2, 1], &[10.0, 20.0]).unwrap();
        let sub = Op::from(Binary { function: BinaryFunction::Sub });
        let y = sub.evaluate(&[a, b]).unwrap()[0].to_f64();
        assert_eq!(y, [-9.0, -18.0, -7.0, -16.0, -5.0, -14.0, -3.0, -12.0]);
    }

    #[test]
    fn the_result_has_the_type_of_a() {
        let half = Layout::contiguous(DType::F16, &[4]).unwrap();
        let single = Layout::contiguous(DType::F32, &[4]).unwrap();
        let add = Op::from(Binary { function: BinaryFunction::Add });
        assert_eq!(add.infer(&[half, single]).unwrap()[0].dtype, DType::F16);
        assert_eq!(add.infer(&[single, half]).unwrap()[0].dtype, DType::F32);
    }

    #[test]
    fn refusals_name_the_axis() {
        let layout = |dtype: DType, ne: &[usize]| Layout::contiguous(dtype, ne).unwrap();
        let refused = |a: Layout, b: Layout| {
            Op::from(Binary { function: BinaryFunction::Mul }).infer(&[a, b]).unwrap_err().to_string()
        };
        assert_eq!(
            refused(layout(DType::F32, &[4, 3]), layout(DType::F32, &[4, 2])),
            "mul: b has ne[1] = 2, which does not divide 3 (ne[1] of a)"
        );
        assert_eq!(
            refused(layout(DType::F32, &[4]), layout(DType::F32, &[0])),
            "mul: b has ne[0] = 0, which does not divide 4 (ne[0] of a)"
        );
        assert_eq!(
            refused(layout(DType::F32, &[4]), layout(DType::F32, &[4, 2])),
            "mul: b has ne[1] = 2, which does not divide 1 (ne[1] of a)"
        );
        assert_eq!(
            refused(layout(DType::F32, &[4]), layout(DType::I32, &[4])),
            "mul: b has type i32, expected f32 or f16 or bf16"
        );
    }
}
