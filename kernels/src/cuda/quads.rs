//! Which rows a kernel may read or write four elements at a time.

use super::DeviceTensor;
use ssmgraph_ops::DType;

/// The number of `QuadForm` (see `row_quads.cuh`) for the rows of a tensor of floats: quads where every row starts
/// at a multiple of four elements' bytes and is packed.
pub(crate) fn quad_form(tensor: &DeviceTensor) -> i32 {
    let layout = &tensor.layout;
    let quad_bytes = 4 * layout.dtype.block_bytes();
    let outer = (1..4).filter(|&axis| layout.ne[axis] > 1);
    let aligned = tensor.address.is_multiple_of(quad_bytes as u64)
        && outer.into_iter().all(|axis| layout.nb[axis].is_multiple_of(quad_bytes));
    match (aligned && layout.rows_packed(), layout.dtype) {
        (false, _) => 0,
        (true, DType::F32) => 1,
        (true, _) => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssmgraph_ops::Layout;

    #[test]
    fn quads_need_packed_rows_at_aligned_starts() {
        let form = |address, dtype, ne, nb| {
            quad_form(&DeviceTensor { address, layout: Layout::strided(dtype, ne, nb).unwrap() })
        };
        assert_eq!(form(256, DType::F32, [8, 3, 1, 1], [4, 32, 96, 96]), 1);
        assert_eq!(form(256, DType::F32, [6, 1, 1, 1], [4, 24, 24, 24]), 1);
        assert_eq!(form(256, DType::BF16, [4, 2, 1, 1], [2, 8, 16, 16]), 2);
        assert_eq!(form(260, DType::F32, [8, 3, 1, 1], [4, 32, 96, 96]), 0);
        assert_eq!(form(256, DType::F32, [6, 2, 1, 1], [4, 24, 48, 48]), 0);
        assert_eq!(form(256, DType::F32, [8, 1, 1, 1], [8, 64, 64, 64]), 0);
    }
}
