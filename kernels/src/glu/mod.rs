//! Gated linear units.

mod cpu;
pub(crate) mod cuda;
