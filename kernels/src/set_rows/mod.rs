//! Rows written into a table, at places given by index.

mod cpu;
pub(crate) mod cuda;
