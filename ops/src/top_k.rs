//! Indices of the largest elements of each row, the largest first.
//! ```text
//! y[0 … k − 1, i1, i2, i3] = the first k of the indices of x[…, i1, i2, i3], sorted by falling value
//! ```
//! Equal elements keep their order. NaN counts as greater than every number; −0 equals +0. With k the length of
//! the rows this is an argsort in falling order, and k = 1 is argmax.
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | x | any, ne[0] ≥ k | f32, f16, bf16 | scores |
//!
//! Result: y {k, ne[1], ne[2], ne[3]}, i32, packed. Refused: k above the length of the rows, and rows longer than an
//! i32 can index.
//! Source: torch.topk and torch.sort(descending, stable), which agree on NaN; ggml's ARGSORT leaves ties and NaN
//! open.

use crate::case::{row_inputs, rows_of};
use crate::shape::{FLOATS, expect_dtype, packed};
use crate::tensor::rows;
use crate::{Case, DType, Define, Layout, Layouts, OpError, Operand, Storage, Tolerance, ViewMut, Views};
use smallvec::smallvec;
use std::cmp::Ordering;

/// Indices of the largest elements of each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopK {
    /// How many of each row.
    pub k: usize,
}

const OPERANDS: &[Operand] = &[Operand::new("x", "any, ne[0] ≥ k", "f32, f16, bf16", "scores")];

/// Falling order; NaN first.
fn falling(a: f64, b: f64) -> Ordering {
    a.is_nan().cmp(&b.is_nan()).then(a.partial_cmp(&b).unwrap_or(Ordering::Equal)).reverse()
}

impl Define for TopK {
    fn name(&self) -> &'static str {
        "top_k"
    }

    fn operands(&self) -> &'static [Operand] {
        OPERANDS
    }

    fn result_name(&self, _index: usize) -> String {
        "y".into()
    }

    fn attributes(&self) -> String {
        format!("k={}", self.k)
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        let op = self.name();
        let x = &inputs[0];
        expect_dtype(op, "x", x, FLOATS)?;
        if self.k > x.ne[0] {
            let what = format!("x has ne[0] = {}, expected at least {} (k)", x.ne[0], self.k);
            return Err(OpError::new(op, what));
        }
        if i32::try_from(x.ne[0]).is_err() {
            let what = format!("x has ne[0] = {}, expected at most {} (indices are i32)", x.ne[0], i32::MAX);
            return Err(OpError::new(op, what));
        }
        Ok(smallvec![packed(op, "y", DType::I32, &[self.k, x.ne[1], x.ne[2], x.ne[3]])?])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let x = &inputs[0];
        for [i1, i2, i3] in rows(x.ne()) {
            let value = |i: usize| x.get([i, i1, i2, i3]);
            let mut order: Vec<usize> = (0..x.ne()[0]).collect();
            order.sort_by(|&a, &b| falling(value(a), value(b)));
            for (place, &index) in order[..self.k].iter().enumerate() {
                results[0].set_int([place, i1, i2, i3], index as i64);
            }
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for (name, x) in row_inputs(61) {
            let length = x.ne()[0];
            let k = length.min(5);
            cases.push(Case::new(name.clone(), TopK { k }, vec![x.clone()], Tolerance::EXACT));
            if length <= 5001 {
                cases.push(Case::new(format!("{name}_sorted"), TopK { k: length }, vec![x], Tolerance::EXACT));
            }
        }
        for (length, k) in [(64, 8), (512, 10), (4096, 3), (4097, 40), (128, 0), (1, 1)] {
            let mut values = crate::case::Values::new(62);
            let x = values.tensor(DType::F32, &[length, 3], -1.0, 1.0);
            cases.push(Case::new(format!("{k}_of_{length}"), TopK { k }, vec![x], Tolerance::EXACT));
        }
        let mut values = crate::case::Values::new(63);
        for length in [300, 5000] {
            // Many equals among few values, some of them special.
            let few = [1.0, -0.0, 0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -2.0];
            let numbers: Vec<f64> = (0..2 * length).map(|_| few[values.below(few.len())]).collect();
            for k in [1, 4, 70, 300] {
                let x = rows_of(length, &numbers);
                cases.push(Case::new(format!("equals_{k}_of_{length}"), TopK { k }, vec![x], Tolerance::EXACT));
            }
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    fn largest(k: usize, row: &[f64]) -> Vec<f64> {
        Op::from(TopK { k }).evaluate(&[rows_of(row.len(), row)]).unwrap()[0].to_f64()
    }

    #[test]
    fn equals_keep_their_order_and_nan_is_largest() {
        let row = [1.0, f64::INFINITY, -0.0, f64::NAN, 0.0, 1.0];
        assert_eq!(largest(6, &row), [3.0, 1.0, 0.0, 5.0, 2.0, 4.0]);
        assert_eq!(largest(2, &row), [3.0, 1.0]);
    }

    #[test]
    fn more_than_there_are_is_refused() {
        let x = Layout::contiguous(DType::F32, &[3, 2]).unwrap();
        assert_eq!(
            Op::from(TopK { k: 4 }).infer(&[x]).unwrap_err().to_string(),
            "top_k: x has ne[0] = 3, expected at least 4 (k)"
        );
        assert_eq!(Op::from(TopK { k: 0 }).infer(&[x]).unwrap()[0].ne, [0, 2, 1, 1]);
    }
}
