//! The causal convolution in front of a scan.

pub(crate) mod cpu;
pub(crate) mod cuda;
