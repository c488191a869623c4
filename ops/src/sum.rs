//! The sum of all elements.
//! ```text
//! y[0] = Σ x[i0, i1, i2, i3]
//! ```
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | x | any | f32, f16, bf16 | any real number |
//!
//! Result: y {1}, f32. The sum of no elements is 0. It refuses no shape.
//! Source: ggml's SUM.

use crate::case::{row_inputs, rows_of};
use crate::shape::{FLOATS, expect_dtype, packed};
use crate::tensor::indices;
use crate::{Case, DType, Define, Layout, Layouts, OpError, Operand, Storage, Tolerance, ViewMut, Views};
use smallvec::smallvec;

/// The sum of all elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum;

const OPERANDS: &[Operand] = &[Operand::new("x", "any", "f32, f16, bf16", "any real number")];

impl Define for Sum {
    fn name(&self) -> &'static str {
        "sum"
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
        expect_dtype(self.name(), "x", &inputs[0], FLOATS)?;
        Ok(smallvec![packed(self.name(), "y", DType::F32, &[1])?])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        // Starts from +0, the sum of nothing; the standard library's starts from −0.
        let sum = indices(inputs[0].ne()).fold(0.0, |sum, index| sum + inputs[0].get(index));
        results[0].set([0; 4], sum);
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases: Vec<Case> = row_inputs(90)
            .into_iter()
            .map(|(name, x)| {
                let tolerance = Tolerance::sum_of(x.layout().elements(), 2.0);
                Case::new(name, Sum, vec![x], tolerance)
            })
            .collect();
        let infinity = f64::INFINITY;
        let specials: [(&str, &[f64]); 4] = [
            ("nan", &[1.0, f64::NAN, 2.0, 3.0]),
            ("infinity", &[1.0, infinity, 2.0, 3.0]),
            ("both_infinities", &[1.0, infinity, -infinity, 3.0]),
            ("signed_zeros", &[-0.0, 0.0, -0.0, -0.0]),
        ];
        for (name, numbers) in specials {
            cases.push(Case::new(name, Sum, vec![rows_of(2, numbers)], Tolerance::F32));
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostTensor, Op};

    #[test]
    fn reads_views_by_their_strides() {
        let bytes: Vec<u8> = (1..33u8).flat_map(|i| f32::from(i).to_le_bytes()).collect();
        // Rows of 3 starting at elements 2, 6, 12 and 16 of 1 … 32.
        let gapped = Layout::strided(DType::F32, [3, 2, 2, 1], [4, 16, 40, 80]).unwrap();
        let x = HostTensor::from_bytes(gapped, bytes[8..].to_vec()).unwrap();
        assert_eq!(Op::from(Sum).evaluate(&[x]).unwrap()[0].to_f64(), [132.0]);
    }

    #[test]
    fn the_sum_of_nothing_is_positive_zero() {
        for ne in [[0, 1, 1, 1], [3, 2, 0, 1]] {
            let y = &Op::from(Sum).evaluate(&[HostTensor::from_f32(&ne, &[]).unwrap()]).unwrap()[0];
            assert_eq!((y.ne(), y.bytes()), ([1; 4], [0u8; 4].as_slice()));
        }
    }

    #[test]
    fn refuses_integers() {
        let x = Layout::contiguous(DType::I32, &[3]).unwrap();
        assert_eq!(
            Op::from(Sum).infer(&[x]).unwrap_err().to_string(),
            "sum: x has type i32, expected f32 or f16 or bf16"
        );
    }
}
