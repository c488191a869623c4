//! ggml and llama.cpp beside ours: the crate `llama-cpp-sys-2`, which feature `peer-ggml` builds.
//!
//! Foreign functions are called here alone; what is built on them is safe to call.

mod llama;
mod ops;

pub use llama::{Answer, Context, Model, Placement, load_plugin, quiet};
pub use ops::{Comparison, compare};
