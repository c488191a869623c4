//! A window into a tensor, given by shape, strides and offset: element `i` of the result is the one that lies
//! `offset_bytes + Σ i · nb` bytes after the first of x. Nothing is moved.
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | x | any | any | anything |
//!
//! The result has the shape `ne`, the strides `nb` and the type of x. Its elements may overlap, repeat (stride
//! 0) or show the gaps of x. Refused: a window that reaches past the last element of x, strides or an
//! offset that the element type is not aligned to.
//! Source: ggml's VIEW.

use crate::case::{Arrangement, Values};
use crate::{Case, DType, Define, HostTensor, Layout, Layouts, OpError, Operand, Storage, Tolerance};
use crate::{ViewMut, Views};
use smallvec::smallvec;

/// A window into a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Element counts of the result, innermost axis first.
    pub ne: [usize; 4],
    /// Byte strides of the result, innermost axis first.
    pub nb: [usize; 4],
    /// Bytes from the first element of x to the first of the result.
    pub offset_bytes: usize,
}

const OPERANDS: &[Operand] = &[Operand::new("x", "any", "any", "anything")];

impl Define for Window {
    fn name(&self) -> &'static str {
        "view"
    }

    fn operands(&self) -> &'static [Operand] {
        OPERANDS
    }

    fn result_name(&self, _index: usize) -> String {
        "y".into()
    }

    fn attributes(&self) -> String {
        format!("ne={:?} nb={:?} offset={}", self.ne, self.nb, self.offset_bytes)
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        let (op, x) = (self.name(), &inputs[0]);
        let y = Layout::strided(x.dtype, self.ne, self.nb).map_err(|error| error.of(op, "y"))?;
        let there = x.span_bytes();
        let end = self.offset_bytes.checked_add(y.span_bytes());
        if end.is_none_or(|end| end > there) {
            let what = format!(
                "{y} at offset {} has {} bytes, which reach past the {there} bytes of x",
                self.offset_bytes,
                y.span_bytes()
            );
            return Err(OpError::new(op, what));
        }
        if !self.offset_bytes.is_multiple_of(y.align()) {
            let what = format!(
                "offset = {}, expected a multiple of {} (the alignment of {})",
                self.offset_bytes,
                y.align(),
                x.dtype
            );
            return Err(OpError::new(op, what));
        }
        Ok(smallvec![y])
    }

    fn storage(&self) -> Storage {
        Storage::View { offset_bytes: self.offset_bytes }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let layout = self.infer(&[*inputs[0].layout()])?[0];
        let window = inputs[0].window(layout, self.offset_bytes);
        results[0].copy_from(&window.map_err(|error| error.of(self.name(), "x"))?);
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        let mut values = Values::new(1);
        let mut tensor = |arrangement: Arrangement, dtype: DType, ne: &[usize]| {
            values.arranged(arrangement, dtype, ne, -100.0, 100.0)
        };
        let mut add = |name: String, x: HostTensor, ne: [usize; 4], nb: [usize; 4], offset_bytes: usize| {
            cases.push(Case::new(name, Window { ne, nb, offset_bytes }, vec![x], Tolerance::EXACT));
        };
        for &arrangement in Arrangement::ALL {
            // The inner block of a larger tensor, whatever the strides of that one.
            let x = tensor(arrangement, DType::F32, &[9, 7, 3, 2]);
            let (nb, offset) = (x.layout().nb, x.layout().offset([2, 1, 1, 0]));
            add(format!("inner_{}", arrangement.name()), x, [5, 4, 2, 2], nb, offset);
        }
        for dtype in [DType::F16, DType::BF16, DType::I32, DType::I64, DType::Q8_0] {
            let x = tensor(Arrangement::Contiguous, dtype, &[64, 5, 2]);
            let (nb, offset) = (x.layout().nb, x.layout().offset([0, 2, 1, 0]));
            add(format!("{dtype}_row"), x, [32, 1, 1, 1], nb, offset);
        }
        let mut f32 = |ne: &[usize]| tensor(Arrangement::Contiguous, DType::F32, ne);
        add("one_repeated".into(), f32(&[3]), [5, 4, 1, 1], [0, 0, 0, 0], 8);
        add("row_repeated".into(), f32(&[7, 2]), [7, 6, 2, 1], [4, 0, 28, 0], 0);
        // The overlapping windows that a convolution of width 4 sees.
        add("sliding".into(), f32(&[20]), [4, 17, 1, 1], [4, 4, 0, 0], 0);
        add("odd_strides".into(), f32(&[6, 3]), [1, 3, 1, 1], [4000, 24, 8, 36], 12);
        add("everything".into(), f32(&[17, 3, 2]), [17, 3, 2, 1], [4, 68, 204, 408], 0);
        for axis in 0..4 {
            let mut ne = [3, 2, 1, 1];
            ne[axis] = 0;
            add(format!("empty_along_{axis}"), f32(&[3, 2]), ne, [4, 12, 24, 24], 24);
        }
        add("empty_of_empty".into(), f32(&[0]), [0, 5, 1, 1], [4, 1 << 20, 4, 4], 0);
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    #[test]
    fn elements_are_found_by_offset_and_stride() {
        let x = HostTensor::from_f32(&[6], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        let op = Window { ne: [2, 3, 1, 1], nb: [8, 4, 0, 0], offset_bytes: 4 };
        let y = Op::from(op).evaluate(&[x]).unwrap().remove(0);
        assert_eq!(y.to_f64(), [1.0, 3.0, 2.0, 4.0, 3.0, 5.0]);
    }

    #[test]
    fn windows_must_lie_inside() {
        let refused = |ne: [usize; 4], nb: [usize; 4], offset_bytes: usize| {
            let x = Layout::contiguous(DType::F32, &[6]).unwrap();
            Op::from(Window { ne, nb, offset_bytes }).infer(&[x]).unwrap_err().to_string()
        };
        assert_eq!(
            refused([6, 1, 1, 1], [4, 24, 24, 24], 4),
            "view: f32[6] at offset 4 has 24 bytes, which reach past the 24 bytes of x"
        );
        assert_eq!(
            refused([1, 1, 1, 1], [4, 4, 4, 4], usize::MAX - 1),
            "view: f32[1] at offset 18446744073709551614 has 4 bytes, which reach past the 24 bytes of x"
        );
        assert_eq!(
            refused([1, 1, 1, 1], [4, 4, 4, 4], 2),
            "view: offset = 2, expected a multiple of 4 (the alignment of f32)"
        );
        assert_eq!(
            refused([2, 1, 1, 1], [2, 4, 4, 4], 0),
            "view: y: f32[2]:nb[2, 4, 4, 4]: nb[0] = 2 is not a multiple of 4, the alignment of f32"
        );
    }
}
