//! Axes in another order: axis `i` of x becomes axis `axes[i]` of the result. Nothing is moved.
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | x | any | any; block formats keep axis 0 in place | anything |
//!
//! Refused: `axes` that name an axis twice or none at all, a block format whose axis 0 would move.
//! Source: ggml's PERMUTE.

use crate::case::{Arrangement, Values};
use crate::{Case, DType, Define, Layout, Layouts, OpError, Operand, Storage, Tolerance, ViewMut, Views};
use smallvec::smallvec;

/// Axes in another order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permute {
    /// Where each axis of x goes.
    pub axes: [usize; 4],
}

const OPERANDS: &[Operand] = &[Operand::new("x", "any", "any", "anything")];

impl Define for Permute {
    fn name(&self) -> &'static str {
        "permute"
    }

    fn operands(&self) -> &'static [Operand] {
        OPERANDS
    }

    fn result_name(&self, _index: usize) -> String {
        "y".into()
    }

    fn attributes(&self) -> String {
        format!("axes={:?}", self.axes)
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        let layout = inputs[0].permute(self.axes).map_err(|error| error.of(self.name(), "x"))?;
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
        for number in 0..256 {
            let axes = [number % 4, number / 4 % 4, number / 16 % 4, number / 64];
            if (0..4).any(|axis| !axes.contains(&axis)) {
                continue;
            }
            let name = axes.map(|axis| axis.to_string()).join("_");
            let x = values.tensor(DType::F32, &[7, 3, 2, 5], -1.0, 1.0);
            cases.push(Case::new(format!("axes_{name}"), Permute { axes }, vec![x], Tolerance::EXACT));
        }
        let mut add = |name: String, arrangement: Arrangement, dtype: DType, ne: [usize; 4], axes: [usize; 4]| {
            let x = values.arranged(arrangement, dtype, &ne, -100.0, 100.0);
            cases.push(Case::new(name, Permute { axes }, vec![x], Tolerance::EXACT));
        };
        for &arrangement in Arrangement::ALL {
            add(arrangement.name().into(), arrangement, DType::F32, [17, 3, 2, 2], [2, 0, 1, 3]);
        }
        for dtype in [DType::F16, DType::BF16, DType::I32, DType::I64] {
            add(format!("{dtype}"), Arrangement::GappedRows, dtype, [17, 3, 2, 1], [1, 2, 3, 0]);
        }
        add("q8_0".into(), Arrangement::Contiguous, DType::Q8_0, [64, 3, 2, 2], [0, 3, 1, 2]);
        for ne in [[0, 3, 1, 2], [3, 0, 1, 2], [3, 1, 0, 2], [3, 1, 2, 0]] {
            add(format!("empty_{ne:?}"), Arrangement::Contiguous, DType::F32, ne, [3, 1, 0, 2]);
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostTensor, Op};

    #[test]
    fn axis_i_goes_to_axes_i() {
        let x = HostTensor::from_f32(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        // Axis 0 becomes axis 2, axis 1 becomes axis 0.
        let y = Op::from(Permute { axes: [2, 0, 1, 3] }).evaluate(&[x]).unwrap().remove(0);
        assert_eq!(y.ne(), [3, 1, 2, 1]);
        assert_eq!(y.to_f64(), [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
    }

    #[test]
    fn refusals_name_the_axes() {
        let refused = |dtype: DType, axes: [usize; 4]| {
            let x = Layout::contiguous(dtype, &[32, 32]).unwrap();
            Op::from(Permute { axes }).infer(&[x]).unwrap_err().to_string()
        };
        assert_eq!(
            refused(DType::F32, [0, 0, 1, 2]),
            "permute: x: axes [0, 0, 1, 2] are no permutation of 0, 1, 2, 3"
        );
        assert_eq!(
            refused(DType::F32, [0, 1, 2, 4]),
            "permute: x: axes [0, 1, 2, 4] are no permutation of 0, 1, 2, 3"
        );
        assert_eq!(
            refused(DType::Q8_0, [1, 0, 2, 3]),
            "permute: x: axis 0 of q8_0 holds whole blocks and cannot become axis 1"
        );
    }
}
