//! Models: structs with `load`, which reads and checks a file, and `forward`, which writes the graph.
//!
//! A model holds names and layouts of its weights, no bytes: a [`crate::Store`] with the same file as its
//! source binds them. `forward` may be called for any batch; all its graphs share one store.

mod attention;
mod conv;
mod delta;
mod error;
mod experts;
pub mod falcon_h1;
mod ffn;
pub mod granite_hybrid;
mod hyper;
pub mod jamba;
pub mod mamba;
pub mod mamba2;
pub mod qwen35;
pub mod qwen3next;
mod stack;
mod weight;

pub use attention::{Attention, AttentionKeys, Position};
pub use conv::Conv;
pub use delta::{Delta, DeltaSizes};
pub use error::ModelError;
pub use experts::{ExpertKeys, Experts};
pub use ffn::{Dense, Ffn};
pub use hyper::{Hyper, PerLayer, Size};
pub use mamba::Mamba;
pub use mamba2::Mamba2;
pub use stack::{Layer, Mixer, Stack};
pub use weight::{Loader, Weight};

use crate::formats::Gguf;
use crate::graph::{Caches, Graph, Slots, SlotsSpec, Tensor};
use ssmgraph_ops::DType;

/// What one call of [`Model::forward`] computes on: T tokens of each of B sequences.
#[derive(Clone, Debug)]
pub struct Batch {
    /// I32 {T · B}: sequence after sequence, token t of sequence b at index b · T + t. An activation
    /// {C, T · B} therefore is {C, T, B} without a copy.
    pub tokens: Tensor,
    /// I32 {O}: which of the T · B rows the logits are wanted for.
    pub outputs: Tensor,
    /// The slots that the sequences live in, with T and B.
    pub slots: Slots,
    /// Where attention keeps what it has seen; `None` for models without attention.
    pub caches: Option<Caches>,
    /// Element type of the caches.
    pub cache_dtype: DType,
}

/// Room for what attention has to remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// Tokens of each slot.
    pub capacity: usize,
    /// Element type: F32 or F16.
    pub dtype: DType,
}

impl Batch {
    /// Declares the inputs `tokens` and `outputs`, the slots of a graph, and caches where the model has attention.
    ///
    /// Errors: names or slots that the graph has already, more sequences than slots, a size that cannot be
    /// addressed.
    pub fn declare(
        graph: &mut Graph,
        spec: SlotsSpec,
        outputs: usize,
        cache: Option<CacheSpec>,
    ) -> Result<Batch, ModelError> {
        let rows = spec.tokens.saturating_mul(spec.sequences);
        let tokens = graph.input("tokens", DType::I32, &[rows])?;
        let outputs = graph.input("outputs", DType::I32, &[outputs])?;
        let slots = graph.slots(spec)?;
        let caches = cache.map(|cache| graph.caches(&slots, cache.capacity)).transpose()?;
        let cache_dtype = cache.map_or(DType::F32, |cache| cache.dtype);
        Ok(Batch { tokens, outputs, slots, caches, cache_dtype })
    }

    /// T, the tokens of each sequence.
    pub fn tokens_per_sequence(&self) -> usize {
        self.slots.spec.tokens
    }

    /// B.
    pub fn sequences(&self) -> usize {
        self.slots.spec.sequences
    }
}

/// What a program wants to know about a model before it runs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Info {
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`, if the file has one.
    pub name: Option<String>,
    /// Number of tokens: the length of a row of logits.
    pub n_vocab: usize,
    /// Length of an activation between layers.
    pub n_embd: usize,
    /// Number of layers.
    pub n_layer: usize,
    /// The hyper-parameters that were used, by their key in the file, in the order of reading.
    pub hyper: Vec<(String, String)>,
    /// The weights, in the order in which the model uses them.
    pub weights: Vec<Weight>,
    /// Tensors of the file that the model does not use.
    pub unused: Vec<String>,
    /// Bytes of one state of one sequence: convolution windows and scan states of all layers.
    pub state_bytes: usize,
    /// Elements that the caches of all attention layers keep for one token; 0 for models without attention.
    pub cache_elements: usize,
    /// `{arch}.context_length`: the longest sequence that the model was made for, where the file says so.
    pub context_length: Option<usize>,
}

impl Info {
    /// Bytes of all weights as they are stored.
    pub fn weight_bytes(&self) -> usize {
        self.weights.iter().map(|weight| weight.layout().span_bytes()).fold(0, usize::saturating_add)
    }

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        self.weights.iter().map(|weight| weight.layout().elements()).fold(0, usize::saturating_add)
    }
}

/// A language model.
pub trait Model: Send + Sync {
    /// Facts about it.
    fn info(&self) -> &Info;

    /// Appends the model to `graph` and returns the logits {n_vocab, O} of the rows that the batch asks for.
    /// States are updated when the graph runs.
    ///
    /// Errors: a batch of another graph, a second call on the same graph.
    fn forward(&self, graph: &mut Graph, batch: &Batch) -> Result<Tensor, ModelError>;
}

type Load = fn(&Gguf) -> Result<Stack, ModelError>;

/// Every architecture that [`load_model`] knows, by its name in `general.architecture`.
const ARCHITECTURES: &[(&str, Load)] = &[
    ("mamba", mamba::load),
    ("mamba2", mamba2::load),
    ("qwen35", qwen35::load),
    ("qwen3next", qwen3next::load),
    ("jamba", jamba::load),
    ("falcon-h1", falcon_h1::load),
    ("granitehybrid", granite_hybrid::load),
];

/// Names of the architectures that [`load_model`] knows.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().map(|(name, _)| *name)
}

/// The model in a file, chosen by `general.architecture`.
///
/// Errors: an architecture that is not known, a key that is missing or makes no sense, a tensor that is
/// missing or has another shape or type than the keys say.
pub fn load_model(gguf: &Gguf) -> Result<Box<dyn Model>, ModelError> {
    let found = gguf.architecture()?;
    match ARCHITECTURES.iter().find(|(name, _)| *name == found) {
        Some((_, load)) => Ok(Box::new(load(gguf)?)),
        None => Err(ModelError::Architecture {
            found: found.to_owned(),
            known: architectures().collect::<Vec<_>>().join(", "),
        }),
    }
}
