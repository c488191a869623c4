//! Qwen3-Next: the mixers of Qwen3.5 with other pairs of heads, and experts in every layer.
//!
//! Keys and tensors as llama.cpp's architecture `qwen3next`; q, k, v and z may come from two matrices
//! (`attn_qkv`, `attn_gate`) or, in older files, from one (`ssm_in`). Layers that predict further tokens are not
//! run.

use super::qwen35::HybridKeys;
use super::stack::Unused;
use super::{ExpertKeys, Experts, Ffn, Hyper, ModelError, Position, Stack};
use crate::formats::Gguf;
use ssmgraph_ops::gated_delta_net::Grouping;

const SHARED: &str = "expert_shared_feed_forward_length";

/// Reads keys and checks tensors.
///
/// Errors: see [`super::load_model`].
pub fn load(gguf: &Gguf) -> Result<Stack, ModelError> {
    let mut hyper = Hyper::load(gguf)?;
    let keys = HybridKeys::load(gguf, &mut hyper, Position::Neox, Grouping::Interleaved)?;
    if !hyper.has(gguf, SHARED) {
        // Elsewhere a model may lack the shared expert; this one's absence is a missing key.
        hyper.size(gguf, SHARED)?;
    }
    let experts = ExpertKeys::load(gguf, &mut hyper, None, true)?;
    // The length of a network that no layer has.
    Stack::load(gguf, &hyper, Unused::Refused(&["feed_forward_length"]), |loader, index| {
        let (prefix, layer) = keys.layer(loader, &hyper, index)?;
        let norm = format!("{prefix}.post_attention_norm.weight");
        let norm = loader.vector(&norm, std::slice::from_ref(&hyper.n_embd))?;
        let ffn = Experts::load(loader, &prefix, &experts)?;
        Ok(layer.ffn(norm, Ffn::Experts(Box::new(ffn))))
    })
}
