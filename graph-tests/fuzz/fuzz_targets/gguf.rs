//! Any bytes as a GGUF file: whatever is accepted must be usable to the last byte.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ssmgraph::formats::gguf::Gguf;
use std::hint::black_box;
use std::sync::Arc;

fuzz_target!(|bytes: &[u8]| {
    let Ok(gguf) = Gguf::parse(Arc::new(bytes.to_vec())) else {
        return;
    };
    for tensor in gguf.tensors() {
        let content = gguf.tensor_bytes(&tensor.name).expect("a listed tensor is found");
        assert_eq!(content.len(), tensor.layout.span_bytes());
        black_box(content.iter().fold(0u8, |sum, byte| sum ^ byte));
    }
    for (key, value) in gguf.metadata() {
        assert!(gguf.get(key).is_ok());
        black_box(value.to_string());
        // One of these fits at most; the others must say so without harm.
        black_box((gguf.u32(key).is_ok(), gguf.f32(key).is_ok(), gguf.string(key).is_ok()));
        black_box((gguf.array_u32(key).is_ok(), gguf.array_f32(key).is_ok(), gguf.array_string(key).is_ok()));
        black_box(gguf.u32_per_layer(key, 2).is_ok());
    }
});
