//! Hyper-parameters: numbers of a file, with the keys they come from.

use super::ModelError;
use crate::formats::gguf::Value;
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

/// A count for each layer; 0 is legal.
#[derive(Clone, Debug)]
pub struct PerLayer {
    key: String,
    /// One that holds for all layers, or one for each.
    counts: Vec<usize>,
}

impl PerLayer {
    /// The counts as the default of a key that the file lacks.
    pub fn instead_of(self, key: &str) -> PerLayer {
        PerLayer { key: format!("{}, without {key}", self.key), ..self }
    }

    /// The count of a layer; 0 where there is none.
    pub fn at(&self, layer: usize) -> Size {
        let count = if self.counts.len() == 1 { self.counts.first() } else { self.counts.get(layer) };
        Size { count: count.copied().unwrap_or(0), from: self.key.clone() }
    }
}

/// The hyper-parameters that every architecture has, and a way to read its own.
#[derive(Clone, Debug)]
pub struct Hyper {
    architecture: String,
    /// Layers that the model runs.
    pub n_layer: usize,
    /// `{arch}.block_count`, which also counts layers that are not run.
    block_count: usize,
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
            block_count: 0,
            n_embd: Size::fixed(0, ""),
            n_vocab: Size::fixed(0, ""),
            eps: 0.0,
            read: Vec::new(),
        };
        hyper.block_count = hyper.size(gguf, "block_count")?.count;
        hyper.n_layer = hyper.block_count;
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

    /// The key `{arch}.{name}` as a count of at least 1, or `None` without the key.
    ///
    /// Errors: another type, 0.
    pub fn size_if_there(&mut self, gguf: &Gguf, name: &str) -> Result<Option<Size>, ModelError> {
        if self.has(gguf, name) { self.size(gguf, name).map(Some) } else { Ok(None) }
    }

    /// The key `{arch}.{name}`: one count for all layers or one for each; 0 is legal.
    ///
    /// Errors: no such key, another type, another number of counts than `block_count`.
    pub fn per_layer(&mut self, gguf: &Gguf, name: &str) -> Result<PerLayer, ModelError> {
        let key = self.key(name);
        let counts = match gguf.get(&key)? {
            Value::Array(array) if array.len() != self.block_count => {
                let found = format!("{} counts", array.len());
                let layers = format!("{} layers ({})", self.block_count, self.key("block_count"));
                return Err(self.refused(name, &found, &format!("one count or one for each of {layers}")));
            }
            Value::Array(_) => {
                gguf.u32_per_layer(&key, self.block_count)?.into_iter().map(|count| count as usize).collect()
            }
            _ => vec![gguf.usize(&key)?],
        };
        self.read.push((key.clone(), gguf.get(&key)?.to_string()));
        Ok(PerLayer { key, counts })
    }

    /// The key `{arch}.{name}` as a finite number, or `None` without the key.
    ///
    /// Errors: another type, a number that is not finite.
    pub fn number(&mut self, gguf: &Gguf, name: &str) -> Result<Option<f32>, ModelError> {
        let key = self.key(name);
        let Some(number) = GgufError::optional(gguf.f32(&key))? else { return Ok(None) };
        if !number.is_finite() {
            return Err(self.refused(name, &number.to_string(), "a finite number"));
        }
        self.read.push((key, number.to_string()));
        Ok(Some(number))
    }

    /// The key `{arch}.{name}` as a text, or `None` without the key.
    ///
    /// Errors: another type.
    pub fn text(&mut self, gguf: &Gguf, name: &str) -> Result<Option<String>, ModelError> {
        let key = self.key(name);
        let Some(text) = GgufError::optional(gguf.string(&key))?.map(str::to_owned) else { return Ok(None) };
        self.read.push((key, text.clone()));
        Ok(Some(text))
    }

    /// Leaves out the layers at the end that predict further tokens (`nextn_predict_layers`): they are no part of
    /// the model proper.
    ///
    /// Errors: a key of another type, no layers left.
    pub fn skip_prediction_layers(&mut self, gguf: &Gguf) -> Result<(), ModelError> {
        const NAME: &str = "nextn_predict_layers";
        let key = self.key(NAME);
        let Some(count) = GgufError::optional(gguf.usize(&key))? else { return Ok(()) };
        if count >= self.block_count {
            let expected = format!("less than {} ({})", self.block_count, self.key("block_count"));
            return Err(self.refused(NAME, &count.to_string(), &expected));
        }
        self.n_layer = self.block_count - count;
        self.read.push((key, count.to_string()));
        Ok(())
    }

    /// Remembers what was read from the key `{arch}.{name}` by other means.
    pub fn note(&mut self, name: &str, value: String) {
        self.read.push((self.key(name), value));
    }

    /// Whether the file has the key `{arch}.{name}`.
    pub fn has(&self, gguf: &Gguf, name: &str) -> bool {
        gguf.get(&self.key(name)).is_ok()
    }

    /// The error for a key whose value makes no model.
    pub fn refused(&self, name: &str, found: &str, expected: &str) -> ModelError {
        ModelError::Hyper { key: self.key(name), found: found.to_owned(), expected: expected.to_owned() }
    }

    /// Checks that no key of the architecture was left unread, but for `idle`, which are known to change nothing.
    ///
    /// Errors: a key that nobody read.
    pub fn expect_all_read(&self, gguf: &Gguf, idle: &[&str]) -> Result<(), ModelError> {
        const IDLE: &[&str] = &["context_length", "vocab_size"];
        for (key, value) in gguf.metadata() {
            let name = key.strip_prefix(self.architecture.as_str()).and_then(|rest| rest.strip_prefix('.'));
            let Some(name) = name else { continue };
            let known = IDLE.contains(&name) || idle.contains(&name);
            if !known && !self.read.iter().any(|(read, _)| read == key) {
                return Err(ModelError::UnknownKey { key: key.to_owned(), found: value.to_string() });
            }
        }
        Ok(())
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

    /// The whole name of a key.
    pub fn key(&self, name: &str) -> String {
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
