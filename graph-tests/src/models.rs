//! The tiny models of the fixtures, which lie there as F32 alone.

use crate::arrays::fixture;
use crate::random_model::encoded;
use ssmgraph::formats::Gguf;
use ssmgraph::formats::gguf::{TensorInfo, Writer};
use ssmgraph::ops::DType;
use std::sync::Arc;

/// A model by name and type, such as `mamba1-tiny.q8_0`.
///
/// Panics when there is none, which is a test's way to fail.
pub fn tiny(name: &str) -> Gguf {
    let (model, dtype) = name.rsplit_once('.').unwrap();
    let f32s = Gguf::open(fixture(&format!("oracles/{model}.f32.gguf"))).unwrap();
    match dtype {
        "f32" => f32s,
        "f16" => with_matrices(&f32s, DType::F16),
        "q8_0" => with_matrices(&f32s, DType::Q8_0),
        _ => panic!("{name}: no such type"),
    }
}

/// An F32 file with its matrices in another type, as `llama-quantize` chooses them.
fn with_matrices(gguf: &Gguf, to: DType) -> Gguf {
    let mut writer = Writer::new();
    for (key, value) in gguf.metadata().filter(|(key, _)| *key != "general.alignment") {
        writer.metadata(key, value.clone()).unwrap();
    }
    for tensor in gguf.tensors() {
        let bytes = gguf.tensor_bytes(&tensor.name).unwrap();
        let dtype = if is_matrix(tensor) { fitting(to, tensor.layout.ne[0]) } else { tensor.layout.dtype };
        let bytes = if dtype == tensor.layout.dtype { bytes.to_vec() } else { converted(bytes, dtype) };
        writer.tensor(&tensor.name, dtype, &tensor.layout.ne, bytes).unwrap();
    }
    Gguf::parse(Arc::new(writer.to_bytes())).unwrap()
}

fn is_matrix(tensor: &TensorInfo) -> bool {
    let name = tensor.name.as_str();
    let kept = ["_norm.weight", "ssm_conv1d.weight", "ffn_gate_inp.weight"];
    name.ends_with(".weight") && tensor.layout.ne[1] > 1 && !kept.iter().any(|end| name.ends_with(end))
}

/// Rows that do not fill blocks stay F16.
fn fitting(to: DType, row: usize) -> DType {
    if row.is_multiple_of(to.block_len()) { to } else { DType::F16 }
}

fn converted(bytes: &[u8], to: DType) -> Vec<u8> {
    let values: Vec<f32> =
        bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    encoded(&values, to)
}
