//! What the models here have in common: layers between an embedding and a head.

use super::{Batch, Ffn, Hyper, Info, Loader, Model, ModelError, Weight};
use crate::formats::Gguf;
use crate::graph::{Graph, Tensor};
use std::fmt::Debug;

/// The part of a layer that lets tokens see earlier ones.
pub trait Mixer: Debug + Send + Sync {
    /// Bytes of one state of one sequence.
    fn state_bytes(&self) -> usize;

    /// Elements that the caches keep for one token.
    fn cache_elements(&self) -> usize;

    /// x {n_embd, T · B}, normalised, to what the layer adds to its input, of the same shape.
    ///
    /// Errors: a batch of another graph, a shape that does not fit, a name that is taken.
    fn forward(&self, graph: &mut Graph, x: Tensor, batch: &Batch) -> Result<Tensor, ModelError>;
}

/// A layer: `x + mixers(norm(x))`, then `x + ffn(norm(x))`.
#[derive(Debug)]
pub struct Layer {
    norm: Weight,
    mixers: Vec<Box<dyn Mixer>>,
    ffn: Option<(Weight, Ffn)>,
    residual_scale: f32,
    eps: f32,
}

impl Layer {
    /// A layer with one mixer; its norm is `{prefix}.attn_norm.weight`.
    ///
    /// Errors: a tensor that is missing or has another shape or type.
    pub fn load(loader: &mut Loader<'_>, prefix: &str, hyper: &Hyper) -> Result<Layer, ModelError> {
        let norm =
            loader.vector(&format!("{prefix}.attn_norm.weight"), std::slice::from_ref(&hyper.n_embd))?;
        Ok(Layer { norm, mixers: Vec::new(), ffn: None, residual_scale: 1.0, eps: hyper.eps })
    }

    /// The layer with one more mixer. All of them see the same input, and their results are added.
    pub fn mixer(mut self, mixer: impl Mixer + 'static) -> Layer {
        self.mixers.push(Box::new(mixer));
        self
    }

    /// The layer with a feed-forward part, and its norm.
    pub fn ffn(self, norm: Weight, ffn: Ffn) -> Layer {
        Layer { ffn: Some((norm, ffn)), ..self }
    }

    /// The layer with what it adds to its input scaled.
    pub fn residual_scale(self, residual_scale: f32) -> Layer {
        Layer { residual_scale, ..self }
    }

    /// x {n_embd, T · B} to the same.
    fn forward(&self, graph: &mut Graph, x: Tensor, batch: &Batch) -> Result<Tensor, ModelError> {
        let residual = x;
        let norm = self.norm.declare(graph)?;
        let input = graph.rms_norm(x, Some(norm), self.eps)?;
        let mut sum = None;
        for mixer in &self.mixers {
            let y = mixer.forward(graph, input, batch)?;
            sum = Some(match sum {
                None => y,
                Some(sum) => graph.add(sum, y)?,
            });
        }
        let x = match sum {
            None => residual,
            Some(y) => self.add(graph, residual, y)?,
        };
        let Some((norm, ffn)) = &self.ffn else { return Ok(x) };
        let norm = norm.declare(graph)?;
        let input = graph.rms_norm(x, Some(norm), self.eps)?;
        let y = ffn.forward(graph, input)?;
        self.add(graph, x, y)
    }

    fn add(&self, graph: &mut Graph, residual: Tensor, y: Tensor) -> Result<Tensor, ModelError> {
        let y = scaled(graph, y, self.residual_scale)?;
        Ok(graph.add(residual, y)?)
    }
}

fn scaled(graph: &mut Graph, x: Tensor, scale: f32) -> Result<Tensor, ModelError> {
    if scale == 1.0 { Ok(x) } else { Ok(graph.scale(x, scale, 0.0)?) }
}

/// A language model: an embedding, layers, and a normalised head that may be the embedding itself.
#[derive(Debug)]
pub struct Stack {
    info: Info,
    embedding: Weight,
    norm: Weight,
    head: Weight,
    layers: Vec<Layer>,
    eps: f32,
    embedding_scale: f32,
    logit_scale: f32,
}

/// What is done about keys and tensors that a model does not use.
#[derive(Clone, Copy, Debug)]
pub enum Unused {
    /// They are listed in [`Info::unused`].
    Listed,
    /// They are errors, since a file could ask for something that is not done. The keys named here change nothing.
    Refused(&'static [&'static str]),
}

impl Stack {
    /// Reads embedding and head, and as many layers as `hyper` says with `layer`.
    ///
    /// Errors: those of `layer`; a tensor that is missing or has another shape or type; what `unused` refuses.
    pub fn load(
        gguf: &Gguf,
        hyper: &Hyper,
        unused: Unused,
        mut layer: impl FnMut(&mut Loader<'_>, usize) -> Result<Layer, ModelError>,
    ) -> Result<Stack, ModelError> {
        let mut loader = Loader::new(gguf);
        let shape = [hyper.n_embd.clone(), hyper.n_vocab.clone()];
        let embedding = loader.matrix("token_embd.weight", &shape)?;
        let norm = loader.vector("output_norm.weight", &shape[..1])?;
        let head = match loader.has("output.weight") {
            true => loader.matrix("output.weight", &shape)?,
            false => embedding.clone(),
        };
        let mut layers = Vec::new();
        for index in 0..hyper.n_layer {
            layers.push(layer(&mut loader, index)?);
        }
        if let Unused::Refused(idle) = unused {
            hyper.expect_all_read(gguf, idle)?;
            loader.expect_all_used(hyper)?;
        }
        let sum = |of: &dyn Fn(&dyn Mixer) -> usize| {
            let mixers = layers.iter().flat_map(|layer| &layer.mixers);
            mixers.map(|mixer| of(mixer.as_ref())).fold(0, usize::saturating_add)
        };
        let info =
            loader.finish(hyper, sum(&|mixer| mixer.state_bytes()), sum(&|mixer| mixer.cache_elements()))?;
        let eps = hyper.eps;
        Ok(Stack { info, embedding, norm, head, layers, eps, embedding_scale: 1.0, logit_scale: 1.0 })
    }

    /// The model with its embeddings and its logits scaled.
    pub fn scales(self, embedding_scale: f32, logit_scale: f32) -> Stack {
        Stack { embedding_scale, logit_scale, ..self }
    }

    /// {n_vocab, O}: the head costs more than a layer, so the rows are picked before it.
    fn logits(&self, graph: &mut Graph, x: Tensor, batch: &Batch) -> Result<Tensor, ModelError> {
        let x = graph.get_rows(x, batch.outputs)?;
        let norm = self.norm.declare(graph)?;
        let x = graph.rms_norm(x, Some(norm), self.eps)?;
        let head = self.head.declare(graph)?;
        let logits = graph.mul_mat(head, x)?;
        scaled(graph, logits, self.logit_scale)
    }
}

impl Model for Stack {
    fn info(&self) -> &Info {
        &self.info
    }

    fn forward(&self, graph: &mut Graph, batch: &Batch) -> Result<Tensor, ModelError> {
        let table = self.embedding.declare(graph)?;
        let x = graph.get_rows(table, batch.tokens)?;
        let mut x = scaled(graph, x, self.embedding_scale)?;
        for layer in &self.layers {
            x = layer.forward(graph, x, batch)?;
        }
        self.logits(graph, x, batch)
    }
}
