//! Mamba-2: heads with one decay each, and B and C shared by the heads of a group.
//!
//! Source: Dao & Gu 2024 (arXiv 2405.21060); keys and tensors as llama.cpp's architecture `mamba2`.

use super::stack::Unused;
use super::{Batch, Conv, Hyper, Layer, Loader, Mixer, ModelError, Size, Stack, Weight};
use crate::formats::Gguf;
use crate::graph::{Graph, Tensor};
use ssmgraph_ops::DType;
use ssmgraph_ops::gated_norm::{Gate, GatedNorm, Order};

/// Reads keys and checks tensors.
///
/// Errors: see [`super::load_model`].
pub fn load(gguf: &Gguf) -> Result<Stack, ModelError> {
    let mut hyper = Hyper::load(gguf)?;
    let sizes = Mamba2Sizes::load(gguf, &mut hyper)?;
    Stack::load(gguf, &hyper, Unused::Listed, |loader, index| {
        let prefix = format!("blk.{index}");
        let layer = Layer::load(loader, &prefix, &hyper)?;
        Ok(layer.mixer(Mamba2::load(loader, &prefix, &sizes, true)?))
    })
}

/// What the shapes of a layer are made of.
#[derive(Clone, Debug)]
pub struct Mamba2Sizes {
    n_embd: Size,
    taps: Size,
    d_inner: Size,
    d_state: Size,
    heads: Size,
    groups: Size,
    head_dim: Size,
    group_dim: Size,
    /// x, B and C pass the convolution together.
    conv_dim: Size,
    eps: f32,
}

impl Mamba2Sizes {
    /// Reads the keys.
    ///
    /// Errors: a key that is missing or 0, counts that do not divide.
    pub fn load(gguf: &Gguf, hyper: &mut Hyper) -> Result<Mamba2Sizes, ModelError> {
        let taps = hyper.size(gguf, "ssm.conv_kernel")?;
        let d_inner = hyper.size(gguf, "ssm.inner_size")?;
        let d_state = hyper.size(gguf, "ssm.state_size")?;
        let heads = hyper.size(gguf, "ssm.time_step_rank")?;
        let groups = hyper.size(gguf, "ssm.group_count")?;
        heads.over(&groups)?;
        Ok(Mamba2Sizes {
            n_embd: hyper.n_embd.clone(),
            head_dim: d_inner.over(&heads)?,
            group_dim: d_inner.over(&groups)?,
            conv_dim: d_inner.plus(&groups.by(&d_state).times(2)),
            taps,
            d_inner,
            d_state,
            heads,
            groups,
            eps: hyper.eps,
        })
    }
}

/// The mixer of one layer.
#[derive(Clone, Debug)]
pub struct Mamba2 {
    prefix: String,
    /// To the gate z, then x, B and C for the convolution, then dt.
    input: Weight,
    conv: Conv,
    dt_bias: Weight,
    a: Weight,
    d: Weight,
    /// Of the gated result; without it there is a gate alone.
    gated_norm: Option<Weight>,
    output: Weight,
    d_inner: usize,
    d_state: usize,
    heads: usize,
    groups: usize,
    head_dim: usize,
    conv_dim: usize,
    eps: f32,
}

impl Mamba2 {
    /// Reads the tensors of a layer. `normed`: there must be a norm of the gated result; else there may be.
    ///
    /// Errors: a tensor that is missing or has another shape or type.
    pub fn load(
        loader: &mut Loader<'_>,
        prefix: &str,
        sizes: &Mamba2Sizes,
        normed: bool,
    ) -> Result<Mamba2, ModelError> {
        let name = |end: &str| format!("{prefix}.{end}");
        let Mamba2Sizes { n_embd, d_inner, heads, groups, group_dim, conv_dim, .. } = sizes;
        let projected = d_inner.plus(conv_dim).plus(heads);
        let per_head = [Size::fixed(1, "one per head"), heads.clone()];
        let norm = name("ssm_norm.weight");
        Ok(Mamba2 {
            input: loader.matrix(&name("ssm_in.weight"), &[n_embd.clone(), projected])?,
            conv: Conv::load(loader, prefix, &sizes.taps, conv_dim)?,
            dt_bias: loader.vector(&name("ssm_dt.bias"), std::slice::from_ref(heads))?,
            a: loader.vector(&name("ssm_a"), &per_head)?,
            d: loader.vector(&name("ssm_d"), &per_head)?,
            gated_norm: match normed || loader.has(&norm) {
                true => Some(loader.vector(&norm, &[group_dim.clone(), groups.clone()])?),
                false => None,
            },
            output: loader.matrix(&name("ssm_out.weight"), &[d_inner.clone(), n_embd.clone()])?,
            d_inner: d_inner.count,
            d_state: sizes.d_state.count,
            heads: heads.count,
            groups: groups.count,
            head_dim: sizes.head_dim.count,
            conv_dim: conv_dim.count,
            eps: sizes.eps,
            prefix: prefix.to_owned(),
        })
    }

