//! The mean of each row.
//! ```text
//! y[0, i1, i2, i3] = ( Σ_i x[i, i1, i2, i3] ) / ne[0]
//! ```
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | x | any | f32, f16, bf16 | any real number |
//!
//! Result: y {1, ne[1], ne[2], ne[3]}, f32, packed. The mean of a row of no elements is NaN. It refuses no
//! shape.
//! Source: ggml's MEAN.

use crate::case::{row_inputs, rows_of};
use crate::shape::{FLOATS, expect_dtype, packed};
use crate::tensor::rows;
use crate::{Case, DType, Define, Layout, Layouts, OpError, Operand, Storage, Tolerance, ViewMut, Views};
use smallvec::smallvec;

/// The mean of each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mean;

const OPERANDS: &[Operand] = &[Operand::new("x", "any", "f32, f16, bf16", "any real number")];

impl Define for Mean {
    fn name(&self) -> &'static str {
        "mean"
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
        let x = &inputs[0];
        expect_dtype(self.name(), "x", x, FLOATS)?;
        Ok(smallvec![packed(self.name(), "y", DType::F32, &[1, x.ne[1], x.ne[2], x.ne[3]])?])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let count = inputs[0].ne()[0];
        for [i1, i2, i3] in rows(results[0].ne()) {
            let sum: f64 = (0..count).map(|i| inputs[0].get([i, i1, i2, i3])).sum();
            results[0].set([0, i1, i2, i3], sum / count as f64);
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases: Vec<Case> = row_inputs(70)
            .into_iter()
            .map(|(name, x)| Case::new(name, Mean, vec![x], Tolerance::F32))
            .collect();
        let infinity = f64::INFINITY;
        let specials = [[1.0, f64::NAN, 2.0], [infinity, 1.0, 2.0], [infinity, -infinity, 0.0], [0.0, 1.0, 2.0]];
        let x = rows_of(3, specials.as_flattened());
        cases.push(Case::new("special_values", Mean, vec![x], Tolerance::F32));
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostTensor, Op};

    #[test]
    fn reads_a_transposed_view_by_its_strides() {
        // Squares of 0.5, 1, 1.5, …: columns of a 3 x 5 matrix.
        let layout = Layout::strided(DType::F32, [5, 3, 1, 1], [12, 4, 60, 60]).unwrap();
        let bytes = (1..16u8).flat_map(|i| (f32::from(i) * f32::from(i) / 4.0).to_le_bytes()).collect();
        let x = HostTensor::from_bytes(layout, bytes).unwrap();
        assert_eq!(Op::from(Mean).evaluate(&[x]).unwrap()[0].to_f64(), [16.75, 20.5, 24.75]);
    }

    #[test]
    fn an_empty_row_has_no_mean() {
        let x = HostTensor::from_f32(&[0, 2], &[]).unwrap();
        let y = &Op::from(Mean).evaluate(&[x]).unwrap()[0];
        assert_eq!(y.ne(), [1, 2, 1, 1]);
        assert!(y.to_f64().iter().all(|v| v.is_nan()));
    }

    #[test]
    fn refuses_integers() {
        let x = Layout::contiguous(DType::I32, &[3]).unwrap();
        assert_eq!(
            Op::from(Mean).infer(&[x]).unwrap_err().to_string(),
            "mean: x has type i32, expected f32 or f16 or bf16"
        );
    }
}
