//! A mixture of experts: each token uses a few of many networks.

use super::{Dense, Hyper, Loader, ModelError, Size, Weight};
use crate::formats::{Gguf, GgufError};
use crate::graph::{Graph, Tensor};
use ssmgraph_ops::glu::{Glu, GluFunction};

/// What a sum of weights is raised to before it divides: the smallest normal F16.
const WEIGHT_SUM_MIN: f32 = 6.103_515_6e-5;

/// Length of the network that every token uses.
const SHARED_LENGTH: &str = "expert_shared_feed_forward_length";

/// How experts are chosen and sized.
#[derive(Clone, Debug)]
pub struct ExpertKeys {
    n_embd: Size,
    experts: Size,
    used: Size,
    n_ff: Size,
    /// Length of the network that every token uses, where there is one.
    shared: Option<Size>,
    /// Whether the weights of the used experts are made to sum to 1.
    renormalise: bool,
    scale: f32,
}

impl ExpertKeys {
    /// Reads the keys. `n_ff` is the length of an expert where `expert_feed_forward_length` does not say it.
    ///
    /// Errors: a key that is missing or makes no sense, a way to weigh experts that is not supported.
    pub fn load(
        gguf: &Gguf,
        hyper: &mut Hyper,
        n_ff: Option<&Size>,
        renormalise: bool,
    ) -> Result<ExpertKeys, ModelError> {
        const GATING: &str = "expert_gating_func";
        const SOFTMAX: usize = 1;
        let experts = hyper.size(gguf, "expert_count")?;
        let used = hyper.size(gguf, "expert_used_count")?;
        if used.count > experts.count {
            return Err(hyper.refused(
                "expert_used_count",
                &used.count.to_string(),
                &format!("up to {experts}"),
            ));
        }
        if let Some(gating) = hyper.size_if_there(gguf, GATING)?.filter(|gating| gating.count != SOFTMAX) {
            return Err(hyper.refused(GATING, &gating.count.to_string(), "1 (softmax)"));
        }
        // 0 is how files say that there is none.
        let scale = hyper.number(gguf, "expert_weights_scale")?.filter(|&scale| scale != 0.0);
        Ok(ExpertKeys {
            n_embd: hyper.n_embd.clone(),
            n_ff: match (n_ff, hyper.has(gguf, "expert_feed_forward_length")) {
                (Some(n_ff), false) => n_ff.clone(),
                _ => hyper.size(gguf, "expert_feed_forward_length")?,
            },
            shared: hyper.size_if_there(gguf, SHARED_LENGTH)?,
            scale: scale.unwrap_or(1.0),
            experts,
            used,
            renormalise,
        })
    }

    /// [`ExpertKeys::load`] for models that may have no experts, which a file says by counts of 0 or by no counts.
    ///
    /// Errors: as there; keys about experts that there are none of.
    pub fn load_if_any(
        gguf: &Gguf,
        hyper: &mut Hyper,
        n_ff: &Size,
        renormalise: bool,
    ) -> Result<Option<ExpertKeys>, ModelError> {
        let count = |name: &str| GgufError::optional(gguf.usize(&hyper.key(name)));
        if count("expert_count")?.unwrap_or(0) > 0 {
            return ExpertKeys::load(gguf, hyper, Some(n_ff), renormalise).map(Some);
        }
        if let Some(used) = count("expert_used_count")?.filter(|&used| used > 0) {
            let expected = format!("0, as there are no experts ({})", hyper.key("expert_count"));
            return Err(hyper.refused("expert_used_count", &used.to_string(), &expected));
        }
        // Converters give the lengths of networks even where no layer has them.
        for name in ["expert_count", "expert_used_count", "expert_feed_forward_length", SHARED_LENGTH] {
            if let Some(count) = GgufError::optional(gguf.usize(&hyper.key(name)))? {
                hyper.note(name, count.to_string());
            }
        }
        Ok(None)
    }
}

