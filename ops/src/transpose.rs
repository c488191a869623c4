//! Axes 0 and 1 exchanged: `y[i0, i1, i2, i3] = x[i1, i0, i2, i3]`. Nothing is moved.
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | x | any | any but block formats | anything |
//!
//! Refused: block formats, whose blocks lie along axis 0.
//! Source: ggml's TRANSPOSE.

use crate::case::{Arrangement, Values};
use crate::{Case, DType, Define, Layout, Layouts, OpError, Operand, Storage, Tolerance, ViewMut, Views};
use smallvec::smallvec;

/// Axes 0 and 1 exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transpose;

const OPERANDS: &[Operand] = &[Operand::new("x", "any", "any but block formats", "anything")];

impl Define for Transpose {
    fn name(&self) -> &'static str {
        "transpose"
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
        let layout = inputs[0].permute([1, 0, 2, 3]).map_err(|error| error.of(self.name(), "x"))?;
        Ok(smallvec![layout])
    }

    fn storage(&self) -> Storage {
        Storage::View { offset_bytes: 0 }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let layout = self.infer(&[*inputs[0].layout()])?[0];
        results[0].copy_from(&inputs[0].window(layout, 0).map_err(|error| error.of(self.name(), "x"))?);
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        let mut values = Values::new(1);
        let mut add = |name: String, arrangement: Arrangement, dtype: DType, ne: [usize; 4]| {
            let x = values.arranged(arrangement, dtype, &ne, -100.0, 100.0);
            cases.push(Case::new(name, Transpose, vec![x], Tolerance::EXACT));
        };
        for &arrangement in Arrangement::ALL {
            add(arrangement.name().into(), arrangement, DType::F32, [17, 3, 2, 2]);
        }
        for dtype in [DType::F16, DType::BF16, DType::I32, DType::I64] {
            add(format!("{dtype}"), Arrangement::GappedRows, dtype, [5, 33, 2, 1]);
        }
        for size in [1, 15, 16, 31, 33, 64, 65, 130] {
            add(format!("size_{size}"), Arrangement::Contiguous, DType::F32, [size, 4, 1, 1]);
        }
        for ne in [[0, 3, 1, 2], [3, 0, 1, 2], [3, 1, 0, 2], [3, 1, 2, 0]] {
            add(format!("empty_{ne:?}"), Arrangement::Contiguous, DType::F32, ne);
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostTensor, Op};

    #[test]
    fn rows_become_columns() {
        let x = HostTensor::from_f32(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let y = Op::from(Transpose).evaluate(&[x]).unwrap().remove(0);
        assert_eq!(y.ne(), [2, 3, 1, 1]);
        assert_eq!(y.to_f64(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }

    #[test]
    fn block_formats_are_refused() {
        let x = Layout::contiguous(DType::Q8_0, &[32, 4]).unwrap();
        let error = Op::from(Transpose).infer(&[x]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "transpose: x: axis 0 of q8_0 holds whole blocks and cannot become axis 1"
        );
    }
}
