//! A CUDA driver on the CPU that executes the kernels of ssmgraph. A test tool.

pub mod engine;
