//! How element-wise kernels walk over their tensors: axes merged where every tensor allows, in quads where
//! every row and address allows. The device side is in `quad.cuh`.

use super::{DeviceTensor, GRID_X_MAX};
use crate::Declined;
use ssmgraph_ops::Layout;

/// Threads of a block of an element-wise kernel.
pub(crate) const ELEMENTWISE_THREADS: usize = 256;
/// Elements that one block covers.
pub(crate) const ELEMENTWISE_SPAN: usize = 4 * ELEMENTWISE_THREADS;

/// Declines more elements than a line of blocks reaches, each of which covers `span`.
pub(crate) fn reached(count: usize, span: usize) -> Result<(), Declined> {
    match count.div_ceil(span) <= GRID_X_MAX {
        true => Ok(()),
        false => Err(Declined("more elements than one launch reaches".into())),
    }
}

/// The same memory, its axes of one element repeated to the shape `ne` by strides of 0; `None` where an axis
/// has some other count.
pub(crate) fn stretched(tensor: &DeviceTensor, ne: [usize; 4]) -> Option<DeviceTensor> {
    let Layout { dtype, ne: own, mut nb } = tensor.layout;
    for axis in 0..4 {
        match own[axis] {
            count if count == ne[axis] => {}
            1 => nb[axis] = 0,
            _ => return None,
        }
    }
    Some(DeviceTensor { layout: Layout { dtype, ne, nb }, ..*tensor })
}

/// The same elements of tensors of one shape in as few axes as all their strides allow, in the same order.
/// Axes of one element vanish. Types keep their sizes, so that a count on axis 0 stays one of elements.
pub(crate) fn merged<const N: usize>(tensors: [DeviceTensor; N]) -> [DeviceTensor; N] {
    let ne = tensors[0].layout.ne;
    let mut counts = [1; 4];
    let mut strides = [[0; 4]; N];
    let mut axes = 0;
    for axis in (0..4).filter(|&axis| ne[axis] != 1) {
        let nb = tensors.map(|tensor| tensor.layout.nb[axis]);
        let follows = axes > 0 && (0..N).all(|i| nb[i] == strides[i][axes - 1] * counts[axes - 1]);
        if follows {
            counts[axes - 1] *= ne[axis];
            continue;
        }
        counts[axes] = ne[axis];
        (0..N).for_each(|i| strides[i][axes] = nb[i]);
        axes += 1;
    }
    std::array::from_fn(|i| {
        let mut layout = Layout { ne: counts, nb: strides[i], ..tensors[i].layout };
        if axes == 0 {
            layout.nb[0] = layout.dtype.block_bytes();
        }
        DeviceTensor { layout, ..tensors[i] }
    })
}

/// Whether merged tensors can be read and written four neighbours at a time. A row of stride 0 can be, its
/// one element four times over: `load_quad_or_one`.
pub(crate) fn in_quads(tensors: &[DeviceTensor]) -> bool {
    tensors.iter().all(|DeviceTensor { address, layout }| {
        let size = layout.dtype.block_bytes();
        let quad = 4 * size;
        let one_row = layout.ne[1..] == [1; 3];
        let stride = layout.nb[0];
        let aligned = address.is_multiple_of(quad as u64)
            && (1..4).all(|axis| layout.ne[axis] == 1 || layout.nb[axis].is_multiple_of(quad));
        (one_row || layout.ne[0].is_multiple_of(4)) && (stride == 0 || (stride == size && aligned))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssmgraph_ops::DType;

    fn tensor(ne: [usize; 4], nb: [usize; 4]) -> DeviceTensor {
        DeviceTensor { address: 256, layout: Layout::strided(DType::F32, ne, nb).expect("a small shape") }
    }

    #[test]
    fn axes_merge_where_all_tensors_allow() {
        let packed = tensor([4, 3, 2, 5], [4, 16, 48, 96]);
        let gapped = tensor([4, 3, 2, 5], [4, 20, 60, 120]);
        assert_eq!(merged([packed])[0].layout.ne, [120, 1, 1, 1]);
        let [a, b] = merged([packed, gapped]);
        assert_eq!((a.layout.ne, b.layout.ne), ([4, 30, 1, 1], [4, 30, 1, 1]));
        assert_eq!((a.layout.nb[1], b.layout.nb[1]), (16, 20));
    }

    #[test]
    fn ones_stretch_and_other_counts_do_not() {
        let row = tensor([4, 1, 1, 1], [4, 16, 16, 16]);
        let [wide, packed] =
            merged([stretched(&row, [4, 3, 2, 1]).expect("ones"), tensor([4, 3, 2, 1], [4, 16, 48, 96])]);
        assert_eq!((wide.layout.ne, wide.layout.nb[1]), ([4, 6, 1, 1], 0));
        assert!(in_quads(&[wide, packed]));
        assert_eq!(stretched(&row, [8, 3, 2, 1]), None);
    }

    #[test]
    fn quads_need_their_alignment() {
        let gapped = tensor([4, 3, 1, 1], [4, 20, 60, 60]);
        assert!(!in_quads(&[gapped]));
        assert!(in_quads(&[tensor([7, 1, 1, 1], [4, 4, 4, 4])]));
        assert!(!in_quads(&[DeviceTensor { address: 260, ..tensor([8, 1, 1, 1], [4, 4, 4, 4]) }]));
    }
}
