//! The mean of each row.

mod cpu;
pub(crate) mod cuda;
