//! The causal convolution with the window that it keeps.

mod cpu;
pub(crate) mod cuda;
