//! The gated delta rule.

pub(crate) mod cpu;
pub(crate) mod cuda;
mod step;
