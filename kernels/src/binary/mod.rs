//! Element-wise arithmetic on two operands.

mod cpu;
