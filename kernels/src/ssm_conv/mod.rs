//! The causal convolution in front of a scan.

mod cpu;
pub(crate) mod cuda;
