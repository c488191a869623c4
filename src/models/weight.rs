//! Weights: names and layouts of tensors, checked against the keys when a model is loaded.

use super::{Hyper, Info, ModelError, Size};
use crate::formats::{Gguf, GgufError};
use crate::graph::{Graph, GraphError, Tensor};
use ssmgraph_ops::{DType, Layout, MulMat};
use std::collections::HashSet;

/// A tensor of the file that a model uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    name: String,
    layout: Layout,
}

impl Weight {
    /// Its name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Type and shape; packed.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The weight in a graph; declared on first use.
    ///
    /// Errors: a name that something else has taken.
    pub fn declare(&self, graph: &mut Graph) -> Result<Tensor, GraphError> {
        match graph.find(&self.name) {
            Some(tensor) if graph.layout(tensor)? == self.layout => Ok(tensor),
            _ => graph.weight(&self.name, self.layout),
        }
    }
}

/// Looks tensors up, checks them and remembers which were used.
pub struct Loader<'a> {
    gguf: &'a Gguf,
    used: Vec<Weight>,
}

impl<'a> Loader<'a> {
    /// A loader that has used nothing yet.
    pub fn new(gguf: &'a Gguf) -> Loader<'a> {
        Loader { gguf, used: Vec::new() }
    }

    /// The file.
    pub fn gguf(&self) -> &'a Gguf {
        self.gguf
    }

    /// Whether the file has a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_ok()
    }

    /// A tensor that is multiplied by or looked up in: any type that has a matrix product.
    ///
    /// Errors: it is missing, or has another shape or type.
    pub fn matrix(&mut self, name: &str, shape: &[Size]) -> Result<Weight, ModelError> {
        self.tensor(name, shape, MulMat::WEIGHTS)
    }

    /// A tensor that is used element by element, which files keep in F32.
    ///
    /// Errors: it is missing, or has another shape or type.
    pub fn vector(&mut self, name: &str, shape: &[Size]) -> Result<Weight, ModelError> {
        self.tensor(name, shape, &[DType::F32])
    }

    /// Checks that no tensor of the model's layers, or of the model as a whole, was left out. Layers that are not
    /// run are.
    ///
    /// Errors: a tensor that nobody used.
    pub fn expect_all_used(&self, hyper: &Hyper) -> Result<(), ModelError> {
        let used: HashSet<&str> = self.used.iter().map(Weight::name).collect();
        let outside = |name: &str| {
            let layer =
                name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')?.0.parse::<usize>().ok());
            layer.is_some_and(|layer| layer >= hyper.n_layer)
        };
        let names = self.gguf.tensors().iter().map(|tensor| tensor.name.as_str());
        match names.into_iter().find(|name| !used.contains(name) && !outside(name)) {
            Some(name) => Err(ModelError::UnknownTensor { name: name.to_owned() }),
            None => Ok(()),
        }
    }

    fn tensor(&mut self, name: &str, shape: &[Size], types: &[DType]) -> Result<Weight, ModelError> {
        let expected = || format!("[{}]", shape.iter().map(Size::to_string).collect::<Vec<_>>().join(", "));
        let Some(tensor) = GgufError::optional(self.gguf.tensor(name))? else {
            return Err(ModelError::MissingTensor { name: name.to_owned(), expected: expected() });
        };
        let wanted = |axis: usize| shape.get(axis).map_or(1, |size| size.count);
        if (0..tensor.layout.ne.len()).any(|axis| tensor.layout.ne[axis] != wanted(axis)) {
            return Err(ModelError::TensorShape {
                name: name.to_owned(),
                found: tensor.layout.to_string(),
                expected: expected(),
            });
        }
        if !types.contains(&tensor.layout.dtype) {
            let expected: Vec<String> = types.iter().map(DType::to_string).collect();
            return Err(ModelError::TensorType {
                name: name.to_owned(),
                found: tensor.layout.dtype.to_string(),
                expected: expected.join(" or "),
            });
        }
        let weight = Weight { name: name.to_owned(), layout: tensor.layout };
        self.used.push(weight.clone());
        Ok(weight)
    }

    /// Facts about the model, once everything is loaded. `state_bytes` are those of one state, `cache_elements`
    /// those of one token.
    ///
    /// Errors: a name in the metadata that is no text, caches for no tokens.
    pub fn finish(
        self,
        hyper: &Hyper,
        state_bytes: usize,
        cache_elements: usize,
    ) -> Result<Info, ModelError> {
        let context_length = hyper.context_length(self.gguf)?;
        if cache_elements > 0 && context_length == Some(0) {
            return Err(hyper.refused("context_length", "0", "at least 1"));
        }
        let used: HashSet<&str> = self.used.iter().map(Weight::name).collect();
        let unused = self.gguf.tensors().iter().filter(|tensor| !used.contains(tensor.name.as_str()));
        Ok(Info {
            architecture: self.gguf.architecture()?.to_owned(),
            name: GgufError::optional(self.gguf.string("general.name"))?.map(str::to_owned),
            n_vocab: hyper.n_vocab.count,
            n_embd: hyper.n_embd.count,
            n_layer: hyper.n_layer,
            hyper: hyper.read().to_vec(),
            unused: unused.map(|tensor| tensor.name.clone()).collect(),
            weights: self.used,
            state_bytes,
            cache_elements,
            context_length,
        })
    }
}