/// The experts of one layer.
#[derive(Clone, Debug)]
pub struct Experts {
    router: Weight,
    inward: Inward,
    down: Weight,
    shared: Option<Shared>,
    experts: usize,
    used: usize,
    n_ff: usize,
    n_embd: usize,
    renormalise: bool,
    scale: f32,
}

/// From a token to the two factors of an expert's inner activation.
#[derive(Clone, Debug)]
enum Inward {
    Apart {
        gate: Weight,
        up: Weight,
    },
    /// Rows of the gate, then of the other factor.
    Joined(Weight),
}

/// The network that every token uses.
#[derive(Clone, Debug)]
struct Shared {
    network: Dense,
    /// What its result is weighed by, after a sigmoid.
    gate: Option<Weight>,
}

impl Experts {
    /// Whether a layer has any tensor of experts.
    pub fn are_in(loader: &Loader<'_>, prefix: &str) -> bool {
        let names = ["gate_inp", "gate_exps", "up_exps", "gate_up_exps", "down_exps"];
        names.iter().any(|end| loader.has(&format!("{prefix}.ffn_{end}.weight")))
    }

    /// Reads `{prefix}.ffn_gate_inp`, `ffn_{gate,up,down}_exps` or `ffn_gate_up_exps`, and where the keys have a
    /// shared network `ffn_{gate,up,down}_shexp` and perhaps `ffn_gate_inp_shexp`.
    ///
    /// Errors: a tensor that is missing or has another shape or type.
    pub fn load(loader: &mut Loader<'_>, prefix: &str, keys: &ExpertKeys) -> Result<Experts, ModelError> {
        let name = |end: &str| format!("{prefix}.ffn_{end}.weight");
        let ExpertKeys { n_embd, experts, n_ff, .. } = keys;
        Ok(Experts {
            router: loader.matrix(&name("gate_inp"), &[n_embd.clone(), experts.clone()])?,
            inward: Inward::load(loader, prefix, keys)?,
            down: loader.matrix(&name("down_exps"), &[n_ff.clone(), n_embd.clone(), experts.clone()])?,
            shared: keys
                .shared
                .as_ref()
                .map(|n_ff| Shared::load(loader, prefix, n_embd, n_ff))
                .transpose()?,
            experts: experts.count,
            used: keys.used.count,
            n_ff: n_ff.count,
            n_embd: n_embd.count,
            renormalise: keys.renormalise,
            scale: keys.scale,
        })
    }

    /// x {n_embd, N} to the same shape.
    ///
    /// Errors: a shape that does not fit.
    pub fn forward(&self, graph: &mut Graph, x: Tensor) -> Result<Tensor, ModelError> {
        let tokens = graph.ne(x)?[1];
        let (ids, weights) = self.choose(graph, x)?;
        let rows = graph.reshape(x, &[self.n_embd, 1, tokens])?;
        let inner = self.inward.forward(graph, rows, ids, self.n_ff)?;
        let down = self.down.declare(graph)?;
        let y = graph.mul_mat_id(down, inner, ids)?;
        let weights = graph.reshape(weights, &[1, self.used, tokens])?;
        let y = graph.mul(y, weights)?;
        let y = self.sum(graph, y)?;
        match &self.shared {
            None => Ok(y),
            Some(shared) => {
                let more = shared.forward(graph, x)?;
                Ok(graph.add(y, more)?)
            }
        }
    }

    /// The experts of each token and their weights, {used, N} each.
    fn choose(&self, graph: &mut Graph, x: Tensor) -> Result<(Tensor, Tensor), ModelError> {
        let tokens = graph.ne(x)?[1];
        let router = self.router.declare(graph)?;
        let scores = graph.mul_mat(router, x)?;
        let shares = graph.soft_max(scores, None, 1.0)?;
        let ids = graph.top_k(shares, self.used)?;
        let table = graph.reshape(shares, &[1, self.experts, tokens])?;
        let weights = graph.get_rows(table, ids)?;
        let mut weights = graph.reshape(weights, &[self.used, tokens])?;
        if self.renormalise {
            let sum = graph.sum_rows(weights)?;
            // max(sum, least) = relu(sum − least) + least
            let above = graph.scale(sum, 1.0, -WEIGHT_SUM_MIN)?;
            let above = graph.relu(above)?;
            let sum = graph.scale(above, 1.0, WEIGHT_SUM_MIN)?;
            weights = graph.div(weights, sum)?;
        }
        if self.scale != 1.0 {
            weights = graph.scale(weights, self.scale, 0.0)?;
        }
        Ok((ids, weights))
    }

