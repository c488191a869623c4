//! The gated delta rule.

pub(crate) mod cpu;
mod step;
