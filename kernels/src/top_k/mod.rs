//! Indices of the largest elements of each row.

mod cpu;
pub(crate) mod cuda;
