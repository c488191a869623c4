//! Mamba: a stack of selective scans with one decay per state element.
//!
//! Also FalconMamba, which normalises dt, B and C without weights (`ssm.dt_b_c_rms`).
//! Source: Gu & Dao 2023 (arXiv 2312.00752); keys and tensors as llama.cpp's architecture `mamba`.

use super::{Batch, Conv, Frame, Hyper, Info, Loader, Model, ModelError, Weight};
use crate::formats::Gguf;
use crate::graph::{Graph, Tensor};
use ssmgraph_ops::DType;

/// A Mamba model.
#[derive(Clone, Debug)]
pub struct Mamba {
    info: Info,
    frame: Frame,
    layers: Vec<Layer>,
}

impl Mamba {
    /// Reads keys and checks tensors.
    ///
    /// Errors: see [`super::load_model`].
    pub fn load(gguf: &Gguf) -> Result<Mamba, ModelError> {
        let mut hyper = Hyper::load(gguf)?;
        let sizes = Sizes {
            n_embd: hyper.n_embd.clone(),
            taps: hyper.size(gguf, "ssm.conv_kernel")?,
            d_inner: hyper.size(gguf, "ssm.inner_size")?,
            d_state: hyper.size(gguf, "ssm.state_size")?,
            dt_rank: hyper.size(gguf, "ssm.time_step_rank")?,
            norm_projections: hyper.flag(gguf, "ssm.dt_b_c_rms")?,
            eps: hyper.eps,
        };
        let mut loader = Loader::new(gguf);
        let frame = Frame::load(&mut loader, &hyper)?;
        let layers = (0..hyper.n_layer)
            .map(|index| Layer::load(&mut loader, index, &sizes))
            .collect::<Result<Vec<_>, _>>()?;
        let state_bytes = layers.iter().map(Layer::state_bytes).fold(0, usize::saturating_add);
        Ok(Mamba { info: loader.finish(&hyper, state_bytes, 0)?, frame, layers })
    }
}

impl Model for Mamba {
    fn info(&self) -> &Info {
        &self.info
    }

    fn forward(&self, graph: &mut Graph, batch: &Batch) -> Result<Tensor, ModelError> {
        let mut x = self.frame.embed(graph, batch)?;
        for layer in &self.layers {
            x = layer.forward(graph, x, batch)?;
        }
        self.frame.logits(graph, x, batch)
    }
}

/// What the shapes of a layer are made of.
struct Sizes {
    n_embd: super::Size,
    taps: super::Size,
    d_inner: super::Size,
    d_state: super::Size,
    dt_rank: super::Size,
    norm_projections: bool,
    eps: f32,
}

#[derive(Clone, Debug)]
struct Layer {
    prefix: String,
    norm: Weight,
    /// To x and the gate z.
    input: Weight,
    conv: Conv,
    /// To dt, B and C.
    select: Weight,
    dt: Weight,
    dt_bias: Weight,
    a: Weight,
    d: Weight,
    output: Weight,
    d_inner: usize,
    d_state: usize,
    dt_rank: usize,
    norm_projections: bool,
    eps: f32,
}

impl Layer {
    fn load(loader: &mut Loader<'_>, index: usize, sizes: &Sizes) -> Result<Layer, ModelError> {
        let prefix = format!("blk.{index}");
        let name = |end: &str| format!("{prefix}.{end}");
        let Sizes { n_embd, taps, d_inner, d_state, dt_rank, .. } = sizes;
        let selected = dt_rank.plus(&d_state.times(2));
        let one = std::slice::from_ref::<super::Size>;
        Ok(Layer {
            norm: loader.vector(&name("attn_norm.weight"), one(n_embd))?,
            input: loader.matrix(&name("ssm_in.weight"), &[n_embd.clone(), d_inner.times(2)])?,
            conv: Conv::load(loader, &prefix, taps, d_inner)?,
            select: loader.matrix(&name("ssm_x.weight"), &[d_inner.clone(), selected])?,
            dt: loader.matrix(&name("ssm_dt.weight"), &[dt_rank.clone(), d_inner.clone()])?,
            dt_bias: loader.vector(&name("ssm_dt.bias"), one(d_inner))?,
            a: loader.vector(&name("ssm_a"), &[d_state.clone(), d_inner.clone()])?,
            d: loader.vector(&name("ssm_d"), one(d_inner))?,
            output: loader.matrix(&name("ssm_out.weight"), &[d_inner.clone(), n_embd.clone()])?,
            d_inner: d_inner.count,
            d_state: d_state.count,
            dt_rank: dt_rank.count,
            norm_projections: sizes.norm_projections,
            eps: sizes.eps,
            prefix,
        })
    }

