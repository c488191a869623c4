//! ssmgraph's kernels as a ggml backend: `libssmgraph_ggml.so`, which an unmodified llama.cpp loads.
//!
//! ggml's interface is in [`abi`]; everything else of ggml that the plugin relies on is in [`host`]. A node of a graph
//! becomes one of our ops in [`translate`], a graph becomes a program of one of our backends in [`plan`]. Nothing here
//! knows how an op is computed. `docs/ggml-plugin.md` tells how to use it.

pub mod abi;
mod device;
mod fuse;
mod guard;
mod host;
mod memory;
mod plan;
mod registry;
mod stream;
mod tensor;
mod translate;

pub use registry::version;

use std::ffi::c_int;

/// The entry that ggml looks for: the registry of our devices, or null when this ggml is not one that the plugin was
/// written for.
#[unsafe(no_mangle)]
pub extern "C" fn ggml_backend_init() -> *mut abi::Registry {
    guard::guarded("ggml_backend_init", std::ptr::null_mut(), registry::registry)
}

/// How well the plugin fits this machine, for hosts that choose among variants: it chooses among vector instructions
/// itself, so it always fits.
#[unsafe(no_mangle)]
pub extern "C" fn ggml_backend_score() -> c_int {
    1
}
