//! A CUDA driver on the CPU that executes the kernels of ssmgraph. A test tool.
//!
//! Built twice over: as `libcuda.so`, which a program that loads CUDA's driver at run time finds in its place, and
//! as a crate for tests, which [`install`] the library into their process and steer it.

mod driver;
pub mod engine;
mod install;

pub use driver::Counts;
pub use install::{Emulator, Fault, InstallError, install};
