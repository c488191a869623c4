//! Element-wise functions of one operand.

mod cpu;
