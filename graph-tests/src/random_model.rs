//! Seeded random models of benchmark size, with the shapes of the published 130M models and a small vocabulary.

use ssmgraph::formats::gguf::{WriteError, Writer};
use ssmgraph::ops::DType;
use ssmgraph::ops::case::Values;
use ssmgraph::ops::quant::{Q8_0_BLOCK, quantize_q8_0};

/// Sizes of a random Mamba or Mamba-2 model.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// `mamba` or `mamba2`.
    pub architecture: &'static str,
    /// Tokens in the vocabulary.
    pub n_vocab: usize,
    /// Layers.
    pub n_layer: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// States per channel or head row.
    pub d_state: usize,
    /// dt rank of Mamba, heads of Mamba-2.
    pub time_step_rank: usize,
}

/// Mamba-1 with 24 layers of width 768, 16 states per channel.
pub const MAMBA1_130M: Sizes =
    Sizes { architecture: "mamba", n_vocab: 8192, n_layer: 24, n_embd: 768, d_state: 16, time_step_rank: 48 };

/// Mamba-2 with 24 layers of width 768, 24 heads of 64 rows, 128 states.
pub const MAMBA2_130M: Sizes =
    Sizes { architecture: "mamba2", d_state: 128, time_step_rank: 24, ..MAMBA1_130M };

/// Taps of the convolution.
const TAPS: usize = 4;

struct Builder {
    writer: Writer,
    values: Values,
    matrices: DType,
}

/// A model with matrices in F32 or Q8_0.
///
/// Errors: sizes that do not fit a file.
pub fn random_model(sizes: Sizes, matrices: DType, seed: u64) -> Result<Writer, WriteError> {
    let mut builder = Builder { writer: Writer::new(), values: Values::new(seed), matrices };
    builder.keys(sizes)?;
    let Sizes { n_vocab, n_embd, .. } = sizes;
    builder.matrix("token_embd.weight", n_embd, n_vocab, 1.7 * (n_embd as f64).sqrt())?;
    builder.vector("output_norm.weight", &[n_embd], 0.8, 1.2)?;
    builder.matrix("output.weight", n_embd, n_vocab, 1.7)?;
    for layer in 0..sizes.n_layer {
        builder.layer(&format!("blk.{layer}"), sizes)?;
    }
    Ok(builder.writer)
}

impl Builder {
    fn keys(&mut self, sizes: Sizes) -> Result<(), WriteError> {
        let name = sizes.architecture;
        self.writer.metadata("general.architecture", name)?;
        self.writer.metadata("tokenizer.ggml.model", "none")?;
        let numbers = [
            ("vocab_size", sizes.n_vocab),
            ("context_length", 4096),
            ("embedding_length", sizes.n_embd),
            ("block_count", sizes.n_layer),
            ("feed_forward_length", 0),
            ("attention.head_count", 0),
            ("ssm.conv_kernel", TAPS),
            ("ssm.inner_size", 2 * sizes.n_embd),
            ("ssm.state_size", sizes.d_state),
            ("ssm.time_step_rank", sizes.time_step_rank),
        ];
        for (key, value) in numbers {
            self.writer.metadata(&format!("{name}.{key}"), value as u32)?;
        }
        if name == "mamba2" {
            self.writer.metadata("mamba2.ssm.group_count", 1u32)?;
        }
        self.writer.metadata(&format!("{name}.attention.layer_norm_rms_epsilon"), 1e-5f32)?;
        Ok(())
    }

    fn layer(&mut self, prefix: &str, sizes: Sizes) -> Result<(), WriteError> {
        let Sizes { n_embd, d_state, time_step_rank, .. } = sizes;
        let d_inner = 2 * n_embd;
        let name = |end: &str| format!("{prefix}.{end}");
        self.vector(&name("attn_norm.weight"), &[n_embd], 0.8, 1.2)?;
        let channels = if sizes.architecture == "mamba" {
            self.matrix(&name("ssm_in.weight"), n_embd, 2 * d_inner, 1.7)?;
            self.matrix(&name("ssm_x.weight"), d_inner, time_step_rank + 2 * d_state, 5.0)?;
            // dt's rank is no multiple of a Q8_0 block; quantisers leave this matrix alone.
            self.vector(&name("ssm_dt.weight"), &[time_step_rank, d_inner], -0.15, 0.15)?;
            self.vector(&name("ssm_dt.bias"), &[d_inner], -4.6, -0.5)?;
            self.vector(&name("ssm_a"), &[d_state, d_inner], -4.0, -0.25)?;
            self.vector(&name("ssm_d"), &[d_inner], 0.0, 1.0)?;
            d_inner
        } else {
            self.matrix(&name("ssm_in.weight"), n_embd, 2 * d_inner + 2 * d_state + time_step_rank, 1.7)?;
            self.vector(&name("ssm_dt.bias"), &[time_step_rank], -4.6, -0.5)?;
            self.vector(&name("ssm_a"), &[1, time_step_rank], -8.0, -0.1)?;
            self.vector(&name("ssm_d"), &[1, time_step_rank], 0.0, 1.0)?;
            self.vector(&name("ssm_norm.weight"), &[d_inner, 1], 0.8, 1.2)?;
            d_inner + 2 * d_state
        };
        self.vector(&name("ssm_conv1d.weight"), &[TAPS, channels], -1.0, 1.0)?;
        self.vector(&name("ssm_conv1d.bias"), &[channels], -0.2, 0.2)?;
        self.matrix(&name("ssm_out.weight"), d_inner, n_embd, 3.0)
    }

    /// A matrix whose products have about `gain`/√3 times the size of what they are given.
    fn matrix(&mut self, name: &str, n_in: usize, n_out: usize, gain: f64) -> Result<(), WriteError> {
        let bound = gain / (n_in as f64).sqrt();
        let values = self.uniform(n_in * n_out, -bound, bound);
        if self.matrices != DType::Q8_0 {
            return self.writer.tensor_f32(name, &[n_in, n_out], &values).map(|_| ());
        }
        let blocks = values
            .chunks_exact(Q8_0_BLOCK)
            .flat_map(|block| quantize_q8_0(block.try_into().expect("a whole block")).to_bytes());
        self.writer.tensor(name, DType::Q8_0, &[n_in, n_out], blocks.collect()).map(|_| ())
    }

    fn vector(&mut self, name: &str, ne: &[usize], low: f64, high: f64) -> Result<(), WriteError> {
        let values = self.uniform(ne.iter().product(), low, high);
        self.writer.tensor_f32(name, ne, &values).map(|_| ())
    }

    fn uniform(&mut self, count: usize, low: f64, high: f64) -> Vec<f32> {
        (0..count).map(|_| self.values.uniform(low, high) as f32).collect()
    }
}
