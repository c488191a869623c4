//! Attention of grouped heads over caches of keys and values.

use super::{Batch, Hyper, Loader, Mixer, ModelError, PerLayer, Size, Weight};
use crate::formats::Gguf;
use crate::graph::{Graph, Tensor};
use ssmgraph_ops::Rope;
use ssmgraph_ops::rope::RopeMode;

/// How a model tells its attention where tokens stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Not at all: other layers know the order.
    None,
    /// By turning pairs of neighbours.
    Normal,
    /// By turning pairs of halves.
    Neox,
    /// By turning pairs of halves, in sections that take turns (`rope.dimension_sections`). Text has one position
    /// for all of them.
    Sections,
}

/// Keys of all attention layers of a model.
#[derive(Clone, Debug)]
pub struct AttentionKeys {
    n_embd: Size,
    heads: PerLayer,
    kv_heads: PerLayer,
    key_length: Option<Size>,
    value_length: Option<Size>,
    scale: Option<f32>,
    rope: Option<RopeKeys>,
    eps: f32,
}

#[derive(Clone, Debug)]
struct RopeKeys {
    mode: RopeMode,
    n_rot: Option<Size>,
    n_rot_key: String,
    sections_key: String,
    freq_base: f32,
    freq_scale: f32,
}

impl AttentionKeys {
    /// Reads the keys.
    ///
    /// Errors: a key that is missing or makes no sense, a kind of position embedding that is not supported.
    pub fn load(gguf: &Gguf, hyper: &mut Hyper, position: Position) -> Result<AttentionKeys, ModelError> {
        let mode = match position {
            Position::None => None,
            Position::Normal => Some(RopeMode::Normal),
            Position::Neox => Some(RopeMode::Neox),
            Position::Sections => Some(sections(gguf, hyper)?),
        };
        Ok(AttentionKeys {
            n_embd: hyper.n_embd.clone(),
            heads: hyper.per_layer(gguf, "attention.head_count")?,
            kv_heads: match hyper.has(gguf, "attention.head_count_kv") {
                true => hyper.per_layer(gguf, "attention.head_count_kv")?,
                false => {
                    let heads = hyper.per_layer(gguf, "attention.head_count")?;
                    heads.instead_of(&hyper.key("attention.head_count_kv"))
                }
            },
            key_length: hyper.size_if_there(gguf, "attention.key_length")?,
            value_length: hyper.size_if_there(gguf, "attention.value_length")?,
            // 0 is how files say that there is none.
            scale: hyper.number(gguf, "attention.scale")?.filter(|&scale| scale != 0.0),
            rope: mode.map(|mode| RopeKeys::load(gguf, hyper, mode)).transpose()?,
            eps: hyper.eps,
        })
    }

    /// Whether a layer has no heads of keys, by which some models mark their recurrent layers.
    pub fn is_recurrent(&self, layer: usize) -> bool {
        self.kv_heads.at(layer).count == 0
    }
}

fn sections(gguf: &Gguf, hyper: &mut Hyper) -> Result<RopeMode, ModelError> {
    const NAME: &str = "rope.dimension_sections";
    let values = gguf.array_i32(&hyper.key(NAME))?;
    let counts: Option<Vec<usize>> = values.iter().map(|&value| usize::try_from(value).ok()).collect();
    let Some(Ok(sections)) = counts.map(<[usize; 4]>::try_from) else {
        return Err(hyper.refused(NAME, &format!("{values:?}"), "four counts"));
    };
    hyper.note(NAME, format!("{values:?}"));
    Ok(RopeMode::Sections { sections, interleaved: true })
}

impl RopeKeys {
    fn load(gguf: &Gguf, hyper: &mut Hyper, mode: RopeMode) -> Result<RopeKeys, ModelError> {
        let freq_base = hyper.number(gguf, "rope.freq_base")?.unwrap_or(10_000.0);
        if freq_base <= 0.0 {
            return Err(hyper.refused("rope.freq_base", &freq_base.to_string(), "a number above 0"));
        }
        Ok(RopeKeys {
            mode,
            n_rot: hyper.size_if_there(gguf, "rope.dimension_count")?,
            n_rot_key: hyper.key("rope.dimension_count"),
            sections_key: hyper.key("rope.dimension_sections"),
            freq_base,
            freq_scale: freq_scale(gguf, hyper)?,
        })
    }

