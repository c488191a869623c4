//! Queries and keys divided by their lengths.

mod cpu;
pub(crate) mod cuda;
