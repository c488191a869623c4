//! Why a model was refused.

use crate::formats::GgufError;
use crate::graph::GraphError;

/// Why a model cannot be loaded or written into a graph.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A key is missing or has the wrong type.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The graph refused an op; a batch that does not fit the model.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// An architecture without an implementation.
    #[error("general.architecture \"{found}\" is not supported, expected one of {known}")]
    Architecture {
        /// The name in the file.
        found: String,
        /// The names that are known.
        known: String,
    },
    /// A key whose value makes no model.
    #[error("{key} is {found}, expected {expected}")]
    Hyper {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What it can be.
        expected: String,
    },
    /// A tensor is not in the file.
    #[error("tensor \"{name}\" is missing, expected the shape {expected}")]
    MissingTensor {
        /// Its name.
        name: String,
        /// Its shape, with the keys it comes from.
        expected: String,
    },
    /// A tensor has another shape than the keys say.
    #[error("tensor \"{name}\" is {found}, expected the shape {expected}")]
    TensorShape {
        /// Its name.
        name: String,
        /// Type and shape in the file.
        found: String,
        /// Its shape, with the keys it comes from.
        expected: String,
    },
    /// A tensor has a type that the model's ops cannot read.
    #[error("tensor \"{name}\" has type {found}, expected {expected}")]
    TensorType {
        /// Its name.
        name: String,
        /// Type in the file.
        found: String,
        /// The types that can be.
        expected: String,
    },
    /// A key that an architecture does not know, and that may change what it computes.
    #[error("{key} is {found}, which is not supported: a model without the key is")]
    UnknownKey {
        /// The key.
        key: String,
        /// Its value.
        found: String,
    },
    /// A tensor of a layer or of the whole model that would take part, but is not known.
    #[error("tensor \"{name}\" is not supported: a model without it is")]
    UnknownTensor {
        /// Its name.
        name: String,
    },
    /// A batch without caches for a model with attention.
    #[error("the model has attention, but the batch has no caches; declare it with a CacheSpec")]
    NoCaches,
}
