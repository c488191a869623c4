//! The sum of each row.

pub(crate) mod cpu;
pub(crate) mod cuda;
