//! The linear mixer of the Qwen hybrids: a convolution, then the gated delta rule.
//!
//! Source: Yang, Kautz & Hatamizadeh 2024 (arXiv 2412.06464); tensors as llama.cpp's architectures `qwen3next` and
//! `qwen35`.

use super::{Batch, Conv, Hyper, Loader, Mixer, ModelError, Size, Weight};
use crate::formats::Gguf;
use crate::graph::{Graph, Tensor};
use ssmgraph_ops::DType;
use ssmgraph_ops::gated_delta_net::Grouping;
use ssmgraph_ops::gated_norm::{Gate, GatedNorm, Order};
use ssmgraph_ops::l2_norm::Form;

/// What the shapes of the mixers of a model are made of.
#[derive(Clone, Debug)]
pub struct DeltaSizes {
    n_embd: Size,
    taps: Size,
    /// Rows and columns of a head's state.
    size: Size,
    key_heads: Size,
    heads: Size,
    key_dim: Size,
    value_dim: Size,
    conv_dim: Size,
    eps: f32,
}

impl DeltaSizes {
    /// Reads the keys.
    ///
    /// Errors: a key that is missing, sizes that contradict each other.
    pub fn load(gguf: &Gguf, hyper: &mut Hyper) -> Result<DeltaSizes, ModelError> {
        let taps = hyper.size(gguf, "ssm.conv_kernel")?;
        let inner = hyper.size(gguf, "ssm.inner_size")?;
        let size = hyper.size(gguf, "ssm.state_size")?;
        let heads = hyper.size(gguf, "ssm.time_step_rank")?;
        let key_heads = hyper.size(gguf, "ssm.group_count")?;
        heads.over(&key_heads)?;
        let (key_dim, value_dim) = (size.by(&key_heads), size.by(&heads));
        if inner.count != value_dim.count {
            return Err(hyper.refused("ssm.inner_size", &inner.count.to_string(), &value_dim.to_string()));
        }
        let conv_dim = key_dim.times(2).plus(&value_dim);
        let (n_embd, eps) = (hyper.n_embd.clone(), hyper.eps);
        Ok(DeltaSizes { n_embd, taps, size, key_heads, heads, key_dim, value_dim, conv_dim, eps })
    }
}

/// From a token to queries, keys, values and the gate z of the result.
#[derive(Clone, Debug)]
enum Input {
    /// One matrix for what passes the convolution, one for z.
    Apart { qkv: Weight, z: Weight },
    /// One matrix; for each key head its query, its key, its values, their gates.
    ByKeyHead(Weight),
}

/// From a token to beta and alpha.
#[derive(Clone, Debug)]
enum Strengths {
    Apart {
        beta: Weight,
        alpha: Weight,
    },
    /// One matrix; for each key head the betas of its heads, then their alphas.
    ByKeyHead(Weight),
}

/// The mixer of one layer.
#[derive(Clone, Debug)]
pub struct Delta {
    prefix: String,
    sizes: DeltaSizes,
    grouping: Grouping,
    input: Input,
    strengths: Strengths,
    conv: Conv,
    a: Weight,
    dt_bias: Weight,
    norm: Weight,
    output: Weight,
}

impl Delta {
    /// Reads the tensors of a layer. `grouping` says which key head a value head reads.
    ///
    /// Errors: a tensor that is missing or has another shape or type.
    pub fn load(
        loader: &mut Loader<'_>,
        prefix: &str,
        sizes: &DeltaSizes,
        grouping: Grouping,
    ) -> Result<Delta, ModelError> {
        let name = |end: &str| format!("{prefix}.{end}");
        let DeltaSizes { n_embd, taps, size, heads, value_dim, conv_dim, .. } = sizes;
        let per_head = std::slice::from_ref(heads);
        Ok(Delta {
            input: Input::load(loader, prefix, sizes, grouping)?,
            conv: Conv::load(loader, prefix, taps, conv_dim)?,
            strengths: Strengths::load(loader, prefix, sizes, grouping)?,
            dt_bias: loader.vector(&name("ssm_dt.bias"), per_head)?,
            a: loader.vector(&name("ssm_a"), per_head)?,
            norm: loader.vector(&name("ssm_norm.weight"), std::slice::from_ref(size))?,
            output: loader.matrix(&name("ssm_out.weight"), &[value_dim.clone(), n_embd.clone()])?,
            grouping,
            sizes: sizes.clone(),
            prefix: prefix.to_owned(),
        })
    }

