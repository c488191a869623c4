//! Each row divided by its Euclidean length.

mod cpu;
pub(crate) mod cuda;