    /// y {n_embd, used, N} summed over the experts, in their order.
    fn sum(&self, graph: &mut Graph, y: Tensor) -> Result<Tensor, ModelError> {
        let tokens = graph.ne(y)?[2];
        let mut sum = None;
        for place in 0..self.used {
            let part = graph.slice(y, 1, place, 1)?;
            let part = graph.reshape(part, &[self.n_embd, tokens])?;
            sum = Some(match sum {
                None => part,
                Some(sum) => graph.add(sum, part)?,
            });
        }
        // One expert leaves a view of its row, which is as good.
        sum.map_or_else(|| Ok(y), Ok)
    }
}

impl Inward {
    fn load(loader: &mut Loader<'_>, prefix: &str, keys: &ExpertKeys) -> Result<Inward, ModelError> {
        let name = |end: &str| format!("{prefix}.ffn_{end}.weight");
        let shape = |n_ff: Size| [keys.n_embd.clone(), n_ff, keys.experts.clone()];
        if loader.has(&name("gate_up_exps")) {
            return Ok(Inward::Joined(loader.matrix(&name("gate_up_exps"), &shape(keys.n_ff.times(2)))?));
        }
        Ok(Inward::Apart {
            gate: loader.matrix(&name("gate_exps"), &shape(keys.n_ff.clone()))?,
            up: loader.matrix(&name("up_exps"), &shape(keys.n_ff.clone()))?,
        })
    }

    /// x {n_embd, 1, N} by the experts `ids` {used, N}: {n_ff, used, N}.
    fn forward(&self, graph: &mut Graph, x: Tensor, ids: Tensor, n_ff: usize) -> Result<Tensor, ModelError> {
        match self {
            Inward::Apart { gate, up } => {
                let weight = gate.declare(graph)?;
                let gate = graph.mul_mat_id(weight, x, ids)?;
                let weight = up.declare(graph)?;
                let up = graph.mul_mat_id(weight, x, ids)?;
                Ok(graph.swiglu(gate, up)?)
            }
            Inward::Joined(weight) => {
                let weight = weight.declare(graph)?;
                let both = graph.mul_mat_id(weight, x, ids)?;
                let op = Glu { function: GluFunction::Swiglu, split: false, swapped: false };
                let y = graph.op1(op, &[both])?;
                debug_assert_eq!(graph.ne(y)?[0], n_ff);
                Ok(y)
            }
        }
    }
}

impl Shared {
    fn load(loader: &mut Loader<'_>, prefix: &str, n_embd: &Size, n_ff: &Size) -> Result<Shared, ModelError> {
        let gate = format!("{prefix}.ffn_gate_inp_shexp.weight");
        Ok(Shared {
            gate: match loader.has(&gate) {
                true => Some(loader.vector(&gate, std::slice::from_ref(n_embd))?),
                false => None,
            },
            network: Dense::load(loader, prefix, "_shexp", n_embd, n_ff)?,
        })
    }

    fn forward(&self, graph: &mut Graph, x: Tensor) -> Result<Tensor, ModelError> {
        let y = self.network.forward(graph, x)?;
        let Some(gate) = &self.gate else { return Ok(y) };
        let gate = gate.declare(graph)?;
        let gate = graph.mul_mat(gate, x)?;
        let gate = graph.sigmoid(gate)?;
        Ok(graph.mul(y, gate)?)
    }
}