    /// The op for rows of `row` elements.
    fn op(&self, row: &Size) -> Result<Rope, ModelError> {
        let n_rot = self.n_rot.as_ref().unwrap_or(row).count;
        if !n_rot.is_multiple_of(2) || n_rot > row.count {
            return Err(ModelError::Hyper {
                key: self.n_rot_key.clone(),
                found: n_rot.to_string(),
                expected: format!("an even number up to {row}"),
            });
        }
        if let RopeMode::Sections { sections, .. } = self.mode {
            // The fourth position of text is 0 instead of its place, so a pair that took it would not turn.
            let sum = sections.iter().fold(0usize, |sum, &count| sum.saturating_add(count));
            let pairs = (0..sum.min(n_rot / 2)).map(|pair| self.mode.section(pair));
            if sum == 0 || sum > n_rot || pairs.into_iter().any(|section| section == 3) {
                return Err(ModelError::Hyper {
                    key: self.sections_key.clone(),
                    found: format!("{sections:?}"),
                    expected: format!(
                        "sections of {n_rot} / 2 pairs ({}) that leave none to the fourth",
                        self.n_rot_key
                    ),
                });
            }
        }
        // All other positions of a token of text are equal, so that sections change nothing.
        let mode = if let RopeMode::Sections { .. } = self.mode { RopeMode::Neox } else { self.mode };
        Ok(Rope { mode, n_rot, freq_base: self.freq_base, freq_scale: self.freq_scale })
    }
}

/// What positions are multiplied by: 1, or less for models stretched beyond the length they were trained on.
fn freq_scale(gguf: &Gguf, hyper: &mut Hyper) -> Result<f32, ModelError> {
    const TYPE: &str = "rope.scaling.type";
    let kind = hyper.text(gguf, TYPE)?;
    let factor = hyper.number(gguf, "rope.scaling.factor")?.unwrap_or(0.0);
    match kind.as_deref() {
        Some("none") => Ok(1.0),
        None | Some("linear") if factor == 0.0 => Ok(1.0),
        None | Some("linear") if factor > 0.0 => Ok(1.0 / factor),
        None | Some("linear") => {
            Err(hyper.refused("rope.scaling.factor", &factor.to_string(), "a number of at least 0"))
        }
        Some(other) => Err(hyper.refused(TYPE, other, "none or linear")),
    }
}

/// One attention layer.
#[derive(Clone, Debug)]
pub struct Attention {
    prefix: String,
    q: Weight,
    k: Weight,
    v: Weight,
    output: Weight,
    q_norm: Option<Weight>,
    k_norm: Option<Weight>,
    gated: bool,
    heads: usize,
    kv_heads: usize,
    key_length: usize,
    value_length: usize,
    scale: f32,
    rope: Option<Rope>,
    eps: f32,
}

impl Attention {
    /// Reads `{prefix}.attn_{q,k,v,output}.weight`, and `attn_{q,k}_norm.weight` where they are there. `gated`: each
    /// head has as many rows of a gate after those of its query, and values of their length.
    ///
    /// Errors: a tensor that is missing or has another shape or type, counts of heads that do not divide.
    pub fn load(
        loader: &mut Loader<'_>,
        prefix: &str,
        keys: &AttentionKeys,
        layer: usize,
        gated: bool,
    ) -> Result<Attention, ModelError> {
        let name = |end: &str| format!("{prefix}.attn_{end}.weight");
        let (n_embd, heads, kv_heads) = (&keys.n_embd, keys.heads.at(layer), keys.kv_heads.at(layer));
        if heads.count == 0 {
            let expected = format!("at least 1 for the attention of {prefix}");
            return Err(ModelError::Hyper { key: heads.from, found: "0".into(), expected });
        }
        heads.over(&kv_heads)?;
        let default_length = || n_embd.over(&heads);
        let key = keys.key_length.clone().map_or_else(default_length, Ok)?;
        let value = keys.value_length.clone().map_or_else(default_length, Ok)?;
        if gated && key.count != value.count {
            let expected = format!("{key}, since the values are gated by rows of the queries");
            return Err(ModelError::Hyper { key: value.from, found: value.count.to_string(), expected });
        }
        let rope = keys.rope.as_ref().map(|rope| rope.op(&key)).transpose()?;
        let q_rows = key.by(&heads).times(if gated { 2 } else { 1 });
        let mut norm = |end: &str| match loader.has(&name(end)) {
            true => loader.vector(&name(end), std::slice::from_ref(&key)).map(Some),
            false => Ok(None),
        };
        Ok(Attention {
            q_norm: norm("q_norm")?,
            k_norm: norm("k_norm")?,
            q: loader.matrix(&name("q"), &[n_embd.clone(), q_rows])?,
            k: loader.matrix(&name("k"), &[n_embd.clone(), key.by(&kv_heads)])?,
            v: loader.matrix(&name("v"), &[n_embd.clone(), value.by(&kv_heads)])?,
            output: loader.matrix(&name("output"), &[value.by(&heads), n_embd.clone()])?,
            gated,
            heads: heads.count,
            kv_heads: kv_heads.count,
            key_length: key.count,
            value_length: value.count,
            scale: keys.scale.unwrap_or((1.0 / (key.count as f64).sqrt()) as f32),
            rope,
            eps: keys.eps,
            prefix: prefix.to_owned(),
        })
    }

