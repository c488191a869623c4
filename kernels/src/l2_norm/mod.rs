//! Each row divided by its Euclidean length.

pub(crate) mod cpu;
pub(crate) mod cuda;
