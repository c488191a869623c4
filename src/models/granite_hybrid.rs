//! Granite 4 hybrids: Mamba-2 layers and now and then attention, with scaled embeddings, branches and logits.
//!
//! A layer has attention where `attention.head_count_kv` gives it heads, and experts where it has their tensors. Keys
//! and tensors as llama.cpp's architecture `granitehybrid`.

use super::mamba2::{Mamba2, Mamba2Sizes};
use super::stack::Unused;
use super::{Attention, AttentionKeys, ExpertKeys, Ffn, Hyper, Layer, ModelError, Position, Stack};
use crate::formats::{Gguf, GgufError};

/// Reads keys and checks tensors.
///
/// Errors: see [`super::load_model`].
pub fn load(gguf: &Gguf) -> Result<Stack, ModelError> {
    let mut hyper = Hyper::load(gguf)?;
    let sizes = Mamba2Sizes::load(gguf, &mut hyper)?;
    let position = position(gguf, &mut hyper)?;
    let attention = AttentionKeys::load(gguf, &mut hyper, position)?;
    let scales = Scales::load(gguf, &mut hyper)?;
    let n_ff = hyper.size(gguf, "feed_forward_length")?;
    let experts = ExpertKeys::load_if_any(gguf, &mut hyper, &n_ff, true)?;
    let stack = Stack::load(gguf, &hyper, Unused::Refused(&[]), |loader, index| {
        let prefix = format!("blk.{index}");
        let layer = Layer::load(loader, &prefix, &hyper)?.residual_scale(scales.residual);
        let layer = match attention.is_recurrent(index) {
            true => layer.mixer(Mamba2::load(loader, &prefix, &sizes, true)?),
            false => layer.mixer(Attention::load(loader, &prefix, &attention, index, false)?),
        };
        let norm =
            loader.vector(&format!("{prefix}.ffn_norm.weight"), std::slice::from_ref(&hyper.n_embd))?;
        let ffn = Ffn::load(loader, &prefix, &hyper, &n_ff, experts.as_ref())?;
        Ok(layer.ffn(norm, ffn))
    })?;
    Ok(stack.scales(scales.embedding, scales.logits))
}

/// A file says with `rope.scaling.finetuned` = false that its attention knows no positions.
fn position(gguf: &Gguf, hyper: &mut Hyper) -> Result<Position, ModelError> {
    const NAME: &str = "rope.scaling.finetuned";
    let turned = GgufError::optional(gguf.bool(&hyper.key(NAME)))?.unwrap_or(true);
    hyper.note(NAME, turned.to_string());
    if turned {
        return Ok(Position::Normal);
    }
    // Read, so that they count as known; without positions they change nothing.
    hyper.size_if_there(gguf, "rope.dimension_count")?;
    hyper.number(gguf, "rope.freq_base")?;
    Ok(Position::None)
}

/// Factors of the model's own.
struct Scales {
    embedding: f32,
    residual: f32,
    logits: f32,
}

impl Scales {
    fn load(gguf: &Gguf, hyper: &mut Hyper) -> Result<Scales, ModelError> {
        // 0 is how files say that there is none.
        let mut scale = |name: &str| -> Result<f32, ModelError> {
            Ok(hyper.number(gguf, name)?.filter(|&scale| scale != 0.0).unwrap_or(1.0))
        };
        let (embedding, residual) = (scale("embedding_scale")?, scale("residual_scale")?);
        // A divisor, unlike the others.
        let divisor = scale("logit_scale")?;
        let logits = 1.0 / divisor;
        if !logits.is_finite() {
            return Err(hyper.refused(
                "logit_scale",
                &divisor.to_string(),
                "a number that 1 can be divided by",
            ));
        }
        Ok(Scales { embedding, residual, logits })
    }
}
