//! Multiplication by one number and addition of another: `y[i] = x[i] · scale + bias`.
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | x | any | f32, f16, bf16 | any real number |
//!
//! The result has the shape and type of x and is packed. A scale of 0 does not remove NaN or ∞: their
//! product with 0 is NaN, as IEEE 754 has it.
//! Source: ggml's SCALE.

use crate::case::{Arrangement, Values};
use crate::shape::{FLOATS, expect_dtype};
use crate::tensor::indices;
use crate::{Case, DType, Define, HostTensor, Layout, Layouts, OpError, Operand, Storage, Tolerance};
use crate::{ViewMut, Views};
use smallvec::smallvec;

/// `y[i] = x[i] · scale + bias`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// The factor.
    pub scale: f32,
    /// The number added afterwards.
    pub bias: f32,
}

const OPERANDS: &[Operand] = &[Operand::new("x", "any", "f32, f16, bf16", "any real number")];

impl Define for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn operands(&self) -> &'static [Operand] {
        OPERANDS
    }

    fn result_name(&self, _index: usize) -> String {
        "y".into()
    }

    fn attributes(&self) -> String {
        if self.bias == 0.0 {
            format!("scale={}", self.scale)
        } else {
            format!("scale={} bias={}", self.scale, self.bias)
        }
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        expect_dtype(self.name(), "x", &inputs[0], FLOATS)?;
        Ok(smallvec![inputs[0].to_contiguous()])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[0] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let (scale, bias) = (f64::from(self.scale), f64::from(self.bias));
        for index in indices(inputs[0].ne()) {
            results[0].set(index, inputs[0].get(index) * scale + bias);
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        let mut values = Values::new(5);
        let op = Scale { scale: -1.75, bias: 0.3 };
        for &dtype in FLOATS {
            let tolerance = Tolerance::rounded_to(dtype);
            for &arrangement in Arrangement::ALL {
                let x = values.arranged(arrangement, dtype, &[37, 3, 2], -2.0, 2.0);
                cases.push(Case::new(format!("{dtype}_{}", arrangement.name()), op, vec![x], tolerance));
            }
        }
        for size in [1, 15, 16, 17, 31, 33, 64, 65, 130] {
            let x = values.tensor(DType::F32, &[size], -2.0, 2.0);
            cases.push(Case::new(format!("size_{size}"), op, vec![x], Tolerance::F32));
        }
        for (name, scale, bias) in [("without_bias", 0.125, 0.0), ("to_zero", 0.0, 0.0), ("to_bias", 0.0, 2.5)] {
            let x = values.tensor(DType::F32, &[35, 2], -2.0, 2.0);
            cases.push(Case::new(name, Scale { scale, bias }, vec![x], Tolerance::EXACT));
        }
        let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 3e38];
        let special = HostTensor::from_f32(&[special.len()], &special).expect("a short row");
        for (name, scale) in [("special", 2.0), ("special_to_zero", 0.0)] {
            let op = Scale { scale, bias: 0.0 };
            cases.push(Case::new(name, op, vec![special.clone()], Tolerance::EXACT));
        }
        for ne in [[0, 3, 1, 1], [3, 0, 1, 1], [3, 1, 0, 1], [3, 1, 1, 0]] {
            let x = values.tensor(DType::F32, &ne, -1.0, 1.0);
            cases.push(Case::new(format!("empty_{ne:?}"), op, vec![x], Tolerance::EXACT));
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    #[test]
    fn zero_times_nan_stays_nan() {
        let x = HostTensor::from_f32(&[3], &[f32::NAN, 4.0, f32::INFINITY]).unwrap();
        let y = Op::from(Scale { scale: 0.0, bias: 1.0 }).evaluate(&[x]).unwrap()[0].to_f64();
        assert!(y[0].is_nan() && y[1] == 1.0 && y[2].is_nan(), "{y:?}");
    }

    #[test]
    fn attributes_and_refusals() {
        assert_eq!(Scale { scale: 0.5, bias: 0.0 }.attributes(), "scale=0.5");
        assert_eq!(Scale { scale: 0.5, bias: -1.0 }.attributes(), "scale=0.5 bias=-1");
        let x = Layout::contiguous(DType::I32, &[3]).unwrap();
        let error = Op::from(Scale { scale: 1.0, bias: 0.0 }).infer(&[x]).unwrap_err();
        assert_eq!(error.to_string(), "scale: x has type i32, expected f32 or f16 or bf16");
    }
}
