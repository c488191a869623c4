//! Model files that tests change. All functions panic on a wrong call, which is a test's way to fail.

use crate::arrays::fixture;
use ssmgraph::formats::gguf::{Gguf, Value, Writer};
use ssmgraph::ops::{DType, Layout};
use std::sync::Arc;

/// A model file that can be changed.
#[derive(Clone)]
pub struct File {
    /// Keys and values.
    pub metadata: Vec<(String, Value)>,
    /// Name, type, shape and bytes of each tensor.
    pub tensors: Vec<(String, DType, Vec<usize>, Vec<u8>)>,
}

impl File {
    /// The F32 file of a tiny model of the fixtures.
    pub fn read(model: &str) -> File {
        let gguf = Gguf::open(fixture(&format!("oracles/{model}.f32.gguf"))).unwrap();
        let metadata = gguf.metadata().map(|(key, value)| (key.to_owned(), value.clone()));
        let tensors = gguf.tensors().iter().map(|tensor| {
            let bytes = gguf.tensor_bytes(&tensor.name).unwrap().to_vec();
            (tensor.name.clone(), tensor.layout.dtype, tensor.layout.ne.to_vec(), bytes)
        });
        File {
            metadata: metadata.filter(|(key, _)| key != "general.alignment").collect(),
            tensors: tensors.collect(),
        }
    }

    /// The file as it would be on disk.
    pub fn gguf(&self) -> Arc<Gguf> {
        let mut writer = Writer::new();
        for (key, value) in &self.metadata {
            writer.metadata(key, value.clone()).unwrap();
        }
        for (name, dtype, ne, bytes) in &self.tensors {
            writer.tensor(name, *dtype, ne, bytes.clone()).unwrap();
        }
        Arc::new(Gguf::parse(Arc::new(writer.to_bytes())).unwrap())
    }

    /// The file with another value for the key whose name ends so; without the key for `None`.
    pub fn with(&self, end: &str, value: Option<Value>) -> File {
        let mut file = self.clone();
        let at = file.metadata.iter().position(|(key, _)| key.ends_with(end)).unwrap();
        match value {
            Some(value) => file.metadata[at].1 = value,
            None => drop(file.metadata.remove(at)),
        }
        file
    }

    /// The file with one more key.
    pub fn with_key(&self, key: &str, value: impl Into<Value>) -> File {
        let mut file = self.clone();
        file.metadata.push((key.to_owned(), value.into()));
        file
    }

    /// The file without a tensor.
    pub fn without_tensor(&self, name: &str) -> File {
        let mut file = self.clone();
        file.tensors.retain(|(have, ..)| have != name);
        file
    }

    /// The file with a tensor of zeros in the place of another.
    pub fn with_tensor(&self, name: &str, dtype: DType, ne: &[usize]) -> File {
        let mut file = self.without_tensor(name);
        let bytes = Layout::contiguous(dtype, ne).unwrap().span_bytes();
        file.tensors.push((name.to_owned(), dtype, ne.to_vec(), vec![0; bytes]));
        file
    }

    /// The numbers of an F32 tensor.
    pub fn values(&self, name: &str) -> Vec<f32> {
        let bytes = &self.tensors.iter().find(|(have, ..)| have == name).unwrap().3;
        bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    }

    /// The shape of a tensor.
    pub fn ne(&self, name: &str) -> [usize; 4] {
        let ne = &self.tensors.iter().find(|(have, ..)| have == name).unwrap().2;
        ssmgraph::ops::full_shape(ne).unwrap()
    }

    /// The file with an F32 tensor more, or in the place of the one of this name.
    pub fn with_values(&self, name: &str, ne: &[usize], values: &[f32]) -> File {
        let mut file = self.without_tensor(name);
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        file.tensors.push((name.to_owned(), DType::F32, ne.to_vec(), bytes));
        file
    }
}
