//! What models are stored in: the GGUF container and the tokenizer inside it.

pub mod gguf;
pub mod tokenizer;

pub use gguf::{Gguf, GgufError};
pub use tokenizer::{Tokenizer, TokenizerError};
