//! Copies into another layout, shape or type.

mod cpu;
pub(crate) mod cuda;
