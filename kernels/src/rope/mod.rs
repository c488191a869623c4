//! Rotary position embedding.

mod cpu;
pub(crate) mod cuda;
