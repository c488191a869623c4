//! The feed-forward part of a layer.

use super::{ExpertKeys, Experts, Hyper, Loader, ModelError, Size, Weight};
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
    /// Reads the experts of a layer that has some, or else its one network of length `n_ff`.
    ///
    /// Errors: a tensor that is missing or has another shape or type, experts that the keys know nothing of.
    pub fn load(
        loader: &mut Loader<'_>,
        prefix: &str,
        hyper: &Hyper,
        n_ff: &Size,
        experts: Option<&ExpertKeys>,
    ) -> Result<Ffn, ModelError> {
        if !Experts::are_in(loader, prefix) {
            return Ok(Ffn::Dense(Box::new(Dense::load(loader, prefix, "", &hyper.n_embd, n_ff)?)));
        }
        match experts {
            Some(experts) => Ok(Ffn::Experts(Box::new(Experts::load(loader, prefix, experts)?))),
            None => {
                let expected = format!("at least 1, as {prefix} has experts");
                Err(hyper.refused("expert_count", "0 or missing", &expected))
            }
        }
    }

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