    /// y {d_inner, T, B}, gated by z of the same shape, and normalised where the layer has a norm.
    fn gated(&self, graph: &mut Graph, y: Tensor, z: Tensor) -> Result<Tensor, ModelError> {
        let Some(norm) = &self.gated_norm else { return Ok(graph.swiglu(z, y)?) };
        let weight = norm.declare(graph)?;
        let weight = graph.reshape(weight, &[self.d_inner])?;
        let op = GatedNorm {
            eps: self.eps,
            group_size: self.d_inner / self.groups,
            order: Order::GateThenNorm,
            gate: Gate::Silu,
        };
        Ok(graph.gated_norm(op, y, z, weight)?)
    }

    /// x, B and C {conv_dim, T, B} and dt {heads, T, B} to y {d_inner, T, B}; moves the state `{prefix}.ssm`
    /// on.
    fn scan(&self, graph: &mut Graph, xbc: Tensor, dt: Tensor, batch: &Batch) -> Result<Tensor, ModelError> {
        let (tokens, sequences) = (batch.tokens_per_sequence(), batch.sequences());
        let group_row = self.groups * self.d_state;
        let x = graph.slice(xbc, 0, 0, self.d_inner)?;
        let x = graph.reshape(x, &[self.head_dim, self.heads, tokens, sequences])?;
        let b = graph.slice(xbc, 0, self.d_inner, group_row)?;
        let b = graph.reshape(b, &[self.d_state, self.groups, tokens, sequences])?;
        let c = graph.slice(xbc, 0, self.d_inner + group_row, group_row)?;
        let c = graph.reshape(c, &[self.d_state, self.groups, tokens, sequences])?;
        let bias = self.dt_bias.declare(graph)?;
        let dt = graph.add(dt, bias)?;

        let row = [self.d_state, self.head_dim, self.heads];
        let state = graph.state(&format!("{}.ssm", self.prefix), DType::F32, &row, &batch.slots)?;
        let a = self.a.declare(graph)?;
        let operands = [state.pool, x, dt, a, b, c, batch.slots.read];
        let scan = graph.ssm_scan(operands, batch.slots.write.len())?;
        for (back, &rows) in scan.states.iter().enumerate() {
            graph.write_state(&state, &batch.slots, back, rows)?;
        }
        let d = self.d.declare(graph)?;
        let skip = graph.mul(x, d)?;
        let y = graph.add(scan.y, skip)?;
        Ok(graph.reshape(y, &[self.d_inner, tokens, sequences])?)
    }
}

impl Mixer for Mamba2 {
    fn state_bytes(&self) -> usize {
        let scan = self.d_inner.saturating_mul(self.d_state).saturating_mul(size_of::<f32>());
        self.conv.state_bytes().saturating_add(scan)
    }

    fn cache_elements(&self) -> usize {
        0
    }

    fn forward(&self, graph: &mut Graph, x: Tensor, batch: &Batch) -> Result<Tensor, ModelError> {
        let (tokens, sequences) = (batch.tokens_per_sequence(), batch.sequences());
        let shape = graph.ne(x)?;
        let input = self.input.declare(graph)?;
        let projected = graph.mul_mat(input, x)?;
        let all = self.d_inner + self.conv_dim + self.heads;
        let projected = graph.reshape(projected, &[all, tokens, sequences])?;
        let z = graph.slice(projected, 0, 0, self.d_inner)?;
        let xbc = graph.slice(projected, 0, self.d_inner, self.conv_dim)?;
        let dt = graph.slice(projected, 0, self.d_inner + self.conv_dim, self.heads)?;

        let xbc = self.conv.forward(graph, xbc, batch)?;
        let y = self.scan(graph, xbc, dt, batch)?;
        let y = self.gated(graph, y, z)?;

        let output = self.output.declare(graph)?;
        let y = graph.mul_mat(output, y)?;
        Ok(graph.reshape(y, &shape)?)
    }
}
