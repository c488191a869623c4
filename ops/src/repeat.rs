//! A tensor repeated along whole axes to fill a shape: `y[i] = x[i mod shape of x]`, axis by axis.
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | x | each count divides that of `ne` | any | anything |
//!
//! The result has the shape `ne` and the type of x and is packed. Refused: counts that do not divide.
//! Source: ggml's REPEAT.

use crate::case::{Arrangement, Values};
use crate::shape::{expect_repeats, packed, repeated_index};
use crate::tensor::indices;
use crate::{Case, DType, Define, HostTensor, Layout, Layouts, OpError, Operand, Storage, Tolerance};
use crate::{ViewMut, Views};
use smallvec::smallvec;

/// A tensor repeated along whole axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// Element counts of the result, innermost axis first.
    pub ne: [usize; 4],
}

const OPERANDS: &[Operand] =
    &[Operand::new("x", "each count divides that of the result", "any", "anything")];

impl Define for Repeat {
    fn name(&self) -> &'static str {
        "repeat"
    }

    fn operands(&self) -> &'static [Operand] {
        OPERANDS
    }

    fn result_name(&self, _index: usize) -> String {
        "y".into()
    }

    fn attributes(&self) -> String {
        format!("ne={:?}", self.ne)
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        let y = packed(self.name(), "y", inputs[0].dtype, &self.ne)?;
        expect_repeats(self.name(), "x", &inputs[0], &y, "the result")?;
        Ok(smallvec![y])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let counts = inputs[0].layout().blocks();
        for index in indices(results[0].layout().blocks()) {
            let from = repeated_index(counts, index);
            results[0].block_mut(index).copy_from_slice(inputs[0].block(from));
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        let mut values = Values::new(1);
        let mut add = |name: String, x: HostTensor, ne: [usize; 4]| {
            cases.push(Case::new(name, Repeat { ne }, vec![x], Tolerance::EXACT));
        };
        for &arrangement in Arrangement::ALL {
            let x = values.arranged(arrangement, DType::F32, &[17, 3, 2, 2], -1.0, 1.0);
            add(format!("rows_{}", arrangement.name()), x.clone(), [17, 6, 2, 6]);
            add(format!("all_{}", arrangement.name()), x, [34, 6, 6, 4]);
        }
        for axis in 0..4 {
            let (mut from, to) = ([6, 4, 2, 3], [6, 4, 2, 3]);
            from[axis] = 1;
            add(format!("one_along_{axis}"), values.tensor(DType::F32, &from, -1.0, 1.0), to);
            from[axis] = 0;
            add(format!("empty_along_{axis}"), values.tensor(DType::F32, &from, -1.0, 1.0), from);
            let mut to = [6, 4, 2, 3];
            to[axis] = 0;
            add(format!("to_nothing_along_{axis}"), values.tensor(DType::F32, &[6, 4, 2, 3], -1.0, 1.0), to);
        }
        for size in [1, 15, 16, 31, 33, 64, 65, 130] {
            add(format!("one_to_{size}"), values.tensor(DType::F32, &[1, 2], -1.0, 1.0), [size, 4, 1, 1]);
            add(format!("size_{size}_twice"), values.tensor(DType::F32, &[size], -1.0, 1.0), [2 * size, 3, 1, 1]);
        }
        for dtype in [DType::F16, DType::BF16, DType::I32, DType::I64, DType::Q8_0] {
            let x = values.arranged(Arrangement::GappedRows, dtype, &[32, 2], -100.0, 100.0);
            add(format!("{dtype}"), x, [96, 4, 3, 1]);
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    #[test]
    fn the_whole_tensor_is_tiled() {
        let x = HostTensor::from_f32(&[2, 2], &[1.0, 2.0, 3.0, 4.0]).unwrap();
        let y = Op::from(Repeat { ne: [4, 2, 1, 1] }).evaluate(&[x]).unwrap().remove(0);
        assert_eq!(y.to_f64(), [1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0]);
    }

    #[test]
    fn counts_must_divide() {
        let refused = |x: &[usize], ne: [usize; 4]| {
            let x = Layout::contiguous(DType::F32, x).unwrap();
            Op::from(Repeat { ne }).infer(&[x]).unwrap_err().to_string()
        };
        assert_eq!(
            refused(&[2, 3], [2, 4, 1, 1]),
            "repeat: x has ne[1] = 3, which does not divide 4 (ne[1] of the result)"
        );
        assert_eq!(
            refused(&[1 << 20], [1 << 40, 1 << 40, 1, 1]),
            "repeat: y: f32 [1099511627776, 1099511627776, 1, 1] has more bytes than can be addressed"
        );
    }
}