    /// q, k and v, joined {conv_dim, T, B}, to y {S, heads, T, B}; moves the state `{prefix}.ssm` on.
    fn recur(
        &self,
        graph: &mut Graph,
        qkv: Tensor,
        [decay, beta]: [Tensor; 2],
        batch: &Batch,
    ) -> Result<Tensor, ModelError> {
        let (tokens, sequences) = (batch.tokens_per_sequence(), batch.sequences());
        let DeltaSizes { size, key_heads, heads, key_dim, value_dim, .. } = &self.sizes;
        let (size, key_dim) = (size.count, key_dim.count);
        let key_shape = [size, key_heads.count, tokens, sequences];
        let q = graph.slice(qkv, 0, 0, key_dim)?;
        let q = graph.reshape(q, &key_shape)?;
        let k = graph.slice(qkv, 0, key_dim, key_dim)?;
        let k = graph.reshape(k, &key_shape)?;
        let v = graph.slice(qkv, 0, 2 * key_dim, value_dim.count)?;
        let v = graph.reshape(v, &[size, heads.count, tokens, sequences])?;
        let (q, k) = graph.qk_norm(q, k, self.sizes.eps, Form::Add)?;

        let row = [size, size, heads.count];
        let state = graph.state(&format!("{}.ssm", self.prefix), DType::F32, &row, &batch.slots)?;
        let operands = [state.pool, q, k, v, decay, beta, batch.slots.read];
        let delta = graph.gated_delta_net(operands, self.grouping, batch.slots.write.len())?;
        for (back, &rows) in delta.states.iter().enumerate() {
            graph.write_state(&state, &batch.slots, back, rows)?;
        }
        Ok(delta.y)
    }

    /// The logarithm of the decay and the strength of writing, {1, heads, T, B} each, of x {n_embd, T · B}.
    fn strengths(&self, graph: &mut Graph, x: Tensor, batch: &Batch) -> Result<[Tensor; 2], ModelError> {
        let [beta, alpha] = self.strengths.forward(graph, x, &self.sizes)?;
        let beta = graph.sigmoid(beta)?;
        let inner = graph.ne(alpha)?;
        let a = self.a.declare(graph)?;
        let a = graph.reshape(a, &inner[..2])?;
        let bias = self.dt_bias.declare(graph)?;
        let bias = graph.reshape(bias, &inner[..2])?;
        let decay = graph.decay_gate(alpha, a, bias)?;
        let shape = [1, self.sizes.heads.count, batch.tokens_per_sequence(), batch.sequences()];
        Ok([graph.reshape(decay, &shape)?, graph.reshape(beta, &shape)?])
    }
}

impl Mixer for Delta {
    fn state_bytes(&self) -> usize {
        let memory = self.sizes.size.by(&self.sizes.value_dim).count.saturating_mul(size_of::<f32>());
        self.conv.state_bytes().saturating_add(memory)
    }

    fn cache_elements(&self) -> usize {
        0
    }

    fn forward(&self, graph: &mut Graph, x: Tensor, batch: &Batch) -> Result<Tensor, ModelError> {
        let (tokens, sequences) = (batch.tokens_per_sequence(), batch.sequences());
        let DeltaSizes { size, heads, value_dim, conv_dim, eps, .. } = &self.sizes;
        let [qkv, z] = self.input.forward(graph, x, &self.sizes)?;
        let qkv = graph.reshape(qkv, &[conv_dim.count, tokens, sequences])?;
        let qkv = self.conv.forward(graph, qkv, batch)?;
        let strengths = self.strengths(graph, x, batch)?;
        let y = self.recur(graph, qkv, strengths, batch)?;

        let norm = self.norm.declare(graph)?;
        let z = graph.reshape(z, &[size.count, heads.count, tokens, sequences])?;
        let op =
            GatedNorm { eps: *eps, group_size: size.count, order: Order::NormThenGate, gate: Gate::Silu };
        let y = graph.gated_norm(op, y, z, norm)?;
        let y = graph.reshape(y, &[value_dim.count, tokens * sequences])?;
        let output = self.output.declare(graph)?;
        Ok(graph.mul_mat(output, y)?)
    }
}

