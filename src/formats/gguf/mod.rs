//! The GGUF container: metadata and tensors of a model in one file.
//!
//! Layout of a file, all numbers little-endian: magic, version, tensor count, key count, the keys with
//! their values, the tensors' names, shapes, types and offsets, padding, the tensors' bytes. Everything is
//! checked while it is parsed, so that a [`Gguf`] that exists can be used without further checks: names are
//! unique, offsets aligned, and each tensor's bytes lie inside the file and belong to it alone. The bytes
//! are not copied.
//!
//! Refused: big-endian files, version 1 (32-bit counts), arrays of arrays, type numbers that are unknown or
//! were removed, more than four axes.
//!
//! Source: the GGUF specification in the public ggml repository (`docs/gguf.md`).

mod cursor;
mod error;
mod read;
mod value;
mod writer;

pub use error::GgufError;
pub use value::{Array, Text, Value};
pub use writer::{WriteError, Writer};

use crate::backend::SharedBytes;
use crate::store::{WeightBytes, Weights};
use ssmgraph_kernels::mapped::MappedFile;
use ssmgraph_ops::Layout;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

const MAGIC: [u8; 4] = *b"GGUF";
const VERSION: u32 = 3;
const ALIGNMENT_KEY: &str = "general.alignment";
const ALIGNMENT_DEFAULT: usize = 32;
/// The specification's limit.
const KEY_BYTES_MAX: usize = 65535;
/// The specification says 64, which real converters have outgrown; names are never cut off.
const NAME_BYTES_MAX: usize = 65536;

/// A tensor in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, unique in the file.
    pub name: String,
    /// Type and shape; always packed.
    pub layout: Layout,
    /// Bytes from the start of the file to the first element.
    pub offset: usize,
}

impl TensorInfo {
    /// Where in the file the tensor's bytes lie.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.layout.span_bytes()
    }
}

/// A parsed GGUF file. Cloning shares the bytes.
#[derive(Clone)]
pub struct Gguf {
    bytes: SharedBytes,
    version: u32,
    alignment: usize,
    keys: Vec<(String, Value)>,
    key_index: HashMap<String, usize>,
    tensors: Vec<TensorInfo>,
    tensor_index: HashMap<String, usize>,
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gguf")
            .field("version", &self.version)
            .field("keys", &self.keys.len())
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}

impl Gguf {
    /// Maps and parses the file at `path`. The condition of [`MappedFile`] holds: the file must not be
    /// truncated while the result or a clone of it lives.
    ///
    /// Errors: the file cannot be opened, or as [`Gguf::parse`].
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf, GgufError> {
        let path = path.as_ref();
        let map =
            MappedFile::open(path).map_err(|source| GgufError::Io { path: path.to_path_buf(), source })?;
        Gguf::parse(Arc::new(map))
    }

    /// Parses a file that is in memory: `Arc::new(vec)`, `Arc::new(include_bytes!(..))`.
    ///
    /// Errors: whatever contradicts the format, with the offset, the key or tensor, what was found and
    /// what was expected.
    pub fn parse(bytes: SharedBytes) -> Result<Gguf, GgufError> {
        read::parse(bytes)
    }

    /// Version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Alignment of the tensors' offsets, in bytes.
    pub fn alignment(&self) -> usize {
        self.alignment
    }

    /// The whole file, to keep it alive beside slices of it.
    pub fn bytes(&self) -> &SharedBytes {
        &self.bytes
    }

    /// Keys and values, in the order of the file.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.keys.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a key.
    ///
    /// Errors: no such key.
    pub fn get(&self, key: &str) -> Result<&Value, GgufError> {
        match self.key_index.get(key) {
            Some(&index) => Ok(&self.keys[index].1),
            None => Err(GgufError::MissingKey { key: key.to_string() }),
        }
    }

    /// Tensors, in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor called `name`.
    ///
    /// Errors: no such tensor.
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo, GgufError> {
        match self.tensor_index.get(name) {
            Some(&index) => Ok(&self.tensors[index]),
            None => Err(GgufError::MissingTensor { name: name.to_string() }),
        }
    }

    /// The bytes of the tensor called `name`, in place. In a mapped file their address is aligned to
    /// [`Gguf::alignment`]; in other memory it need not be.
    ///
    /// Errors: no such tensor.
    pub fn tensor_bytes(&self, name: &str) -> Result<&[u8], GgufError> {
        let range = self.tensor(name)?.range();
        Ok(&(*self.bytes).as_ref()[range])
    }

    /// `general.architecture`, such as `mamba2`: the prefix of the model's own keys.
    ///
    /// Errors: as [`Gguf::string`].
    pub fn architecture(&self) -> Result<&str, GgufError> {
        self.string("general.architecture")
    }

    /// An integer of any width that fits 32 bits without sign.
    ///
    /// Errors: no such key, another type, out of range.
    pub fn u32(&self, key: &str) -> Result<u32, GgufError> {
        self.integer(key, "a u32")
    }

    /// An integer of any width that fits 64 bits without sign.
    ///
    /// Errors: no such key, another type, out of range.
    pub fn u64(&self, key: &str) -> Result<u64, GgufError> {
        self.integer(key, "a u64")
    }

    /// An integer of any width that can be a size.
    ///
    /// Errors: no such key, another type, out of range.
    pub fn usize(&self, key: &str) -> Result<usize, GgufError> {
        self.integer(key, "a size")
    }

