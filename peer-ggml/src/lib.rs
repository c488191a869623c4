//! ggml and llama.cpp beside ssmgraph: ops and whole models on their own backends, safe to call.
//!
//! Empty without the feature `ggml`, which builds the crate `llama-cpp-sys-2`. Foreign functions are called in this
//! crate alone.

#[cfg(feature = "ggml")]
mod device;
#[cfg(feature = "ggml")]
mod llama;
#[cfg(feature = "ggml")]
mod nodes;
#[cfg(feature = "ggml")]
mod work;

#[cfg(feature = "ggml")]
pub use device::{Device, ThreadPool, vectors};
#[cfg(feature = "ggml")]
pub use llama::{Answer, Context, Model, Placement, load_plugin, quiet};
#[cfg(feature = "ggml")]
pub use work::{Loaded, Work};
