//! The same elements, in index order, under another shape. Nothing is moved: the result shows the bytes of x.
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | x | any with as many elements as `ne` | any | anything |
//!
//! The result has the shape `ne` and the type of x. Axes are split freely and merged where they are packed on
//! one another. Refused: another number of elements, axes that would merge but are not packed.
//! Source: ggml's RESHAPE, extended to views that can be reshaped without a copy.

use crate::case::{Arrangement, Values};
use crate::{Case, DType, Define, HostTensor, Layout, Layouts, OpError, Operand, Storage, Tolerance};
use crate::{ViewMut, Views};
use smallvec::smallvec;

/// The same elements under another shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reshape {
    /// Element counts of the result, innermost axis first.
    pub ne: [usize; 4],
}

const OPERANDS: &[Operand] =
    &[Operand::new("x", "any with as many elements as the result", "any", "anything")];

impl Define for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
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
        let layout = inputs[0].reshape(&self.ne).map_err(|error| error.of(self.name(), "x"))?;
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
        let mut add = |name: String, x: HostTensor, ne: [usize; 4]| {
            cases.push(Case::new(name, Reshape { ne }, vec![x], Tolerance::EXACT));
        };
        let mut tensor = |arrangement: Arrangement, dtype: DType, ne: &[usize]| {
            values.arranged(arrangement, dtype, ne, -100.0, 100.0)
        };
        for &arrangement in Arrangement::ALL {
            // Splitting an axis never needs packed axes.
            let x = tensor(arrangement, DType::F32, &[6, 35, 4]);
            add(format!("split_{}", arrangement.name()), x.clone(), [6, 5, 7, 4]);
            add(format!("split_inner_{}", arrangement.name()), x, [2, 3, 35, 4]);
        }
        let plain = Arrangement::Contiguous;
        for ne in [[408, 1, 1, 1], [1, 1, 1, 408], [24, 17, 1, 1], [3, 2, 34, 2], [17, 4, 3, 2]] {
            let name = ne.map(|n| n.to_string()).join("_");
            add(format!("packed_to_{name}"), tensor(plain, DType::F32, &[17, 4, 3, 2]), ne);
        }
        add("gapped_rows_merged".into(), tensor(Arrangement::GappedElements, DType::F32, &[9, 5]), [45, 1, 1, 1]);
        for dtype in [DType::F16, DType::BF16, DType::I32, DType::I64] {
            add(format!("{dtype}"), tensor(Arrangement::OddStrides, dtype, &[15, 1, 4]), [5, 3, 1, 4]);
        }
        add("q8_0".into(), tensor(plain, DType::Q8_0, &[64, 3, 2]), [32, 12, 1, 1]);
        add("q8_0_gapped".into(), tensor(Arrangement::GappedRows, DType::Q8_0, &[64, 6]), [32, 2, 3, 2]);
        for ne in [[0, 3, 1, 1], [3, 0, 1, 1], [3, 1, 0, 1], [3, 1, 1, 0]] {
            add(format!("empty_{ne:?}"), tensor(plain, DType::F32, &ne), [7, 2, 0, 1]);
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    #[test]
    fn refusals_say_what_to_do() {
        let refused = |x: Layout, ne: [usize; 4]| Op::from(Reshape { ne }).infer(&[x]).unwrap_err().to_string();
        let x = Layout::contiguous(DType::F32, &[4, 3]).unwrap();
        assert_eq!(
            refused(x, [5, 2, 1, 1]),
            "reshape: x: 12 elements cannot take the shape [5, 2, 1, 1] of 10"
        );
        assert_eq!(
            refused(x.permute([1, 0, 2, 3]).unwrap(), [12, 1, 1, 1]),
            "reshape: x: f32[3, 4]:nb[16, 4, 48, 48] is not packed enough for the shape [12, 1, 1, 1]; take cont() of it first"
        );
    }
}
