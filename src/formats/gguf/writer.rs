//! Writing GGUF files: fixtures of tests and models for benchmarks.

use super::{ALIGNMENT_DEFAULT, ALIGNMENT_KEY, Gguf, GgufError, MAGIC, VERSION, Value};
use ssmgraph_ops::{DType, Layout};
use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::Arc;

/// Collects metadata and tensors and writes them as one file of version 3.
///
/// The writer keeps what it is given: it checks sizes, so that it cannot make a file that a reader must
/// refuse for them, and it refuses names twice.
#[derive(Clone, Debug)]
pub struct Writer {
    alignment: usize,
    metadata: Vec<(String, Value)>,
    tensors: Vec<(String, Layout, Vec<u8>)>,
    names: HashSet<String>,
}

/// Why the writer refused a key or tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("GGUF writer: {0}")]
pub struct WriteError(String);

impl Default for Writer {
    fn default() -> Writer {
        Writer::new()
    }
}

impl Writer {
    /// An empty file with tensors aligned to 32 bytes.
    pub fn new() -> Writer {
        Writer {
            alignment: ALIGNMENT_DEFAULT,
            metadata: Vec::new(),
            tensors: Vec::new(),
            names: HashSet::new(),
        }
    }

    /// Sets the alignment of tensors in bytes and writes it into the metadata.
    ///
    /// Errors: no power of two from 8 on, or set before.
    pub fn alignment(&mut self, bytes: u32) -> Result<&mut Writer, WriteError> {
        if !bytes.is_power_of_two() || bytes < 8 {
            return Err(WriteError(format!("alignment {bytes}, expected a power of two from 8 on")));
        }
        self.add(ALIGNMENT_KEY, bytes.into())?;
        self.alignment = bytes as usize;
        Ok(self)
    }

    /// Adds a key.
    ///
    /// Errors: a key that is empty, too long or there already; the alignment, which has its own method.
    pub fn metadata(&mut self, key: &str, value: impl Into<Value>) -> Result<&mut Writer, WriteError> {
        if key == ALIGNMENT_KEY {
            return Err(WriteError(format!("key \"{key}\" is written by Writer::alignment")));
        }
        self.add(key, value.into())?;
        Ok(self)
    }

    fn add(&mut self, key: &str, value: Value) -> Result<(), WriteError> {
        if key.is_empty() || key.len() > super::KEY_BYTES_MAX {
            return Err(WriteError(format!("a key of {} bytes, expected 1 to 65535", key.len())));
        }
        if self.metadata.iter().any(|(have, _)| have == key) {
            return Err(WriteError(format!("key \"{key}\" is there already")));
        }
        self.metadata.push((key.to_string(), value));
        Ok(())
    }

    /// Adds a packed tensor; `ne` counts elements, innermost axis first.
    ///
    /// Errors: a name that is empty, too long or there already, a shape that cannot be, a number of bytes
    /// that is not the shape's.
    pub fn tensor(
        &mut self,
        name: &str,
        dtype: DType,
        ne: &[usize],
        bytes: Vec<u8>,
    ) -> Result<&mut Writer, WriteError> {
        if name.is_empty() || name.len() > super::NAME_BYTES_MAX {
            return Err(WriteError(format!("a tensor name of {} bytes, expected 1 to 65536", name.len())));
        }
        let layout = Layout::contiguous(dtype, ne)
            .map_err(|error| WriteError(format!("tensor \"{name}\": {}", error.0)))?;
        if bytes.len() != layout.span_bytes() {
            return Err(WriteError(format!(
                "tensor \"{name}\" {layout} was given {} bytes, expected {}",
                bytes.len(),
                layout.span_bytes()
            )));
        }
        if !self.names.insert(name.to_string()) {
            return Err(WriteError(format!("tensor \"{name}\" is there already")));
        }
        self.tensors.push((name.to_string(), layout, bytes));
        Ok(self)
    }

    /// Adds a packed tensor of 32-bit floats.
    ///
    /// Errors: as [`Writer::tensor`].
    pub fn tensor_f32(
        &mut self,
        name: &str,
        ne: &[usize],
        values: &[f32],
    ) -> Result<&mut Writer, WriteError> {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, DType::F32, ne, bytes)
    }

    fn header(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(self.tensors.len() as u64).to_le_bytes());
        out.extend_from_slice(&(self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_string(&mut out, key);
            out.extend_from_slice(&value.id().to_le_bytes());
            value.write(&mut out);
        }
        let mut offset = 0;
        for (name, layout, bytes) in &self.tensors {
            put_string(&mut out, name);
            let axes = layout.ne.iter().rposition(|&n| n != 1).map_or(1, |last| last + 1);
            out.extend_from_slice(&(axes as u32).to_le_bytes());
            for &count in &layout.ne[..axes] {
                out.extend_from_slice(&(count as u64).to_le_bytes());
            }
            out.extend_from_slice(&layout.dtype.gguf_id().to_le_bytes());
            out.extend_from_slice(&(offset as u64).to_le_bytes());
            offset += bytes.len().next_multiple_of(self.alignment);
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out
    }

    /// Writes the file.
    ///
    /// Errors: those of `to`.
    pub fn write_to(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(&self.header())?;
        let zeros = vec![0; self.alignment];
        for (_, _, bytes) in &self.tensors {
            to.write_all(bytes)?;
            to.write_all(&zeros[..bytes.len().next_multiple_of(self.alignment) - bytes.len()])?;
        }
        to.flush()
    }

    /// The file as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write_to(&mut out).expect("a Vec takes every byte");
        out
    }

    /// The file, read again.
    ///
    /// Errors: as [`Gguf::parse`].
    pub fn to_gguf(&self) -> Result<Gguf, GgufError> {
        Gguf::parse(Arc::new(self.to_bytes()))
    }
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}