    fn state_bytes(&self) -> usize {
        self.conv.state_bytes().saturating_add(self.a.layout().span_bytes())
    }

    /// x {n_embd, T · B} to the same.
    fn forward(&self, graph: &mut Graph, x: Tensor, batch: &Batch) -> Result<Tensor, ModelError> {
        let (tokens, sequences) = (batch.tokens_per_sequence(), batch.sequences());
        let residual = x;
        let norm = self.norm.declare(graph)?;
        let x = graph.rms_norm(x, Some(norm), self.eps)?;

        let input = self.input.declare(graph)?;
        let xz = graph.mul_mat(input, x)?;
        let xz = graph.reshape(xz, &[2 * self.d_inner, tokens, sequences])?;
        let x = graph.slice(xz, 0, 0, self.d_inner)?;
        let z = graph.slice(xz, 0, self.d_inner, self.d_inner)?;

        let x = self.conv.forward(graph, x, batch)?;
        let y = self.scan(graph, x, batch)?;
        let d = self.d.declare(graph)?;
        let skip = graph.mul(x, d)?;
        let y = graph.add(y, skip)?;
        let y = graph.swiglu(z, y)?;

        let output = self.output.declare(graph)?;
        let y = graph.mul_mat(output, y)?;
        let y = graph.reshape(y, &graph.ne(residual)?)?;
        Ok(graph.add(residual, y)?)
    }

    /// x {d_inner, T, B} to y of the same shape; moves the state `{prefix}.ssm` on.
    fn scan(&self, graph: &mut Graph, x: Tensor, batch: &Batch) -> Result<Tensor, ModelError> {
        let (tokens, sequences) = (batch.tokens_per_sequence(), batch.sequences());
        let select = self.select.declare(graph)?;
        let selected = graph.mul_mat(select, x)?;
        let dt = graph.slice(selected, 0, 0, self.dt_rank)?;
        let b = graph.slice(selected, 0, self.dt_rank, self.d_state)?;
        let c = graph.slice(selected, 0, self.dt_rank + self.d_state, self.d_state)?;
        let [dt, b, c] = self.normed(graph, [dt, b, c])?;
        let b = graph.reshape(b, &[self.d_state, 1, tokens, sequences])?;
        let c = graph.reshape(c, &[self.d_state, 1, tokens, sequences])?;

        let weight = self.dt.declare(graph)?;
        let bias = self.dt_bias.declare(graph)?;
        let dt = self.rounded(graph, dt)?;
        let dt = graph.mul_mat(weight, dt)?;
        let dt = graph.add(dt, bias)?;

        // Every channel is a head of one row.
        let row = [self.d_state, 1, self.d_inner];
        let state = graph.state(&format!("{}.ssm", self.prefix), DType::F32, &row, &batch.slots)?;
        let a = self.a.declare(graph)?;
        let heads = graph.reshape(x, &[1, self.d_inner, tokens, sequences])?;
        let operands = [state.pool, heads, dt, a, b, c, batch.slots.read];
        let scan = graph.ssm_scan(operands, batch.slots.write.len())?;
        for (back, &rows) in scan.states.iter().enumerate() {
            graph.write_state(&state, &batch.slots, back, rows)?;
        }
        Ok(graph.reshape(scan.y, &[self.d_inner, tokens, sequences])?)
    }

    /// Matrices of a Q8_0 file are multiplied as ggml does, activations rounded. Rows of `ssm_dt` that do not
    /// fill Q8_0 blocks stay F16 in such a file, for which ggml rounds activations to F16; without that, the
    /// Q8_0 roundings after it come out differently.
    fn rounded(&self, graph: &mut Graph, dt: Tensor) -> Result<Tensor, ModelError> {
        if self.select.layout().dtype != DType::Q8_0 || self.dt.layout().dtype != DType::F16 {
            return Ok(dt);
        }
        let half = graph.cast(dt, DType::F16)?;
        Ok(graph.cast(half, DType::F32)?)
    }

    fn normed(&self, graph: &mut Graph, projections: [Tensor; 3]) -> Result<[Tensor; 3], ModelError> {
        if !self.norm_projections {
            return Ok(projections);
        }
        let [dt, b, c] = projections;
        Ok([
            graph.rms_norm(dt, None, self.eps)?,
            graph.rms_norm(b, None, self.eps)?,
            graph.rms_norm(c, None, self.eps)?,
        ])
    }
}
