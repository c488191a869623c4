//! Element-wise functions of one operand.

mod cpu;
pub(crate) mod cuda;
