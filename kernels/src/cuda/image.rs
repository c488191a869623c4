//! Kernel sources and the PTX built from them, embedded.

/// A `.cu` file and what was compiled from it.
#[derive(Debug, PartialEq, Eq)]
pub struct Image {
    /// Name of the op's folder.
    pub name: &'static str,
    /// CUDA C++, which includes files of [`HEADERS`] by name.
    pub source: &'static str,
    /// PTX for `compute_70`.
    pub ptx: &'static str,
}

impl Image {
    /// Bytes of an entry's parameter; `None` when the PTX has no such entry, or one that does not take one
    /// struct by value.
    pub fn parameter_bytes(&self, entry: &str) -> Option<usize> {
        let start = self.ptx.find(&format!(".entry {entry}("))?;
        let declaration = &self.ptx[start..];
        let parameters = &declaration[..declaration.find(')')?];
        let mut sizes = parameters.split(".param ").skip(1).map(|parameter| {
            let size = parameter.split_once('[')?.1.split_once(']')?.0;
            size.parse().ok()
        });
        let only = sizes.next()?;
        if sizes.next().is_some() { None } else { only }
    }
}

/// The image of an op's folder.
macro_rules! embedded {
    ($name:literal) => {
        $crate::cuda::Image {
            name: $name,
            source: include_str!(concat!("../", $name, "/cuda.cu")),
            ptx: include_str!(concat!("../", $name, "/cuda.ptx")),
        }
    };
}
pub(crate) use embedded;

/// Files that sources include, by the name they are included under.
pub const HEADERS: &[(&str, &str)] = &[
    ("../shared/common.cuh", include_str!("../shared/common.cuh")),
    ("../shared/ids.cuh", include_str!("../shared/ids.cuh")),
    ("../shared/math.cuh", include_str!("../shared/math.cuh")),
    ("../shared/move.cuh", include_str!("../shared/move.cuh")),
    ("../shared/norm.cuh", include_str!("../shared/norm.cuh")),
    ("../shared/order.cuh", include_str!("../shared/order.cuh")),
    ("../shared/product.cuh", include_str!("../shared/product.cuh")),
    ("../shared/q8_0.cuh", include_str!("../shared/q8_0.cuh")),
    ("../shared/quad.cuh", include_str!("../shared/quad.cuh")),
    ("../shared/reduce.cuh", include_str!("../shared/reduce.cuh")),
    ("../shared/row_quads.cuh", include_str!("../shared/row_quads.cuh")),
];

/// Every image.
pub const IMAGES: &[&Image] = &[
    &crate::unary::cuda::IMAGE,
    &crate::binary::cuda::IMAGE,
    &crate::scale::cuda::IMAGE,
    &crate::glu::cuda::IMAGE,
    &crate::cpy::cuda::IMAGE,
    &crate::concat::cuda::IMAGE,
    &crate::repeat::cuda::IMAGE,
    &crate::get_rows::cuda::IMAGE,
    &crate::set_rows::cuda::IMAGE,
    &crate::soft_max::cuda::IMAGE,
    &crate::argmax::cuda::IMAGE,
    &crate::cumsum::cuda::IMAGE,
    &crate::gated_norm::cuda::IMAGE,
    &crate::l2_norm::cuda::IMAGE,
    &crate::norm::cuda::IMAGE,
    &crate::rms_norm::cuda::IMAGE,
    &crate::rope::cuda::IMAGE,
    &crate::attention::cuda::IMAGE,
    &crate::sum::cuda::IMAGE,
    &crate::sum_rows::cuda::IMAGE,
    &crate::mul_mat::cuda::IMAGE,
    &crate::mul_mat_id::cuda::IMAGE,
    &crate::top_k::cuda::IMAGE,
    &crate::ssm_conv::cuda::IMAGE,
    &crate::ssm_conv_step::cuda::IMAGE,
    &crate::ssm_scan::cuda::IMAGE,
    &crate::gated_delta_net::cuda::IMAGE,
    &crate::decay_gate::cuda::IMAGE,
    &crate::qk_norm::cuda::IMAGE,
];