impl Input {
    fn load(
        loader: &mut Loader<'_>,
        prefix: &str,
        sizes: &DeltaSizes,
        grouping: Grouping,
    ) -> Result<Input, ModelError> {
        let name = |end: &str| format!("{prefix}.{end}.weight");
        let DeltaSizes { n_embd, value_dim, conv_dim, .. } = sizes;
        if grouping == Grouping::Interleaved && loader.has(&name("ssm_in")) {
            let rows = conv_dim.plus(value_dim);
            return Ok(Input::ByKeyHead(loader.matrix(&name("ssm_in"), &[n_embd.clone(), rows])?));
        }
        Ok(Input::Apart {
            qkv: loader.matrix(&name("attn_qkv"), &[n_embd.clone(), conv_dim.clone()])?,
            z: loader.matrix(&name("attn_gate"), &[n_embd.clone(), value_dim.clone()])?,
        })
    }

    /// q, k and v, joined {conv_dim, T · B}, and z {value_dim, T · B}, of x {n_embd, T · B}.
    fn forward(&self, graph: &mut Graph, x: Tensor, sizes: &DeltaSizes) -> Result<[Tensor; 2], ModelError> {
        let all = match self {
            Input::Apart { qkv, z } => {
                let qkv = qkv.declare(graph)?;
                let z = z.declare(graph)?;
                return Ok([graph.mul_mat(qkv, x)?, graph.mul_mat(z, x)?]);
            }
            Input::ByKeyHead(all) => all.declare(graph)?,
        };
        let rows = graph.mul_mat(all, x)?;
        let tokens = graph.ne(rows)?[1];
        let (size, key_heads) = (sizes.size.count, sizes.key_heads.count);
        let values = sizes.value_dim.count / key_heads;
        let rows = graph.reshape(rows, &[2 * size + 2 * values, key_heads, tokens])?;
        let mut part = |first: usize, count: usize| {
            let part = graph.slice(rows, 0, first, count)?;
            let part = graph.cont(part)?;
            graph.reshape(part, &[count * key_heads, tokens])
        };
        let (q, k) = (part(0, size)?, part(size, size)?);
        let (v, z) = (part(2 * size, values)?, part(2 * size + values, values)?);
        Ok([graph.concat(&[q, k, v], 0)?, z])
    }
}

impl Strengths {
    fn load(
        loader: &mut Loader<'_>,
        prefix: &str,
        sizes: &DeltaSizes,
        grouping: Grouping,
    ) -> Result<Strengths, ModelError> {
        let name = |end: &str| format!("{prefix}.{end}.weight");
        let DeltaSizes { n_embd, heads, .. } = sizes;
        // Heads in tiles have no neighbours that one key head's rows could hold together.
        if grouping == Grouping::Interleaved {
            let shape = [n_embd.clone(), heads.times(2)];
            return Ok(Strengths::ByKeyHead(loader.matrix(&name("ssm_ba"), &shape)?));
        }
        let shape = [n_embd.clone(), heads.clone()];
        Ok(Strengths::Apart {
            beta: loader.matrix(&name("ssm_beta"), &shape)?,
            alpha: loader.matrix(&name("ssm_alpha"), &shape)?,
        })
    }

    /// beta and alpha before their activations, of x {n_embd, T · B}: {heads / G, G, T · B} each, where G is 1 or
    /// the number of key heads.
    fn forward(&self, graph: &mut Graph, x: Tensor, sizes: &DeltaSizes) -> Result<[Tensor; 2], ModelError> {
        let (heads, key_heads) = (sizes.heads.count, sizes.key_heads.count);
        let mut product = |weight: &Weight, shape: &[usize; 2]| -> Result<Tensor, ModelError> {
            let weight = weight.declare(graph)?;
            let rows = graph.mul_mat(weight, x)?;
            let tokens = graph.ne(rows)?[1];
            Ok(graph.reshape(rows, &[shape[0], shape[1], tokens])?)
        };
        match self {
            Strengths::Apart { beta, alpha } => {
                Ok([product(beta, &[heads, 1])?, product(alpha, &[heads, 1])?])
            }
            Strengths::ByKeyHead(both) => {
                let each = heads / key_heads;
                let both = product(both, &[2 * each, key_heads])?;
                Ok([graph.slice(both, 0, 0, each)?, graph.slice(both, 0, each, each)?])
            }
        }
    }
}
