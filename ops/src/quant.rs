//! The Q8_0 block format: 32 signed bytes with one `f16` scale.
//! Source: the public block layout of ggml; rounding as its reference quantiser.

/// Elements in one Q8_0 block.
pub const Q8_0_BLOCK: usize = 32;
