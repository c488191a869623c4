//! Each row without its mean, divided by its standard deviation: layer norm without weight and bias.
//! ```text
//! m = mean_i x[i, …]
//! y[i, …] = ( x[i, …] − m ) / √( mean_i (x[i, …] − m)² + eps )
//! ```
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | x | any | f32, f16, bf16 | rows to normalise |
//!
//! Result: y, shape and type of x, packed. A NaN or an infinity anywhere makes its whole row NaN. A row of equal
//! elements with eps = 0 gives NaN. Refused: an eps that is negative or not finite.
//! Source: Ba, Kiros & Hinton 2016 (arXiv 1607.06450) equation 3; ggml's NORM.

use crate::case::{Values, row_inputs, rows_of};
use crate::shape::{FLOATS, expect_dtype, expect_eps};
use crate::tensor::rows;
use crate::{Case, DType, Define, Layout, Layouts, OpError, Operand, Storage, Tolerance, ViewMut, Views};
use smallvec::smallvec;

/// Each row without its mean, divided by its standard deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Added to the variance.
    pub eps: f32,
}

const OPERANDS: &[Operand] = &[Operand::new("x", "any", "f32, f16, bf16", "rows to normalise")];

impl Define for Norm {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn operands(&self) -> &'static [Operand] {
        OPERANDS
    }

    fn result_name(&self, _index: usize) -> String {
        "y".into()
    }

    fn attributes(&self) -> String {
        format!("eps={:e}", self.eps)
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        expect_eps(self.name(), self.eps)?;
        expect_dtype(self.name(), "x", &inputs[0], FLOATS)?;
        Ok(smallvec![inputs[0].to_contiguous()])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[0] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let x = &inputs[0];
        let ne = x.ne();
        let length = ne[0] as f64;
        for [i1, i2, i3] in rows(ne) {
            let element = |i: usize| x.get([i, i1, i2, i3]);
            let mean = (0..ne[0]).map(element).sum::<f64>() / length;
            let variance = (0..ne[0]).map(|i| (element(i) - mean).powi(2)).sum::<f64>() / length;
            let divisor = (variance + f64::from(self.eps)).sqrt();
            for i in 0..ne[0] {
                results[0].set([i, i1, i2, i3], (element(i) - mean) / divisor);
            }
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for (name, x) in row_inputs(33) {
            let tolerance = match x.layout().dtype {
                DType::F32 if x.ne()[0] > 1000 => Tolerance::F32_SUM,
                dtype => Tolerance::rounded_to(dtype),
            };
            cases.push(Case::new(name, Norm { eps: 1e-5 }, vec![x], tolerance));
        }
        let mut values = Values::new(34);
        let mut add = |name: &str, eps, x| {
            cases.push(Case::new(name, Norm { eps }, vec![x], Tolerance::F32));
        };
        add("large_eps", 100.0, values.tensor(DType::F32, &[33, 3], -2.0, 2.0));
        add("eps_0", 0.0, values.tensor(DType::F32, &[33, 3], -2.0, 2.0));
        // A mean far above the deviation, as squares summed without it would lose.
        add("far_from_0", 1e-5, values.tensor(DType::F32, &[1000, 3], 4095.0, 4097.0));
        // Squares that f32 cannot hold.
        add("size_1e25", 1e-5, values.tensor(DType::F32, &[33, 3], -1e25, 1e25));
        add("size_1e-25", 0.0, values.tensor(DType::F32, &[33, 3], -1e-25, 1e-25));
        add("equal_elements", 1e-5, rows_of(4, &[2.0; 8]));
        let specials =
            [[0.0, -0.0, 0.0, 0.0], [1.0, f64::NAN, 2.0, 3.0], [1.0, f64::INFINITY, 2.0, -3.0], [1.0, 2.0, 3.0, 4.0]];
        add("special_values", 1e-5, rows_of(4, specials.as_flattened()));
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostTensor, Op};

    #[test]
    fn rows_have_mean_0_and_deviation_1() {
        let x = HostTensor::from_f32(&[2, 2], &[1.0, 3.0, -5.0, 5.0]).unwrap();
        let y = Op::from(Norm { eps: 0.0 }).evaluate(&[x]).unwrap()[0].to_f64();
        assert_eq!(y, [-1.0, 1.0, -1.0, 1.0]);
    }

    #[test]
    fn refusals_name_what_came() {
        let x = Layout::contiguous(DType::F32, &[3]).unwrap();
        assert_eq!(
            Op::from(Norm { eps: -1.0 }).infer(&[x]).unwrap_err().to_string(),
            "norm: eps = -1, expected a finite number of at least 0"
        );
    }
}
