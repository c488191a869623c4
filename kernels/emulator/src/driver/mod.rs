//! The emulated driver: CUDA's driver API on the CPU.

mod api;
mod capture;
mod counts;
mod device;
mod faults;
mod graph;
mod launch;
mod memory;
mod module;
mod ptx;
mod report;
mod settings;
mod state;
mod status;
mod stream;
mod work;

pub use counts::Counts;
