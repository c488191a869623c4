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
    ("../shared/math.cuh", include_str!("../shared/math.cuh")),
    ("../shared/norm.cuh", include_str!("../shared/norm.cuh")),
    ("../shared/quads.cuh", include_str!("../shared/quads.cuh")),
    ("../shared/reduce.cuh", include_str!("../shared/reduce.cuh")),
];

/// Every image.
pub const IMAGES: &[&Image] = &[
    &crate::argmax::cuda::IMAGE,
    &crate::cumsum::cuda::IMAGE,
    &crate::gated_norm::cuda::IMAGE,
    &crate::l2_norm::cuda::IMAGE,
    &crate::rms_norm::cuda::IMAGE,
    &crate::sum::cuda::IMAGE,
    &crate::sum_rows::cuda::IMAGE,
    &crate::unary::cuda::IMAGE,
];
