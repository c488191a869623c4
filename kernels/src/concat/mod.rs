//! Tensors put one after another along an axis.

mod cpu;
pub(crate) mod cuda;
