//! Jamba: Mamba layers with weighted norms of dt, B and C, and now and then attention without positions.
//!
//! A layer has attention where `attention.head_count_kv` gives it heads, and experts where it has a router.
//! Source: Lieber et al. 2024 (arXiv 2403.19887); keys and tensors as llama.cpp's architecture `jamba`.

use super::mamba::{Mamba, MambaSizes, Norms};
use super::stack::Unused;
use super::{
    Attention, AttentionKeys, Dense, ExpertKeys, Experts, Ffn, Hyper, Layer, ModelError, Position, Stack,
};
use crate::formats::Gguf;

/// Reads keys and checks tensors.
///
/// Errors: see [`super::load_model`].
pub fn load(gguf: &Gguf) -> Result<Stack, ModelError> {
    let mut hyper = Hyper::load(gguf)?;
    let sizes = MambaSizes::load(gguf, &mut hyper)?;
    let attention = AttentionKeys::load(gguf, &mut hyper, Position::None)?;
    let n_ff = hyper.size(gguf, "feed_forward_length")?;
    // A file without experts may say so with counts of 0.
    let mixed =
        hyper.has(gguf, "expert_count") && gguf.usize(&hyper.key("expert_count")).is_ok_and(|n| n > 0);
    let experts = match mixed {
        true => Some(ExpertKeys::load(gguf, &mut hyper, Some(&n_ff), false)?),
        false => None,
    };
    let idle: &[&str] = if mixed { &[] } else { &["expert_count", "expert_used_count"] };
    Stack::load(gguf, &hyper, Unused::Refused(idle), |loader, index| {
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
        let routed = loader.has(&format!("{prefix}.ffn_gate_inp.weight"));
        let ffn = match experts.as_ref().filter(|_| routed) {
            Some(experts) => Ffn::Experts(Box::new(Experts::load(loader, &prefix, experts)?)),
            None => Ffn::Dense(Box::new(Dense::load(loader, &prefix, "", &hyper.n_embd, &n_ff)?)),
        };
        Ok(layer.ffn(norm, ffn))
    })
}
