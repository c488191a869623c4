//! The sum of all elements.

mod cpu;
pub(crate) mod cuda;
