//! The gated delta rule.

mod block;
pub(crate) mod cpu;
pub(crate) mod cuda;
mod step;
mod token;
