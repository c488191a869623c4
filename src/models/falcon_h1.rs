//! Falcon-H1: attention and Mamba-2 side by side in every layer.
//!
//! Converters fold the multipliers of the published model into its weights. Keys and tensors as llama.cpp's
//! architecture `falcon-h1`.

use super::mamba2::{Mamba2, Mamba2Sizes};
use super::stack::Unused;
use super::{Attention, AttentionKeys, Dense, Ffn, Hyper, Layer, ModelError, Position, Stack};
use crate::formats::Gguf;

/// Reads keys and checks tensors.
///
/// Errors: see [`super::load_model`].
pub fn load(gguf: &Gguf) -> Result<Stack, ModelError> {
    let mut hyper = Hyper::load(gguf)?;
    let sizes = Mamba2Sizes::load(gguf, &mut hyper)?;
    let attention = AttentionKeys::load(gguf, &mut hyper, Position::Neox)?;
    let n_ff = hyper.size(gguf, "feed_forward_length")?;
    Stack::load(gguf, &hyper, Unused::Refused(&[]), |loader, index| {
        let prefix = format!("blk.{index}");
        let layer = Layer::load(loader, &prefix, &hyper)?
            .mixer(Attention::load(loader, &prefix, &attention, index, false)?)
            .mixer(Mamba2::load(loader, &prefix, &sizes, false)?);
        // The name as files have it, without the usual ending.
        let norm = loader.vector(&format!("{prefix}.ffn_norm"), std::slice::from_ref(&hyper.n_embd))?;
        let ffn = Dense::load(loader, &prefix, "", &hyper.n_embd, &n_ff)?;
        Ok(layer.ffn(norm, Ffn::Dense(Box::new(ffn))))
    })
}
