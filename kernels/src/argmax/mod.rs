//! The index of the largest element of each row.

mod cpu;
pub(crate) mod cuda;
