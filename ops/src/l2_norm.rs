//! Each row divided by its Euclidean length.
//! ```text
//! Max: y[i, …] = x[i, …] / max( √(Σ_i x²), eps )
//! Add: y[i, …] = x[i, …] / √( Σ_i x² + eps )
//! ```
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | x | any | f32, f16, bf16 | rows to normalise |
//!
//! Result: y, shape and type of x, packed. A NaN anywhere makes its whole row NaN, in both forms. A row of
//! zeros with eps = 0 gives NaN. Refused: an eps that is negative or not finite.
//! Source: `Max` is ggml's L2_NORM on the CPU and torch.nn.functional.normalize; `Add` is the norm of q and k
//! in the published Gated DeltaNet programs.

use crate::case::{Values, row_inputs, rows_of};
use crate::shape::{FLOATS, expect_dtype, expect_eps};
use crate::tensor::rows;
use crate::{Case, DType, Define, Layout, Layouts, OpError, Operand, Storage, Tolerance, ViewMut, Views};
use smallvec::smallvec;

/// How eps enters the divisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// max(√Σx², eps)
    Max,
    /// √(Σx² + eps)
    Add,
}

/// Each row divided by its Euclidean length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct L2Norm {
    /// Keeps the divisor away from 0; a length in `Max`, the square of one in `Add`.
    pub eps: f32,
    /// How eps enters the divisor.
    pub form: Form,
}

const OPERANDS: &[Operand] = &[Operand::new("x", "any", "f32, f16, bf16", "rows to normalise")];

impl L2Norm {
    /// The divisor of a row whose squares add up to `squares`.
    pub(crate) fn divisor(&self, squares: f64) -> f64 {
        let eps = f64::from(self.eps);
        match self.form {
            Form::Max if squares.sqrt() < eps => eps,
            Form::Max => squares.sqrt(),
            Form::Add => (squares + eps).sqrt(),
        }
    }
}

impl Define for L2Norm {
    fn name(&self) -> &'static str {
        "l2_norm"
    }

    fn operands(&self) -> &'static [Operand] {
        OPERANDS
    }

    fn result_name(&self, _index: usize) -> String {
        "y".into()
    }

    fn attributes(&self) -> String {
        let form = match self.form {
            Form::Max => "max",
            Form::Add => "add",
        };
        format!("eps={:e}, form={form}", self.eps)
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
        let layout = x.layout();
        for [i1, i2, i3] in rows(layout.ne) {
            let squares = (0..layout.ne[0]).map(|i| x.get([i, i1, i2, i3]).powi(2)).sum();
            let divisor = self.divisor(squares);
            for i in 0..layout.ne[0] {
                results[0].set([i, i1, i2, i3], x.get([i, i1, i2, i3]) / divisor);
            }
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for (form_name, form) in [("max", Form::Max), ("add", Form::Add)] {
            let op = |eps| L2Norm { eps, form };
            for (name, x) in row_inputs(30) {
                let tolerance = match x.layout().dtype {
                    DType::F32 if x.ne()[0] > 1000 => Tolerance::F32_SUM,
                    dtype => Tolerance::rounded_to(dtype),
                };
                cases.push(Case::new(format!("{form_name}_{name}"), op(1e-6), vec![x], tolerance));
            }
            let mut values = Values::new(31);
            let mut add = |name: &str, eps, x| {
                cases.push(Case::new(format!("{form_name}_{name}"), op(eps), vec![x], Tolerance::F32));
            };
            add("large_eps", 100.0, values.tensor(DType::F32, &[33, 3], -2.0, 2.0));
            add("tiny_values", 1e-6, values.tensor(DType::F32, &[33, 3], -1e-8, 1e-8));
            // Squares that f32 cannot hold.
            add("size_1e25", 1e-6, values.tensor(DType::F32, &[33, 3], -1e25, 1e25));
            add("size_1e-25", 0.0, values.tensor(DType::F32, &[33, 3], -1e-25, 1e-25));
            let specials = [
                [0.0, -0.0, 0.0, 0.0],
                [1.0, f64::NAN, 2.0, 3.0],
                [1.0, f64::INFINITY, 2.0, -3.0],
                [1.0, 2.0, 3.0, 4.0],
            ];
            add("special_values", 1e-6, rows_of(4, specials.as_flattened()));
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostTensor, Op};

    fn row(form: Form, eps: f32, values: &[f32]) -> Vec<f64> {
        let x = HostTensor::from_f32(&[values.len()], values).unwrap();
        Op::from(L2Norm { eps, form }).evaluate(&[x]).unwrap()[0].to_f64()
    }

    #[test]
    fn eps_is_a_floor_or_a_summand() {
        assert_eq!(row(Form::Max, 1.0, &[3.0, 4.0]), [3.0f32 / 5.0, 4.0 / 5.0].map(f64::from));
        assert_eq!(row(Form::Max, 10.0, &[3.0, 4.0]), [3.0f32 / 10.0, 4.0 / 10.0].map(f64::from));
        assert_eq!(row(Form::Add, 11.0, &[3.0, 4.0]), [0.5, 4.0f32 as f64 / 6.0].map(|v| v as f32 as f64));
    }

    #[test]
    fn a_nan_spoils_its_row_and_zeros_stay() {
        for form in [Form::Max, Form::Add] {
            assert!(row(form, 1e-6, &[1.0, f32::NAN]).iter().all(|v| v.is_nan()));
            assert_eq!(row(form, 1e-6, &[0.0, 0.0]), [0.0, 0.0]);
        }
    }

    #[test]
    fn refusals_name_what_came() {
        let x = Layout::contiguous(DType::I32, &[3]).unwrap();
        assert_eq!(
            Op::from(L2Norm { eps: 0.0, form: Form::Max }).infer(&[x]).unwrap_err().to_string(),
            "l2_norm: x has type i32, expected f32 or f16 or bf16"
        );
        assert_eq!(
            Op::from(L2Norm { eps: f32::INFINITY, form: Form::Add }).infer(&[x]).unwrap_err().to_string(),
            "l2_norm: eps = inf, expected a finite number of at least 0"
        );
    }
}
