//! Jamba: Mamba layers with weighted norms of dt, B and C, and now and then attention without positions.
//!
//! A layer has attention where `attention.head_count_kv` gives it heads, and experts where it has their tensors.
//! Source: Lieber et al. 2024 (arXiv 2403.19887); keys and tensors as llama.cpp's architecture `jamba`.

use super::mamba::{Mamba, MambaSizes, Norms};
use super::stack::Unused;
use super::{Attention, AttentionKeys, ExpertKeys, Ffn, Hyper, Layer, ModelError, Position, Stack};
use crate::formats::Gguf;

/// Reads keys and checks tensors.
///
/// Errors: see [`super::load_model`].
pub fn load(gguf: &Gguf) -> Result<Stack, ModelError> {
    let mut hyper = Hyper::load(gguf)?;
    let sizes = MambaSizes::load(gguf, &mut hyper)?;
    let attention = AttentionKeys::load(gguf, &mut hyper, Position::None)?;
    let n_ff = hyper.size(gguf, "feed_forward_length")?;
    let experts = ExpertKeys::load_if_any(gguf, &mut hyper, &n_ff, false)?;
    Stack::load(gguf, &hyper, Unused::Refused(&[]), |loader, index| {
        let prefix = format!("blk.{index}");
        let layer = Layer::load(loader, &prefix, &hyper)?;
        let layer = if attention.is_recurrent(index) {
            let norms = Norms::weighted(loader, &prefix, &sizes)?;
            layer.mixer(Mamba::load(loader, &prefix, &sizes, norms)?)
        } else {
            layer.mixer(Attention::load(loader, &prefix, &attention, index, false)?)
        };
        let norm =
            loader.vector(&format!("{prefix}.ffn_norm.weight"), std::slice::from_ref(&hyper.n_embd))?;
        let ffn = Ffn::load(loader, &prefix, &hyper, &n_ff, experts.as_ref())?;
        Ok(layer.ffn(norm, ffn))
    })
}
