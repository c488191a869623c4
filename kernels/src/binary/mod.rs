//! Element-wise arithmetic on two operands.

mod cpu;
pub(crate) mod cuda;
