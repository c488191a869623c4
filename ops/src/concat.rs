//! Tensors put one after another along an axis.
//! ```text
//! y[…, i, …] = part p at i − (counts of the parts before p), for the p that i falls into
//! ```
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | part (one or more) | equal on all axes but `axis` | any, the same for all | anything |
//!
//! The result is packed; its count on `axis` is the sum. Along axis 0 of a block format whole blocks follow
//! each other. Refused: no such axis, another type, another count on any other axis.
//! Source: ggml's CONCAT, for any number of parts.

use crate::case::{Arrangement, Values};
use crate::shape::{expect_ne, expect_same_dtype, packed};
use crate::tensor::indices;
use crate::{Case, DType, Define, HostTensor, Layout, Layouts, OpError, Operand, Storage, Tolerance};
use crate::{ViewMut, Views};
use smallvec::smallvec;

/// Tensors put one after another along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concat {
    /// The axis along which the parts follow each other, 0 to 3.
    pub axis: usize,
}

const OPERANDS: &[Operand] = &[Operand {
    repeats: true,
    ..Operand::new("part", "equal on all axes but one", "any, the same for all", "anything")
}];

impl Define for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn operands(&self) -> &'static [Operand] {
        OPERANDS
    }

    fn result_name(&self, _index: usize) -> String {
        "y".into()
    }

    fn attributes(&self) -> String {
        format!("axis={}", self.axis)
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        let op = self.name();
        if self.axis > 3 {
            return Err(OpError::new(op, format!("axis = {}, expected 0 to 3", self.axis)));
        }
        let first = &inputs[0];
        let mut ne = first.ne;
        for (index, part) in inputs.iter().enumerate().skip(1) {
            let name = format!("part {index}");
            expect_same_dtype(op, &name, part, first, "part 0")?;
            for axis in (0..4).filter(|&axis| axis != self.axis) {
                expect_ne(op, &name, part, axis, first.ne[axis], "the shape of part 0")?;
            }
            ne[self.axis] = ne[self.axis].checked_add(part.ne[self.axis]).ok_or_else(|| {
                OpError::new(op, format!("{name} makes ne[{}] larger than can be counted", self.axis))
            })?;
        }
        Ok(smallvec![packed(op, "y", first.dtype, &ne)?])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let mut before = 0;
        for part in inputs {
            let counts = part.layout().blocks();
            for index in indices(counts) {
                let mut to = index;
                to[self.axis] += before;
                results[0].block_mut(to).copy_from_slice(part.block(index));
            }
            before += counts[self.axis];
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        let mut values = Values::new(1);
        let mut add = |name: String, axis: usize, parts: Vec<HostTensor>| {
            cases.push(Case::new(name, Concat { axis }, parts, Tolerance::EXACT));
        };
        let mut part = |arrangement: Arrangement, dtype: DType, ne: [usize; 4]| {
            values.arranged(arrangement, dtype, &ne, -100.0, 100.0)
        };
        let along = |axis: usize, count: usize, mut ne: [usize; 4]| {
            ne[axis] = count;
            ne
        };
        let plain = Arrangement::Contiguous;
        for axis in 0..4 {
            let ne = [17, 3, 2, 2];
            for &arrangement in Arrangement::ALL {
                let first = part(arrangement, DType::F32, ne);
                let second = part(plain, DType::F32, along(axis, 5, ne));
                let third = part(arrangement, DType::F32, along(axis, 1, ne));
                let name = arrangement.name();
                add(format!("axis_{axis}_{name}_first"), axis, vec![first, second.clone()]);
                add(format!("axis_{axis}_{name}_second"), axis, vec![second, third]);
            }
            for dtype in [DType::F16, DType::BF16, DType::I32, DType::I64] {
                let parts = [4, 1, 3].map(|n| part(Arrangement::GappedRows, dtype, along(axis, n, [5, 3, 2, 2])));
                add(format!("axis_{axis}_{dtype}"), axis, parts.to_vec());
            }
            let counts = if axis == 0 { [32, 96] } else { [1, 2] };
            let parts = counts.map(|n| part(Arrangement::Permuted, DType::Q8_0, along(axis, n, [64, 3, 2, 2])));
            add(format!("axis_{axis}_q8_0"), axis, parts.to_vec());
            add(format!("axis_{axis}_alone"), axis, vec![part(Arrangement::Transposed, DType::F32, ne)]);
            let parts = [3, 0, 2, 0].map(|n| part(plain, DType::F32, along(axis, n, ne)));
            add(format!("axis_{axis}_empty_parts"), axis, parts.to_vec());
            for empty in 0..4 {
                let parts = [2, 3].map(|n| part(plain, DType::F32, along(empty, 0, along(axis, n, ne))));
                add(format!("axis_{axis}_empty_axis_{empty}"), axis, parts.to_vec());
            }
        }
        for size in [1, 15, 16, 31, 33, 64, 65, 130] {
            // The window of a causal convolution: three old columns before the new ones.
            let parts = [3, size].map(|n| part(plain, DType::F32, [n, 7, 2, 1]));
            add(format!("three_and_{size}"), 0, parts.to_vec());
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    #[test]
    fn parts_follow_each_other() {
        let a = HostTensor::from_f32(&[1, 2], &[1.0, 2.0]).unwrap();
        let b = HostTensor::from_f32(&[2, 2], &[3.0, 4.0, 5.0, 6.0]).unwrap();
        let y = Op::from(Concat { axis: 0 }).evaluate(&[a.clone(), b.clone(), a.clone()]).unwrap().remove(0);
        assert_eq!(y.ne(), [4, 2, 1, 1]);
        assert_eq!(y.to_f64(), [1.0, 3.0, 4.0, 1.0, 2.0, 5.0, 6.0, 2.0]);
        let y = Op::from(Concat { axis: 1 }).evaluate(&[b.clone(), b]).unwrap().remove(0);
        assert_eq!(y.to_f64(), [3.0, 4.0, 5.0, 6.0, 3.0, 4.0, 5.0, 6.0]);
    }

    #[test]
    fn refusals_name_the_part() {
        let layout = |dtype: DType, ne: &[usize]| Layout::contiguous(dtype, ne).unwrap();
        let refused = |axis: usize, parts: &[Layout]| {
            Op::from(Concat { axis }).infer(parts).unwrap_err().to_string()
        };
        let row = layout(DType::F32, &[4, 2]);
        assert_eq!(
            refused(0, &[row, row, layout(DType::F32, &[4, 3])]),
            "concat: part 2 has ne[1] = 3, expected 2 (the shape of part 0)"
        );
        assert_eq!(
            refused(0, &[row, layout(DType::F16, &[4, 2])]),
            "concat: part 1 has type f16, expected f32 (the type of part 0)"
        );
        assert_eq!(refused(4, &[row]), "concat: axis = 4, expected 0 to 3");
        assert_eq!(refused(0, &[]), "concat: 0 operands, expected at least 1 (part)");
        let huge = layout(DType::I8, &[isize::MAX as usize]);
        assert_eq!(
            refused(0, &[huge, huge, huge]),
            "concat: part 2 makes ne[0] larger than can be counted"
        );
    }
}
