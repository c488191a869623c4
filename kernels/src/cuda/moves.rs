//! Moves of bytes between strided tensors of any type; `move.cuh` is the device side.

use super::walk::{merged, stretched};
use super::{DeviceTensor, GRID_X_MAX, Params};

/// Threads of a block that moves.
pub(crate) const MOVE_THREADS: usize = 256;
/// Units that one block moves where their size is the one the layouts allow.
const MOVE_SPAN: usize = 4 * MOVE_THREADS;

/// One move, its tensors counted in units on axis 0.
pub(crate) struct Move {
    from: DeviceTensor,
    to: DeviceTensor,
    unit: usize,
    walk: i32,
    /// Blocks for it; decided by layouts alone.
    pub(crate) blocks: usize,
}

impl Move {
    /// All elements of `from` in index order to those of `to`, which has as many of the same type.
    pub(crate) fn between(from: &DeviceTensor, to: &DeviceTensor) -> Move {
        Move::with_grid(from, to, |from, to| {
            let ([from, to], size) = in_small_units([*from, *to]);
            if from.layout.ne == to.layout.ne {
                return Move::of(merged([from, to]), size, 0);
            }
            let ([from], [to]) = (merged([from]), merged([to]));
            Move::of([from, to], size, 1)
        })
    }

    /// `from`, repeated along whole axes, to all of `to`.
    pub(crate) fn repeating(from: &DeviceTensor, to: &DeviceTensor) -> Move {
        Move::with_grid(from, to, |from, to| {
            let ([from, to], size) = in_small_units([*from, *to]);
            match stretched(&from, to.layout.ne) {
                Some(from) => Move::of(merged([from, to]), size, 0),
                None => Move::of([from, to], size, 2),
            }
        })
    }

    /// The move with the grid that aligned addresses would give it.
    fn with_grid(
        from: &DeviceTensor,
        to: &DeviceTensor,
        plan: impl Fn(&DeviceTensor, &DeviceTensor) -> Move,
    ) -> Move {
        let aligned = [from, to].map(|tensor| DeviceTensor { address: 0, ..*tensor });
        let blocks = plan(&aligned[0], &aligned[1]).units().div_ceil(MOVE_SPAN).min(GRID_X_MAX / 2);
        Move { blocks, ..plan(from, to) }
    }

    fn of(tensors: [DeviceTensor; 2], size: usize, walk: i32) -> Move {
        let unit = unit_of(&tensors, size);
        let [from, to] = tensors.map(|tensor| match unit == size {
            // A unit that is a whole element leaves spread rows as they are.
            true => tensor,
            false => counted_in(unit, size, tensor),
        });
        Move { from, to, unit, walk, blocks: 0 }
    }

    fn units(&self) -> usize {
        self.to.layout.ne.iter().product()
    }

    /// Appends a `Move`.
    pub(crate) fn append(&self, params: Params) -> Params {
        params.tensor(&self.from).tensor(&self.to).size(self.units()).i32(self.unit as i32).i32(self.walk)
    }

    /// Appends a `Move` of nothing.
    pub(crate) fn append_none(params: Params) -> Params {
        params.optional(None).optional(None).size(0).i32(1).i32(0)
    }
}

/// The tensor with whole blocks as its elements.
pub(crate) fn counted_in_blocks(tensor: &DeviceTensor) -> DeviceTensor {
    let mut layout = tensor.layout;
    layout.ne = layout.blocks();
    DeviceTensor { layout, ..*tensor }
}

/// The tensors counted in elements, or in parts of a block whose size a thread can move; and that size in bytes.
fn in_small_units(tensors: [DeviceTensor; 2]) -> ([DeviceTensor; 2], usize) {
    let dtype = tensors[0].layout.dtype;
    if !dtype.is_block() {
        return (tensors, dtype.block_bytes());
    }
    let tensors = tensors.map(|tensor| counted_in_blocks(&tensor));
    let unit = common_unit(&tensors, dtype.block_bytes());
    (tensors.map(|tensor| counted_in(unit, dtype.block_bytes(), tensor)), unit)
}

/// Bytes that can move at once where elements have `size` bytes.
fn unit_of(tensors: &[DeviceTensor; 2], size: usize) -> usize {
    let packed = |tensor: &DeviceTensor| tensor.layout.nb[0] == size || tensor.layout.ne[0] <= 1;
    match tensors.iter().all(packed) {
        true => common_unit(tensors, size),
        false => size,
    }
}

/// The largest power of two up to 16 that divides addresses, strides and packed rows of elements of `size` bytes.
fn common_unit(tensors: &[DeviceTensor; 2], size: usize) -> usize {
    let mut bits = 16;
    for DeviceTensor { address, layout } in tensors {
        bits |= *address as usize | (layout.ne[0] * size);
        bits |= (1..4).filter(|&axis| layout.ne[axis] > 1).fold(0, |bits, axis| bits | layout.nb[axis]);
    }
    1 << bits.trailing_zeros()
}

/// A tensor of packed elements of `size` bytes as one of units.
fn counted_in(unit: usize, size: usize, tensor: DeviceTensor) -> DeviceTensor {
    let mut layout = tensor.layout;
    layout.ne[0] = layout.ne[0] * size / unit;
    layout.nb[0] = unit;
    DeviceTensor { layout, ..tensor }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssmgraph_ops::{DType, Layout};

    fn tensor(address: u64, dtype: DType, ne: &[usize]) -> DeviceTensor {
        DeviceTensor { address, layout: Layout::contiguous(dtype, ne).expect("a small shape") }
    }

    #[test]
    fn units_are_as_wide_as_rows_and_addresses_allow() {
        let unit = |address, dtype, ne: &[usize]| {
            let x = tensor(address, dtype, ne);
            Move::between(&x, &x).unit
        };
        assert_eq!(unit(256, DType::F32, &[6, 2]), 16);
        assert_eq!(unit(260, DType::F32, &[6, 2]), 4);
        assert_eq!(unit(256, DType::F16, &[5, 3]), 2);
        assert_eq!(unit(256, DType::Q8_0, &[64, 4]), 16);
        assert_eq!(unit(258, DType::Q8_0, &[64, 4]), 2);
        assert_eq!(unit(257, DType::Q8_0, &[64, 4]), 1);
    }

    #[test]
    fn the_grid_does_not_depend_on_addresses() {
        let blocks = |address| {
            let x = tensor(address, DType::F16, &[5000, 3]);
            Move::between(&x, &x).blocks
        };
        assert_eq!(blocks(256), blocks(258));
    }
}
