//! Mamba: a stack of selective scans with one decay per state element.
//!
//! Also FalconMamba, which normalises dt, B and C without weights (`ssm.dt_b_c_rms`).
//! Source: Gu & Dao 2023 (arXiv 2312.00752); keys and tensors as llama.cpp's architecture `mamba`.

use super::stack::Unused;
use super::{Batch, Conv, Hyper, Layer, Loader, Mixer, ModelError, Size, Stack, Weight};
use crate::formats::Gguf;
use crate::graph::{Graph, Tensor};
use ssmgraph_ops::DType;

/// Reads keys and checks tensors.
///
/// Errors: see [`super::load_model`].
pub fn load(gguf: &Gguf) -> Result<Stack, ModelError> {
    let mut hyper = Hyper::load(gguf)?;
    let sizes = MambaSizes::load(gguf, &mut hyper)?;
    let norms = hyper.flag(gguf, "ssm.dt_b_c_rms")?;
    Stack::load(gguf, &hyper, Unused::Listed, |loader, index| {
        let prefix = format!("blk.{index}");
        let layer = Layer::load(loader, &prefix, &hyper)?;
        let norms = if norms { Norms::Plain } else { Norms::None };
        Ok(layer.mixer(Mamba::load(loader, &prefix, &sizes, norms)?))
    })
}

/// What the shapes of a layer are made of.
#[derive(Clone, Debug)]
pub struct MambaSizes {
    n_embd: Size,
    taps: Size,
    d_inner: Size,
    d_state: Size,
    dt_rank: Size,
    eps: f32,
}

impl MambaSizes {
    /// Reads the keys.
    ///
    /// Errors: a key that is missing or 0.
    pub fn load(gguf: &Gguf, hyper: &mut Hyper) -> Result<MambaSizes, ModelError> {
        Ok(MambaSizes {
            n_embd: hyper.n_embd.clone(),
            taps: hyper.size(gguf, "ssm.conv_kernel")?,
            d_inner: hyper.size(gguf, "ssm.inner_size")?,
            d_state: hyper.size(gguf, "ssm.state_size")?,
            dt_rank: hyper.size(gguf, "ssm.time_step_rank")?,
            eps: hyper.eps,
        })
    }
}

/// How dt, B and C are normalised.
#[derive(Clone, Debug)]
pub enum Norms {
    /// Not at all.
    None,
    /// Without weights.
    Plain,
    /// With weights for dt, B and C.
    Weighted(Box<[Weight; 3]>),
}

impl Norms {
    /// Reads `{prefix}.ssm_{dt,b,c}_norm.weight`.
    ///
    /// Errors: a tensor that is missing or has another shape or type.
    pub fn weighted(loader: &mut Loader<'_>, prefix: &str, sizes: &MambaSizes) -> Result<Norms, ModelError> {
        let mut norm = |which: &str, size: &Size| {
            loader.vector(&format!("{prefix}.ssm_{which}_norm.weight"), std::slice::from_ref(size))
        };
        let (dt, b, c) =
            (norm("dt", &sizes.dt_rank)?, norm("b", &sizes.d_state)?, norm("c", &sizes.d_state)?);
        Ok(Norms::Weighted(Box::new([dt, b, c])))
    }
}

/// The mixer of one layer.
#[derive(Clone, Debug)]
pub struct Mamba {
    prefix: String,
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
    norms: Norms,
    eps: f32,
}

impl Mamba {
    /// Reads the tensors of a layer.
    ///
    /// Errors: a tensor that is missing or has another shape or type.
    pub fn load(
        loader: &mut Loader<'_>,
        prefix: &str,
        sizes: &MambaSizes,
        norms: Norms,
    ) -> Result<Mamba, ModelError> {
        let name = |end: &str| format!("{prefix}.{end}");
        let MambaSizes { n_embd, taps, d_inner, d_state, dt_rank, .. } = sizes;
        let selected = dt_rank.plus(&d_state.times(2));
        let one = std::slice::from_ref::<Size>;
        Ok(Mamba {
            input: loader.matrix(&name("ssm_in.weight"), &[n_embd.clone(), d_inner.times(2)])?,
            conv: Conv::load(loader, prefix, taps, d_inner)?,
            select: loader.matrix(&name("ssm_x.weight"), &[d_inner.clone(), selected])?,
            dt: loader.matrix(&name("ssm_dt.weight"), &[dt_rank.clone(), d_inner.clone()])?,
            dt_bias: loader.vector(&name("ssm_dt.bias"), one(d_inner))?,
            a: loader.vector(&name("ssm_a"), &[d_state.clone(), d_inner.clone()])?,
            d: loader.vector(&name("ssm_d"), one(d_inner))?,
            output: loader.matrix(&name("ssm_out.weight"), &[d_inner.clone(), n_embd.clone()])?,
            d_inner: d_inner.count,
            d_state: d_state.count,
            dt_rank: dt_rank.count,
            norms,
            eps: sizes.eps,
            prefix: prefix.to_owned(),
        })
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

    /// Matrices of a quantised file are multiplied with rounded activations, as ggml does. Rows of `ssm_dt` that do
    /// not fill blocks stay F16 in such a file, for which ggml rounds activations to F16; without that, the
    /// roundings after it come out differently.
    fn rounded(&self, graph: &mut Graph, dt: Tensor) -> Result<Tensor, ModelError> {
        if !self.select.layout().dtype.is_quantized() || self.dt.layout().dtype != DType::F16 {
            return Ok(dt);
        }
        let half = graph.cast(dt, DType::F16)?;
        Ok(graph.cast(half, DType::F32)?)
    }

    fn normed(&self, graph: &mut Graph, projections: [Tensor; 3]) -> Result<[Tensor; 3], ModelError> {
        let mut weights = [None; 3];
        match &self.norms {
            Norms::None => return Ok(projections),
            Norms::Plain => {}
            Norms::Weighted(norms) => {
                for (weight, norm) in weights.iter_mut().zip(norms.iter()) {
                    *weight = Some(norm.declare(graph)?);
                }
            }
        }
        let [dt, b, c] = projections;
        Ok([
            graph.rms_norm(dt, weights[0], self.eps)?,
            graph.rms_norm(b, weights[1], self.eps)?,
            graph.rms_norm(c, weights[2], self.eps)?,
        ])
    }
}

impl Mixer for Mamba {
    fn state_bytes(&self) -> usize {
        self.conv.state_bytes().saturating_add(self.a.layout().span_bytes())
    }

    fn cache_elements(&self) -> usize {
        0
    }

    fn forward(&self, graph: &mut Graph, x: Tensor, batch: &Batch) -> Result<Tensor, ModelError> {
        let (tokens, sequences) = (batch.tokens_per_sequence(), batch.sequences());
        let shape = graph.ne(x)?;
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
        Ok(graph.reshape(y, &shape)?)
    }
}
