//! Running sums along each row.

mod cpu;
pub(crate) mod cuda;
mod scan;
