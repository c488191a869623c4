//! The logarithm of a decay.

mod cpu;
pub(crate) mod cuda;
