//! The feed-forward part of a layer.

use super::{Experts, Loader, ModelError, Size, Weight};
use crate::graph::{Graph, Tensor};

/// A feed-forward part.
#[derive(Clone, Debug)]
pub enum Ffn {
    /// One network for all tokens.
    Dense(Box<Dense>),
    /// A few of many networks for each token.
    Experts(Box<Experts>),
}

impl Ffn {
    /// x {n_embd, N} to the same shape.
    ///
    /// Errors: a shape that does not fit.
    pub fn forward(&self, graph: &mut Graph, x: Tensor) -> Result<Tensor, ModelError> {
        match self {
            Ffn::Dense(dense) => dense.forward(graph, x),
            Ffn::Experts(experts) => experts.forward(graph, x),
        }
    }
}

/// `down(silu(gate(x)) · up(x))`
#[derive(Clone, Debug)]
pub struct Dense {
    gate: Weight,
    up: Weight,
    down: Weight,
}

impl Dense {
    /// Reads `{prefix}.ffn_{gate,up,down}{suffix}.weight`.
    ///
    /// Errors: a tensor that is missing or has another shape or type.
    pub fn load(
        loader: &mut Loader<'_>,
        prefix: &str,
        suffix: &str,
        n_embd: &Size,
        n_ff: &Size,
    ) -> Result<Dense, ModelError> {
        let name = |which: &str| format!("{prefix}.ffn_{which}{suffix}.weight");
        let (inward, outward) = ([n_embd.clone(), n_ff.clone()], [n_ff.clone(), n_embd.clone()]);
        Ok(Dense {
            gate: loader.matrix(&name("gate"), &inward)?,
            up: loader.matrix(&name("up"), &inward)?,
            down: loader.matrix(&name("down"), &outward)?,
        })
    }

    /// x {n_embd, N} to the same shape.
    ///
    /// Errors: a shape that does not fit.
    pub fn forward(&self, graph: &mut Graph, x: Tensor) -> Result<Tensor, ModelError> {
        let weight = self.gate.declare(graph)?;
        let gate = graph.mul_mat(weight, x)?;
        let weight = self.up.declare(graph)?;
        let up = graph.mul_mat(weight, x)?;
        let y = graph.swiglu(gate, up)?;
        let weight = self.down.declare(graph)?;
        Ok(graph.mul_mat(weight, y)?)
    }
}
