//! Multiplication by one number and addition of another.

mod cpu;
pub(crate) mod cuda;
