//! RMS norm of each row, with an optional weight.
//! ```text
//! y[i, …] = x[i, …] / √( mean_i x² + eps ) · w[i, …]
//! ```
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | x | any | f32, f16, bf16 | rows to normalise |
//! | w | repeats into x | f32 | scale; an operand only when `weight` is set |
//!
//! Result: y, shape and type of x, packed. w is repeated along whole axes until it covers x, as ggml repeats
//! the second operand of MUL; usually it has one row of x's length. Refused: a w whose counts do not divide
//! x's, an eps that is negative or not finite. A row of zeros with eps = 0 gives NaN.
//! Source: Zhang & Sennrich 2019 (arXiv 1910.07467) equation 4; ggml's RMS_NORM, followed by MUL.

use crate::case::{Arrangement, Values, row_inputs, rows_of};
use crate::shape::{FLOATS, expect_dtype, expect_eps, expect_repeats, repeated_index};
use crate::tensor::rows;
use crate::{Case, DType, Define, Layout, Layouts, OpError, Operand, Storage, Tolerance, ViewMut, Views};
use smallvec::smallvec;

/// RMS norm of each row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// Added to the mean square.
    pub eps: f32,
    /// Whether a second operand scales the normalised values.
    pub weight: bool,
}

const OPERANDS: &[Operand] = &[
    Operand::new("x", "any", "f32, f16, bf16", "rows to normalise"),
    Operand::new("w", "repeats into x", "f32", "scale of the normalised values"),
];

impl Define for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn operands(&self) -> &'static [Operand] {
        if self.weight { OPERANDS } else { &OPERANDS[..1] }
    }

    fn result_name(&self, _index: usize) -> String {
        "y".into()
    }

    fn attributes(&self) -> String {
        format!("eps={:e}{}", self.eps, if self.weight { ", weight" } else { "" })
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        let op = self.name();
        expect_eps(op, self.eps)?;
        expect_dtype(op, "x", &inputs[0], FLOATS)?;
        if let Some(w) = inputs.get(1) {
            expect_dtype(op, "w", w, &[DType::F32])?;
            expect_repeats(op, "w", w, &inputs[0], "x")?;
        }
        Ok(smallvec![inputs[0].to_contiguous()])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[0] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let x = &inputs[0];
        let layout = x.layout();
        for [i1, i2, i3] in rows(layout.ne) {
            let squares: f64 = (0..layout.ne[0]).map(|i| x.get([i, i1, i2, i3]).powi(2)).sum();
            let rms = (squares / layout.ne[0] as f64 + f64::from(self.eps)).sqrt();
            for i in 0..layout.ne[0] {
                let index = [i, i1, i2, i3];
                let scale = inputs.get(1).map_or(1.0, |w| w.get(repeated_index(w.ne(), index)));
                results[0].set(index, x.get(index) / rms * scale);
            }
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        let plain = |eps| RmsNorm { eps, weight: false };
        let weighted = RmsNorm { eps: 1e-6, weight: true };
        for (name, x) in row_inputs(20) {
            let tolerance = match x.layout().dtype {
                DType::F32 if x.ne()[0] > 1000 => Tolerance::F32_SUM,
                dtype => Tolerance::rounded_to(dtype),
            };
            let w = Values::new(21).tensor(DType::F32, &[x.ne()[0]], 0.5, 1.5);
            if !w.layout().is_empty() {
                cases.push(Case::new(format!("weight_{name}"), weighted, vec![x.clone(), w], tolerance));
            }
            cases.push(Case::new(name, plain(1e-5), vec![x], tolerance));
        }
        let mut values = Values::new(22);
        for &arrangement in Arrangement::ALL {
            for w_ne in [[34, 1, 1, 1], [34, 4, 3, 2], [17, 2, 1, 2], [1, 4, 1, 1]] {
                let x = values.arranged(arrangement, DType::F32, &[34, 4, 3, 2], -2.0, 2.0);
                let w = values.arranged(arrangement, DType::F32, &w_ne, 0.5, 1.5);
                let name = format!("weight_{w_ne:?}_{}", arrangement.name());
                cases.push(Case::new(name, weighted, vec![x, w], Tolerance::F32));
            }
        }
        let x = values.tensor(DType::F32, &[33, 3], -2.0, 2.0);
        cases.push(Case::new("large_eps", plain(0.5), vec![x], Tolerance::F32));
        let x = values.tensor(DType::F32, &[33, 3], -1e-6, 1e-6);
        cases.push(Case::new("tiny_values", plain(1e-12), vec![x], Tolerance::F32));
        // Squares that f32 cannot hold.
        for size in [1e25, 1e-25] {
            let x = values.tensor(DType::F32, &[33, 3], -size, size);
            cases.push(Case::new(format!("size_{size:e}"), plain(0.0), vec![x], Tolerance::F32));
        }
        let specials = [
            [0.0, 0.0, -0.0, 0.0],
            [1.0, f64::NAN, 2.0, 3.0],
            [1.0, f64::INFINITY, 2.0, -3.0],
            [1.0, 2.0, 3.0, 4.0],
        ];
        let x = rows_of(4, specials.as_flattened());
        cases.push(Case::new("special_values", plain(1e-5), vec![x], Tolerance::F32));
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostTensor, Op};

    fn f32s(ne: &[usize], values: &[f32]) -> HostTensor {
        HostTensor::from_f32(ne, values).unwrap()
    }

    #[test]
    fn weight_repeats_along_whole_axes() {
        // Rows (1, 1, 1, 1) and (2, 2, 2, 2) both normalise to ones.
        let x = f32s(&[4, 2], &[1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]);
        let w = f32s(&[2, 2], &[3.0, 5.0, 7.0, 9.0]);
        let y = &Op::from(RmsNorm { eps: 0.0, weight: true }).evaluate(&[x, w]).unwrap()[0];
        assert_eq!(y.to_f64(), [3.0, 5.0, 3.0, 5.0, 7.0, 9.0, 7.0, 9.0]);
    }

    #[test]
    fn eps_is_added_to_the_mean_square() {
        let y = &Op::from(RmsNorm { eps: 3.0, weight: false })
            .evaluate(&[f32s(&[2], &[1.0, -1.0])])
            .unwrap()[0];
        assert_eq!(y.to_f64(), [0.5, -0.5]);
    }

    #[test]
    fn refusals_name_operand_and_axis() {
        let layout = |ne: &[usize]| Layout::contiguous(DType::F32, ne).unwrap();
        let op = Op::from(RmsNorm { eps: 1e-5, weight: true });
        assert_eq!(
            op.infer(&[layout(&[6, 4]), layout(&[4])]).unwrap_err().to_string(),
            "rms_norm: w has ne[0] = 4, which does not divide 6 (ne[0] of x)"
        );
        assert_eq!(
            op.infer(&[layout(&[6, 4])]).unwrap_err().to_string(),
            "rms_norm: 1 operands, expected 2 (x, w)"
        );
        assert_eq!(
            Op::from(RmsNorm { eps: -1.0, weight: false }).infer(&[layout(&[6])]).unwrap_err().to_string(),
            "rms_norm: eps = -1, expected a finite number of at least 0"
        );
    }
}
