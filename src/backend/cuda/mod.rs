//! NVIDIA GPUs.

pub mod cache;
pub mod compile;
mod hash;