    /// Queries {key_length, heads, T, B} and, where there is one, the gate {value_length, heads, T · B}.
    fn queries(
        &self,
        graph: &mut Graph,
        x: Tensor,
        batch: &Batch,
    ) -> Result<(Tensor, Option<Tensor>), ModelError> {
        let (tokens, sequences) = (batch.tokens_per_sequence(), batch.sequences());
        let weight = self.q.declare(graph)?;
        let q = graph.mul_mat(weight, x)?;
        let shape = [self.key_length, self.heads, tokens, sequences];
        if !self.gated {
            return Ok((graph.reshape(q, &shape)?, None));
        }
        let both = graph.reshape(q, &[2 * self.key_length, self.heads, tokens * sequences])?;
        let q = graph.slice(both, 0, 0, self.key_length)?;
        let gate = graph.slice(both, 0, self.key_length, self.key_length)?;
        Ok((graph.reshape(q, &shape)?, Some(gate)))
    }

    /// x {key_length, …, T, B} normalised and turned.
    fn placed(
        &self,
        graph: &mut Graph,
        mut x: Tensor,
        norm: Option<&Weight>,
        positions: Tensor,
    ) -> Result<Tensor, ModelError> {
        if let Some(norm) = norm {
            let norm = norm.declare(graph)?;
            x = graph.rms_norm(x, Some(norm), self.eps)?;
        }
        if let Some(rope) = self.rope {
            let [_, _, tokens, sequences] = graph.ne(x)?;
            let positions = graph.reshape(positions, &[tokens, sequences])?;
            x = graph.rope(rope, x, positions)?;
        }
        Ok(x)
    }

    /// x {rows, T · B} behind what the cache `{prefix}.{name}` has of the sequences; the whole cache.
    fn cached(
        &self,
        graph: &mut Graph,
        name: &str,
        length: usize,
        rows: Tensor,
        batch: &Batch,
    ) -> Result<Tensor, ModelError> {
        let caches = batch.caches.as_ref().ok_or(ModelError::NoCaches)?;
        let name = format!("{}.{name}", self.prefix);
        let row = [length, self.kv_heads];
        let cache = graph.cache(&name, batch.cache_dtype, &row, &batch.slots, caches)?;
        Ok(graph.append_to_cache(&cache, caches, rows)?)
    }
}

impl Mixer for Attention {
    fn state_bytes(&self) -> usize {
        0
    }

    fn cache_elements(&self) -> usize {
        self.key_length.saturating_add(self.value_length).saturating_mul(self.kv_heads)
    }

    fn forward(&self, graph: &mut Graph, x: Tensor, batch: &Batch) -> Result<Tensor, ModelError> {
        let caches = batch.caches.as_ref().ok_or(ModelError::NoCaches)?;
        let (tokens, sequences) = (batch.tokens_per_sequence(), batch.sequences());
        let (q, gate) = self.queries(graph, x, batch)?;
        let q = self.placed(graph, q, self.q_norm.as_ref(), caches.positions)?;

        let weight = self.k.declare(graph)?;
        let k = graph.mul_mat(weight, x)?;
        let k = graph.reshape(k, &[self.key_length, self.kv_heads, tokens, sequences])?;
        let k = self.placed(graph, k, self.k_norm.as_ref(), caches.positions)?;
        let k = self.cached(graph, "k", self.key_length, k, batch)?;
        let weight = self.v.declare(graph)?;
        let v = graph.mul_mat(weight, x)?;
        let v = self.cached(graph, "v", self.value_length, v, batch)?;

        let y = graph.attention(q, [k, v], caches.slots, caches.past, self.scale)?;
        let mut y = graph.reshape(y, &[self.value_length, self.heads, tokens * sequences])?;
        if let Some(gate) = gate {
            let gate = graph.sigmoid(gate)?;
            y = graph.mul(y, gate)?;
        }
        let y = graph.reshape(y, &[self.value_length * self.heads, tokens * sequences])?;
        let weight = self.output.declare(graph)?;
        Ok(graph.mul_mat(weight, y)?)
    }
}
