//! Errors of the graph builder.

use ssmgraph_ops::{LayoutError, OpError};

/// Why a call to the builder was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// An op's shape rule refused its operands.
    #[error(transparent)]
    Op(#[from] OpError),
    /// A handle was used with a graph that did not make it.
    #[error("{op}: {operand} is a tensor of another graph; build it in this one")]
    Foreign {
        /// The call.
        op: &'static str,
        /// Which operand.
        operand: String,
    },
    /// Two nodes were given one name.
    #[error("the name `{name}` is taken by another node of this graph")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// An input, weight or state cannot have the shape asked for.
    #[error("`{name}`: {why}")]
    Leaf {
        /// Name of the leaf.
        name: String,
        /// Why not.
        why: LayoutError,
    },
    /// Slots or states were used in a way that has no meaning.
    #[error("state: {0}")]
    State(String),
}

impl GraphError {
    pub(crate) fn leaf(name: &str, why: LayoutError) -> GraphError {
        GraphError::Leaf { name: name.to_owned(), why }
    }
}
