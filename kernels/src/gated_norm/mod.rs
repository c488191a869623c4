//! RMS norm in groups, with a gate.

mod cpu;
pub(crate) mod cuda;
