//! Rows of a table, picked by index.

mod cpu;
pub(crate) mod cuda;
