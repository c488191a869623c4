//! Seeded random models of benchmark size, with the shapes of published models and a small vocabulary. llama.cpp loads
//! them as well: they say that there is no tokenizer.

mod mamba;
mod qwen35;

pub use mamba::{MAMBA1_130M, MAMBA2_130M, MambaSizes};
pub use qwen35::{QWEN35_500M, Qwen35Sizes};

use ssmgraph::formats::gguf::{WriteError, Writer};
use ssmgraph::ops::case::Values;
use ssmgraph::ops::quant::Format;
use ssmgraph::ops::{DType, HostTensor, Layout};

/// What to write.
#[derive(Clone, Copy, Debug)]
pub enum Model {
    /// Mamba or Mamba-2.
    Mamba(MambaSizes),
    /// A hybrid of the gated delta rule and attention.
    Qwen35(Qwen35Sizes),
}

impl Model {
    /// The models of benchmark size, by the names of the command line.
    pub const NAMED: &[(&str, Model)] = &[
        ("mamba1", Model::Mamba(MAMBA1_130M)),
        ("mamba2", Model::Mamba(MAMBA2_130M)),
        ("qwen35", Model::Qwen35(QWEN35_500M)),
    ];
}

/// Types that matrices may have.
pub const MATRIX_TYPES: &[DType] =
    &[DType::F32, DType::F16, DType::Q8_0, DType::Q4_0, DType::Q4K, DType::Q6K];

/// Taps of the convolutions.
const TAPS: usize = 4;

/// The bound of uniform numbers whose variance is 1.
const UNIT: f64 = 1.7;

/// A model with matrices of one of [`MATRIX_TYPES`]. In a Q4_K file the embedding and the output matrix are Q6_K, as
/// llama.cpp's usual recipe for such files has the output. Rows that do not fill blocks of 256 become Q8_0, rows that
/// do not fill blocks of 32 become F16.
///
/// Errors: sizes that do not fit a file.
///
/// Panics on another type.
pub fn random_model(model: Model, matrices: DType, seed: u64) -> Result<Writer, WriteError> {
    assert!(MATRIX_TYPES.contains(&matrices), "{matrices} is none of the matrix types");
    let mut builder = Builder { writer: Writer::new(), values: Values::new(seed), matrices };
    match model {
        Model::Mamba(sizes) => mamba::write(&mut builder, sizes)?,
        Model::Qwen35(sizes) => qwen35::write(&mut builder, sizes)?,
    }
    Ok(builder.writer)
}

/// Sizes that every architecture has.
struct Outline {
    architecture: &'static str,
    n_vocab: usize,
    n_layer: usize,
    n_embd: usize,
    n_ff: usize,
    eps: f32,
}

struct Builder {
    writer: Writer,
    values: Values,
    matrices: DType,
}

impl Builder {
    /// Keys and tensors outside the layers. `numbers` are the keys that not every architecture has, without its name.
    fn outline(&mut self, outline: &Outline, numbers: &[(&str, usize)]) -> Result<(), WriteError> {
        let &Outline { architecture, n_vocab, n_layer, n_embd, n_ff, eps } = outline;
        self.writer.metadata("general.architecture", architecture)?;
        self.writer.metadata("general.name", format!("random {architecture}").as_str())?;
        self.writer.metadata("tokenizer.ggml.model", "none")?;
        let common = [
            ("vocab_size", n_vocab),
            ("context_length", 4096),
            ("embedding_length", n_embd),
            ("block_count", n_layer),
            ("feed_forward_length", n_ff),
            ("ssm.conv_kernel", TAPS),
        ];
        for &(key, value) in common.iter().chain(numbers) {
            self.writer.metadata(&format!("{architecture}.{key}"), value as u32)?;
        }
        self.writer.metadata(&format!("{architecture}.attention.layer_norm_rms_epsilon"), eps)?;
        let outer = if self.matrices == DType::Q4K { DType::Q6K } else { self.matrices };
        let embedding_gain = UNIT * (n_embd as f64).sqrt();
        self.matrix_of(outer, "token_embd.weight", n_embd, n_vocab, embedding_gain)?;
        self.norm("output_norm.weight", &[n_embd])?;
        self.matrix_of(outer, "output.weight", n_embd, n_vocab, UNIT)
    }

    /// A matrix whose products have about `gain`/√3 times the size of what they are given.
    fn matrix(&mut self, name: &str, n_in: usize, n_out: usize, gain: f64) -> Result<(), WriteError> {
        self.matrix_of(self.matrices, name, n_in, n_out, gain)
    }

    fn matrix_of(
        &mut self,
        dtype: DType,
        name: &str,
        n_in: usize,
        n_out: usize,
        gain: f64,
    ) -> Result<(), WriteError> {
        let bound = gain / (n_in as f64).sqrt();
        let values = self.uniform(n_in * n_out, -bound, bound);
        let fits = |dtype: &DType| n_in.is_multiple_of(dtype.block_len());
        let dtype = [dtype, DType::Q8_0, DType::F16].into_iter().find(fits).expect("F16 always fits");
        self.writer.tensor(name, dtype, &[n_in, n_out], encoded(&values, dtype)).map(|_| ())
    }

    fn norm(&mut self, name: &str, ne: &[usize]) -> Result<(), WriteError> {
        self.vector(name, ne, 0.8, 1.2)
    }

    fn vector(&mut self, name: &str, ne: &[usize], low: f64, high: f64) -> Result<(), WriteError> {
        let values = self.uniform(ne.iter().product(), low, high);
        self.writer.tensor_f32(name, ne, &values).map(|_| ())
    }

    fn uniform(&mut self, count: usize, low: f64, high: f64) -> Vec<f32> {
        (0..count).map(|_| self.values.uniform(low, high) as f32).collect()
    }
}

/// Numbers in the bytes of a type, rounded.
///
/// Panics when they fill no whole blocks.
pub fn encoded(values: &[f32], dtype: DType) -> Vec<u8> {
    if let Some(format) = Format::of(dtype) {
        return format.encoded(values);
    }
    match dtype {
        DType::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        _ => {
            let layout = Layout::contiguous(dtype, &[values.len()]).expect("as many as lie in memory");
            let mut tensor = HostTensor::zeros(layout);
            let mut view = tensor.view_mut().expect("packed");
            values.iter().enumerate().for_each(|(index, &value)| view.set([index, 0, 0, 0], value.into()));
            tensor.bytes().to_vec()
        }
    }
}
