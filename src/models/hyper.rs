//! Hyper-parameters: numbers of a file, with the keys they come from.

use super::ModelError;
use crate::formats::tokenizer::vocab_size_and_key;
use crate::formats::{Gguf, GgufError};
use std::fmt;

/// A count that a tensor's shape must have, and the keys it was computed from, for errors.
///
/// Counts come from the file, so the arithmetic saturates: a count that is too large matches no tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Size {
    /// The count.
    pub count: usize,
    /// The key, or a formula of keys.
    pub from: String,
}

impl Size {
    /// A count that does not come from a key.
    pub fn fixed(count: usize, why: &str) -> Size {
        Size { count, from: why.to_owned() }
    }

    /// The sum of two counts.
    pub fn plus(&self, other: &Size) -> Size {
        Size {
            count: self.count.saturating_add(other.count),
            from: format!("{} + {}", self.from, other.from),
        }
    }

    /// The count several times.
    pub fn times(&self, factor: usize) -> Size {
        Size { count: self.count.saturating_mul(factor), from: format!("{factor} · {}", self.from) }
    }

    /// The product of two counts.
    pub fn by(&self, other: &Size) -> Size {
        Size {
            count: self.count.saturating_mul(other.count),
            from: format!("{} · {}", self.from, other.from),
        }
    }

    /// The quotient of two counts.
    ///
    /// Errors: a divisor of 0, or one that leaves a rest.
    pub fn over(&self, divisor: &Size) -> Result<Size, ModelError> {
        if divisor.count == 0 || !self.count.is_multiple_of(divisor.count) {
            return Err(ModelError::Hyper {
                key: divisor.from.clone(),
                found: divisor.count.to_string(),
                expected: format!("a divisor of {self}"),
            });
        }
        Ok(Size { count: self.count / divisor.count, from: format!("{} / {}", self.from, divisor.from) })
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.count, self.from)
    }
}

/// The hyper-parameters that every architecture has, and a way to read its own.
#[derive(Clone, Debug)]
pub struct Hyper {
    architecture: String,
    /// `{arch}.block_count`
    pub n_layer: usize,
    /// `{arch}.embedding_length`
    pub n_embd: Size,
    /// Length of the vocabulary.
    pub n_vocab: Size,
    /// `{arch}.attention.layer_norm_rms_epsilon`: of every RMS norm.
    pub eps: f32,
    read: Vec<(String, String)>,
}

impl Hyper {
    /// Reads the common keys.
    ///
    /// Errors: a key that is missing or has the wrong type, a count of 0, an epsilon that is no small
    /// number.
    pub fn load(gguf: &Gguf) -> Result<Hyper, ModelError> {
        let mut hyper = Hyper {
            architecture: gguf.architecture()?.to_owned(),
            n_layer: 0,
            n_embd: Size::fixed(0, ""),
            n_vocab: Size::fixed(0, ""),
            eps: 0.0,
            read: Vec::new(),
        };
        hyper.n_layer = hyper.size(gguf, "block_count")?.count;
        hyper.n_embd = hyper.size(gguf, "embedding_length")?;
        hyper.eps = hyper.eps(gguf)?;
        hyper.n_vocab = match GgufError::optional(vocab_size_and_key(gguf))? {
            Some((count, from)) => Size { count, from },
            // A model without a vocabulary runs on ids; its embedding says how many there are.
            None => Size::fixed(gguf.tensor("token_embd.weight")?.layout.ne[1], "rows of token_embd.weight"),
        };
        Ok(hyper)
    }

    /// The key `{arch}.{name}` as a count of at least 1.
    ///
    /// Errors: no such key, another type, 0.
    pub fn size(&mut self, gguf: &Gguf, name: &str) -> Result<Size, ModelError> {
        let key = self.key(name);
        let count = gguf.usize(&key)?;
        if count == 0 {
            return Err(ModelError::Hyper { key, found: "0".into(), expected: "at least 1".into() });
        }
        self.read.push((key.clone(), count.to_string()));
        Ok(Size { count, from: key })
    }

    /// The key `{arch}.{name}` as a flag; a missing key is false.
    ///
    /// Errors: another type.
    pub fn flag(&mut self, gguf: &Gguf, name: &str) -> Result<bool, ModelError> {
        let key = self.key(name);
        let flag = GgufError::optional(gguf.bool(&key))?.unwrap_or(false);
        self.read.push((key, flag.to_string()));
        Ok(flag)
    }

    /// `{arch}.context_length`, where the file has it.
    ///
    /// Errors: another type.
    pub fn context_length(&self, gguf: &Gguf) -> Result<Option<usize>, ModelError> {
        Ok(GgufError::optional(gguf.usize(&self.key("context_length")))?)
    }

    /// What was read so far, by key.
    pub fn read(&self) -> &[(String, String)] {
        &self.read
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn eps(&mut self, gguf: &Gguf) -> Result<f32, ModelError> {
        let key = self.key("attention.layer_norm_rms_epsilon");
        let eps = gguf.f32(&key)?;
        if !(eps.is_finite() && eps >= 0.0) {
            let expected = "a finite number of at least 0".into();
            return Err(ModelError::Hyper { key, found: eps.to_string(), expected });
        }
        self.read.push((key, format!("{eps:e}")));
        Ok(eps)
    }
}
