//! Qwen3.5: three layers of the gated delta rule, then one of gated attention, and so on.
//!
//! Keys and tensors as llama.cpp's architecture `qwen35`. Layers that predict further tokens are not run.

use super::stack::Unused;
use super::{
    Attention, AttentionKeys, Delta, DeltaSizes, Dense, Ffn, Hyper, Layer, Loader, ModelError, Position,
    Stack,
};
use crate::formats::gguf::Value;
use crate::formats::{Gguf, GgufError};
use ssmgraph_ops::gated_delta_net::Grouping;

/// Reads keys and checks tensors.
///
/// Errors: see [`super::load_model`].
pub fn load(gguf: &Gguf) -> Result<Stack, ModelError> {
    let mut hyper = Hyper::load(gguf)?;
    let keys = HybridKeys::load(gguf, &mut hyper, Position::Sections, Grouping::Tiled)?;
    let n_ff = hyper.size(gguf, "feed_forward_length")?;
    Stack::load(gguf, &hyper, Unused::Refused(&[]), |loader, index| {
        let (prefix, layer) = keys.layer(loader, &hyper, index)?;
        let norm = loader
            .vector(&format!("{prefix}.post_attention_norm.weight"), std::slice::from_ref(&hyper.n_embd))?;
        let ffn = Dense::load(loader, &prefix, "", &hyper.n_embd, &n_ff)?;
        Ok(layer.ffn(norm, Ffn::Dense(Box::new(ffn))))
    })
}

/// Keys of the mixers of a Qwen hybrid.
pub(super) struct HybridKeys {
    attention: AttentionKeys,
    delta: DeltaSizes,
    grouping: Grouping,
    recurrent: Recurrent,
}

impl HybridKeys {
    pub fn load(
        gguf: &Gguf,
        hyper: &mut Hyper,
        position: Position,
        grouping: Grouping,
    ) -> Result<HybridKeys, ModelError> {
        hyper.skip_prediction_layers(gguf)?;
        Ok(HybridKeys {
            delta: DeltaSizes::load(gguf, hyper)?,
            attention: AttentionKeys::load(gguf, hyper, position)?,
            recurrent: Recurrent::load(gguf, hyper)?,
            grouping,
        })
    }

    /// The prefix of a layer's tensors, and the layer as far as its mixer.
    pub fn layer(
        &self,
        loader: &mut Loader<'_>,
        hyper: &Hyper,
        index: usize,
    ) -> Result<(String, Layer), ModelError> {
        let prefix = format!("blk.{index}");
        let layer = Layer::load(loader, &prefix, hyper)?;
        let layer = match self.recurrent.at(index) {
            true => layer.mixer(Delta::load(loader, &prefix, &self.delta, self.grouping)?),
            false => layer.mixer(Attention::load(loader, &prefix, &self.attention, index, true)?),
        };
        Ok((prefix, layer))
    }
}

/// Which layers use the delta rule.
enum Recurrent {
    /// All but every n-th.
    Interval(usize),
    Each(Vec<bool>),
}

impl Recurrent {
    fn load(gguf: &Gguf, hyper: &mut Hyper) -> Result<Recurrent, ModelError> {
        const NAME: &str = "attention.recurrent_layers";
        let key = hyper.key(NAME);
        let each = match GgufError::optional(gguf.get(&key))? {
            None => {
                let interval = hyper.size_if_there(gguf, "full_attention_interval")?;
                return Ok(Recurrent::Interval(interval.map_or(4, |interval| interval.count)));
            }
            Some(Value::Bool(all)) => vec![*all; hyper.n_layer],
            Some(_) => gguf.array_bool(&key)?,
        };
        // A file may have both; this one says more.
        hyper.size_if_there(gguf, "full_attention_interval")?;
        if each.len() < hyper.n_layer {
            let found = format!("{} flags", each.len());
            return Err(hyper.refused(NAME, &found, &format!("one for each of {} layers", hyper.n_layer)));
        }
        hyper.note(NAME, format!("{each:?}"));
        Ok(Recurrent::Each(each))
    }

    fn at(&self, layer: usize) -> bool {
        match self {
            Recurrent::Interval(interval) => !(layer + 1).is_multiple_of(*interval),
            Recurrent::Each(each) => each.get(layer).copied().unwrap_or(true),
        }
    }
}
