//! The index of the largest element of each row.
//! ```text
//! y[i1, i2, i3] = the least i with x[i, i1, i2, i3] = max_j x[j, i1, i2, i3]
//! ```
//! NaN counts as greater than every number, so the first NaN wins; −0 equals +0.
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | x | any, ne[0] ≥ 1 when there are rows | f32, f16, bf16 | scores |
//!
//! Result: y {ne[1], ne[2], ne[3]}, i32, packed: the axes of the rows move in by one. Refused: rows of no
//! elements, which have no largest one, and rows longer than an i32 can index.
//! Source: numpy.argmax and torch.argmax, which agree on the lowest index and on NaN.

use crate::case::{row_inputs, rows_of};
use crate::shape::{FLOATS, expect_dtype, packed};
use crate::tensor::rows;
use crate::{Case, DType, Define, Layout, Layouts, OpError, Operand, Storage, Tolerance, ViewMut, Views};
use smallvec::smallvec;

/// The index of the largest element of each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argmax;

const OPERANDS: &[Operand] = &[Operand::new("x", "any, ne[0] ≥ 1", "f32, f16, bf16", "scores")];

/// Whether a later element takes the place of the best one so far.
fn beats(later: f64, best: f64) -> bool {
    later > best || (later.is_nan() && !best.is_nan())
}

impl Define for Argmax {
    fn name(&self) -> &'static str {
        "argmax"
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
        let op = self.name();
        let x = &inputs[0];
        expect_dtype(op, "x", x, FLOATS)?;
        if x.ne[0] == 0 && !x.ne[1..].contains(&0) {
            let what = "x has ne[0] = 0, expected at least 1 (each row needs a largest element)";
            return Err(OpError::new(op, what));
        }
        if i32::try_from(x.ne[0]).is_err() {
            return Err(OpError::new(
                op,
                format!("x has ne[0] = {}, expected at most {} (the index is i32)", x.ne[0], i32::MAX),
            ));
        }
        Ok(smallvec![packed(op, "y", DType::I32, &x.ne[1..])?])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let x = &inputs[0];
        for [i1, i2, i3] in rows(x.ne()) {
            let mut best = 0;
            for i in 1..x.ne()[0] {
                if beats(x.get([i, i1, i2, i3]), x.get([best, i1, i2, i3])) {
                    best = i;
                }
            }
            results[0].set_int([i1, i2, i3, 0], best as i64);
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases: Vec<Case> = row_inputs(60)
            .into_iter()
            .filter(|(_, x)| x.ne()[0] > 0 || x.layout().rows() == 0)
            .map(|(name, x)| Case::new(name, Argmax, vec![x], Tolerance::EXACT))
            .collect();
        for (name, row_length, numbers) in special_rows() {
            let x = rows_of(row_length, &numbers);
            cases.push(Case::new(name, Argmax, vec![x], Tolerance::EXACT));
        }
        cases
    }
}

/// Ties, infinities and NaN, with the row length.
fn special_rows() -> Vec<(&'static str, usize, Vec<f64>)> {
    let row = |length: usize, base: f64, set: &[(usize, f64)]| {
        let mut row = vec![base; length];
        set.iter().for_each(|&(at, value)| row[at] = value);
        row
    };
    let (infinity, nan) = (f64::INFINITY, f64::NAN);
    let ties = [
        row(512, -1.0, &[(5, 2.0), (256, 2.0)]),
        row(512, -1.0, &[(1, 2.0), (257, 2.0)]),
        row(512, -1.0, &[(480, 2.0), (511, 2.0)]),
        row(512, -1.0, &[(1, 2.0), (33, 2.0), (64, 2.0)]),
        row(512, -1.0, &[(64, 2.0), (65, 2.0), (130, 2.0)]),
        row(512, 3.0, &[]),
        row(512, -1.0, &[(200, -0.0), (300, 0.0)]),
        row(512, -1.0, &[(200, 0.0), (300, -0.0)]),
    ];
    let not_numbers = [
        row(300, 1.0, &[(7, nan)]),
        row(300, 1.0, &[(299, nan)]),
        row(300, 1.0, &[(4, infinity), (70, nan), (40, nan), (270, infinity)]),
        row(300, nan, &[]),
        row(300, nan, &[(0, 1.0)]),
        row(300, -infinity, &[]),
        row(300, -infinity, &[(200, -3e38)]),
        row(300, infinity, &[]),
        row(300, -infinity, &[(250, nan)]),
        row(300, 1.0, &[(33, infinity), (34, infinity), (1, -infinity)]),
    ];
    let short = vec![0.0, 1.0, 1.0, nan, 2.0, nan, -infinity, -infinity, -infinity, -0.0, 0.0, -1.0];
    vec![("ties", 512, ties.concat()), ("not_numbers", 300, not_numbers.concat()), ("short", 3, short)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    fn best(row: &[f64]) -> f64 {
        Op::from(Argmax).evaluate(&[rows_of(row.len(), row)]).unwrap()[0].to_f64()[0]
    }

    #[test]
    fn the_lowest_of_equals_wins() {
        assert_eq!(best(&[1.0, 3.0, 3.0, 2.0]), 1.0);
        assert_eq!(best(&[-1.0, -0.0, 0.0]), 1.0);
        assert_eq!(best(&[f64::NEG_INFINITY; 3]), 0.0);
    }

    #[test]
    fn the_first_nan_beats_every_number() {
        assert_eq!(best(&[f64::INFINITY, f64::NAN, 1.0, f64::NAN]), 1.0);
        assert_eq!(best(&[f64::NAN, f64::INFINITY]), 0.0);
    }

    #[test]
    fn rows_move_in_by_one_axis() {
        let x = Layout::contiguous(DType::F16, &[7, 2, 3, 5]).unwrap();
        assert_eq!(Op::from(Argmax).infer(&[x]).unwrap()[0].ne, [2, 3, 5, 1]);
        let none = Layout::contiguous(DType::F32, &[0, 0]).unwrap();
        assert_eq!(Op::from(Argmax).infer(&[none]).unwrap()[0].ne, [0, 1, 1, 1]);
    }

    #[test]
    fn rows_without_a_largest_element_are_refused() {
        let x = Layout::contiguous(DType::F32, &[0, 3]).unwrap();
        assert_eq!(
            Op::from(Argmax).infer(&[x]).unwrap_err().to_string(),
            "argmax: x has ne[0] = 0, expected at least 1 (each row needs a largest element)"
        );
        let x = Layout::contiguous(DType::F32, &[1 << 31]).unwrap();
        assert_eq!(
            Op::from(Argmax).infer(&[x]).unwrap_err().to_string(),
            "argmax: x has ne[0] = 2147483648, expected at most 2147483647 (the index is i32)"
        );
    }
}
