//! The sum of each row.
//! ```text
//! y[0, i1, i2, i3] = Σ_i x[i, i1, i2, i3]
//! ```
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | x | any | f32, f16, bf16 | any real number |
//!
//! Result: y {1, ne[1], ne[2], ne[3]}, f32, packed. The sum of a row of no elements is 0. It refuses no
//! shape.
//! Source: ggml's SUM_ROWS.

use crate::case::{row_inputs, rows_of};
use crate::shape::{FLOATS, expect_dtype, packed};
use crate::tensor::rows;
use crate::{Case, DType, Define, Layout, Layouts, OpError, Operand, Storage, Tolerance, ViewMut, Views};
use smallvec::smallvec;

/// The sum of each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumRows;

const OPERANDS: &[Operand] = &[Operand::new("x", "any", "f32, f16, bf16", "any real number")];

impl Define for SumRows {
    fn name(&self) -> &'static str {
        "sum_rows"
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
        for [i1, i2, i3] in rows(results[0].ne()) {
            // Starts from +0, the sum of nothing; the standard library's starts from −0.
            let sum = (0..inputs[0].ne()[0]).fold(0.0, |sum, i| sum + inputs[0].get([i, i1, i2, i3]));
            results[0].set([0, i1, i2, i3], sum);
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases: Vec<Case> = row_inputs(80)
            .into_iter()
            .map(|(name, x)| {
                let tolerance = Tolerance::sum_of(x.ne()[0], 2.0);
                Case::new(name, SumRows, vec![x], tolerance)
            })
            .collect();
        let infinity = f64::INFINITY;
        let specials = [[1.0, f64::NAN, 2.0], [infinity, 1.0, 2.0], [infinity, -infinity, 0.0], [0.0, 1.0, 2.0]];
        let x = rows_of(3, specials.as_flattened());
        cases.push(Case::new("special_values", SumRows, vec![x], Tolerance::F32));
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostTensor, Op};

    #[test]
    fn sums_each_row() {
        let y = &Op::from(SumRows).evaluate(&[rows_of(3, &[1.0, 2.0, 3.0, -1.0, 0.5, 0.5])]).unwrap()[0];
        assert_eq!((y.ne(), y.to_f64()), ([1, 2, 1, 1], vec![6.0, 0.0]));
    }

    #[test]
    fn the_sum_of_nothing_is_positive_zero() {
        let x = HostTensor::from_f32(&[0, 2], &[]).unwrap();
        assert_eq!(Op::from(SumRows).evaluate(&[x]).unwrap()[0].bytes(), [0; 8]);
    }

    #[test]
    fn refuses_block_formats() {
        let x = Layout::contiguous(DType::Q8_0, &[32]).unwrap();
        assert_eq!(
            Op::from(SumRows).infer(&[x]).unwrap_err().to_string(),
            "sum_rows: x has type q8_0, expected f32 or f16 or bf16"
        );
    }
}
