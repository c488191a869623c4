//! Element-wise arithmetic on two operands.

pub(crate) mod cpu;
pub(crate) mod cuda;
