//! Matrix products with picked matrices.

mod cpu;
pub(crate) mod cuda;