    /// A float; a 64-bit one is rounded.
    ///
    /// Errors: no such key, another type.
    pub fn f32(&self, key: &str) -> Result<f32, GgufError> {
        let value = self.get(key)?;
        value.as_f32().ok_or_else(|| wrong(key, value, "an f32"))
    }

    /// A flag.
    ///
    /// Errors: no such key, another type.
    pub fn bool(&self, key: &str) -> Result<bool, GgufError> {
        match self.get(key)? {
            Value::Bool(flag) => Ok(*flag),
            value => Err(wrong(key, value, "a bool")),
        }
    }

    /// A text.
    ///
    /// Errors: no such key, another type, bytes that are not UTF-8.
    pub fn string(&self, key: &str) -> Result<&str, GgufError> {
        let value = self.get(key)?;
        match value {
            Value::String(text) => text.as_str().ok_or_else(|| wrong(key, value, "a string of UTF-8")),
            _ => Err(wrong(key, value, "a string")),
        }
    }

    /// An array.
    ///
    /// Errors: no such key, a scalar.
    pub fn array(&self, key: &str) -> Result<&Array, GgufError> {
        match self.get(key)? {
            Value::Array(array) => Ok(array),
            value => Err(wrong(key, value, "an array")),
        }
    }

    /// An array of integers of any width that fit 32 bits without sign.
    ///
    /// Errors: no such key, another type, an element out of range.
    pub fn array_u32(&self, key: &str) -> Result<Vec<u32>, GgufError> {
        self.array_of(key, "integers that fit u32", |value| value.as_integer()?.try_into().ok())
    }

    /// An array of integers of any width that fit 32 bits with sign.
    ///
    /// Errors: no such key, another type, an element out of range.
    pub fn array_i32(&self, key: &str) -> Result<Vec<i32>, GgufError> {
        self.array_of(key, "integers that fit i32", |value| value.as_integer()?.try_into().ok())
    }

    /// An array of floats.
    ///
    /// Errors: no such key, another type.
    pub fn array_f32(&self, key: &str) -> Result<Vec<f32>, GgufError> {
        self.array_of(key, "floats", |value| value.as_f32())
    }

    /// An array of flags.
    ///
    /// Errors: no such key, another type.
    pub fn array_bool(&self, key: &str) -> Result<Vec<bool>, GgufError> {
        self.array_of(key, "flags", |value| match value {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    /// An array of texts.
    ///
    /// Errors: no such key, another type, an element that is not UTF-8.
    pub fn array_string(&self, key: &str) -> Result<Vec<&str>, GgufError> {
        let array = self.array(key)?;
        let Array::String(texts) = array else {
            return Err(wrong_text(key, array.type_name(), "an array of strings"));
        };
        let mut valid = Vec::with_capacity(texts.len());
        for (index, text) in texts.iter().enumerate() {
            let found = || format!("{} with element {index} = {text:?}", array.type_name());
            valid.push(text.as_str().ok_or_else(|| wrong_text(key, found(), "an array of UTF-8 strings"))?);
        }
        Ok(valid)
    }

    /// One integer per layer: an array of `count` of them, or one that holds for all.
    ///
    /// Errors: no such key, another type, an array of another length, an element out of range.
    pub fn u32_per_layer(&self, key: &str, count: usize) -> Result<Vec<u32>, GgufError> {
        match self.get(key)? {
            Value::Array(array) if array.len() == count => self.array_u32(key),
            Value::Array(array) => {
                Err(wrong_text(key, array.type_name(), &format!("one integer or {count} of them")))
            }
            _ => Ok(vec![self.u32(key)?; count]),
        }
    }

    fn integer<T: TryFrom<i128>>(&self, key: &str, expected: &str) -> Result<T, GgufError> {
        let value = self.get(key)?;
        let fits = value.as_integer().and_then(|integer| T::try_from(integer).ok());
        fits.ok_or_else(|| wrong(key, value, expected))
    }

    fn array_of<T>(
        &self,
        key: &str,
        expected: &str,
        convert: impl Fn(&Value) -> Option<T>,
    ) -> Result<Vec<T>, GgufError> {
        let array = self.array(key)?;
        let mut converted = Vec::with_capacity(array.len());
        for (index, element) in (0..array.len()).filter_map(|index| Some((index, array.get(index)?))) {
            let found = || format!("{} with element {index} = {element}", array.type_name());
            let expected = || format!("an array of {expected}");
            converted.push(convert(&element).ok_or_else(|| wrong_text(key, found(), &expected()))?);
        }
        Ok(converted)
    }
}

/// A model file is a source of weights as it is; nothing is copied.
impl Weights for Gguf {
    fn find(&self, name: &str) -> Option<WeightBytes> {
        let tensor = self.tensor(name).ok()?;
        Some(WeightBytes { layout: tensor.layout, bytes: self.bytes.clone(), range: tensor.range() })
    }
}

fn wrong(key: &str, found: &Value, expected: &str) -> GgufError {
    wrong_text(key, found.to_string(), expected)
}

fn wrong_text(key: &str, found: String, expected: &str) -> GgufError {
    GgufError::WrongValue { key: key.to_string(), found, expected: expected.to_string() }
}

#[cfg(test)]
mod tests;
