//! Running sums along each row.
//! ```text
//! y[i, …] = Σ_{j ≤ i} x[j, …]
//! ```
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | x | any | f32, f16, bf16 | summands |
//!
//! Result: y, shape and type of x, packed. An element depends on nothing behind it: an infinity or a NaN
//! spoils no earlier sum, so a sum before an element must not be formed by subtracting that element again.
//! Source: ggml's CUMSUM; numpy.cumsum along the last axis.

use crate::case::{Values, row_inputs, rows_of};
use crate::shape::{FLOATS, expect_dtype};
use crate::tensor::rows;
use crate::{Case, DType, Define, HostTensor, Layout, Layouts, OpError, Operand, Storage, Tolerance, ViewMut, Views};
use smallvec::smallvec;

/// Running sums along each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cumsum;

const OPERANDS: &[Operand] = &[Operand::new("x", "any", "f32, f16, bf16", "summands")];

impl Define for Cumsum {
    fn name(&self) -> &'static str {
        "cumsum"
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
        Ok(smallvec![inputs[0].to_contiguous()])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[0] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let layout = inputs[0].layout();
        for [i1, i2, i3] in rows(layout.ne) {
            let mut sum = 0.0;
            for i in 0..layout.ne[0] {
                sum += inputs[0].get([i, i1, i2, i3]);
                results[0].set([i, i1, i2, i3], sum);
            }
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for (name, x) in row_inputs(50) {
            let tolerance = match x.layout().dtype {
                DType::F32 => Tolerance::sum_of(x.ne()[0], 2.0),
                // Sums near 0 carry the f32 error of the larger ones before them.
                dtype => Tolerance { atol: 1e-3, ..Tolerance::rounded_to(dtype) },
            };
            cases.push(Case::new(name, Cumsum, vec![x], tolerance));
        }
        // The shape on which a missing barrier between tiles has shown itself.
        let x = Values::new(51).tensor(DType::F32, &[255, 5, 4, 3], -2.0, 2.0);
        cases.push(Case::new("row_of_255_many", Cumsum, vec![x], Tolerance::sum_of(255, 2.0)));
        // So many long rows that each is scanned as a whole.
        let row = Values::new(52).tensor(DType::F32, &[4100], -2.0, 2.0);
        let repeated = Layout::strided(DType::F32, [4100, 256, 1, 1], [4, 0, 0, 0]).expect("a broadcast row");
        let x = HostTensor::from_bytes(repeated, row.bytes().to_vec()).expect("the bytes of one row");
        cases.push(Case::new("many_rows_of_4100", Cumsum, vec![x], Tolerance::sum_of(4100, 2.0)));
        let tight = Tolerance { rtol: 1e-6, atol: 1e-6 };
        for (name, row) in spoiling_rows() {
            cases.push(Case::new(name, Cumsum, vec![rows_of(row.len(), &row)], tight));
        }
        cases
    }
}

/// Rows with one element that must not spoil the sums before it, in short and in long rows.
fn spoiling_rows() -> Vec<(String, Vec<f64>)> {
    let infinity = f64::INFINITY;
    let mut rows: Vec<(String, Vec<f64>)> = vec![
        ("large_last".into(), vec![1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1e9]),
        ("infinity_at_3".into(), vec![1.0, 2.0, 3.0, infinity, 4.0]),
        ("infinity_at_6".into(), vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, infinity, 1.0]),
        ("both_infinities".into(), vec![1.0, 1.0, 1.0, 1.0, 1.0, -infinity, infinity, 2.0]),
        ("nan_in_the_middle".into(), vec![1.0, 2.0, f64::NAN, 4.0]),
    ];
    for at in [0, 31, 32, 255, 256, 700, 1299] {
        for (name, spoiler) in [("infinity", infinity), ("nan", f64::NAN), ("large", 1e9)] {
            let mut row = vec![0.5; 1300];
            row[at] = spoiler;
            rows.push((format!("long_{name}_at_{at}"), row));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    fn sums(row: &[f64]) -> Vec<f64> {
        Op::from(Cumsum).evaluate(&[rows_of(row.len(), row)]).unwrap()[0].to_f64()
    }

    #[test]
    fn nothing_before_an_infinity_is_spoiled() {
        let infinity = f64::INFINITY;
        assert_eq!(sums(&[1.0, 2.0, 3.0, infinity, 4.0]), [1.0, 3.0, 6.0, infinity, infinity]);
        let both = sums(&[1.0, 1.0, -infinity, infinity, 2.0]);
        assert_eq!(both[..3], [1.0, 2.0, -infinity]);
        assert!(both[3].is_nan() && both[4].is_nan());
    }

    #[test]
    fn rows_start_anew() {
        let x = rows_of(2, &[1.0, 2.0, 10.0, 20.0]);
        assert_eq!(Op::from(Cumsum).evaluate(&[x]).unwrap()[0].to_f64(), [1.0, 3.0, 10.0, 30.0]);
    }

    #[test]
    fn refuses_integers() {
        let x = Layout::contiguous(DType::I64, &[3]).unwrap();
        assert_eq!(
            Op::from(Cumsum).infer(&[x]).unwrap_err().to_string(),
            "cumsum: x has type i64, expected f32 or f16 or bf16"
        );
    }
}
