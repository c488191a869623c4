//! Named arrays of expected numbers, in the safetensors format: a length of 8 bytes, a JSON index, bytes.

use serde_json::Value;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A file below `graph-tests/fixtures`.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// Arrays by name, flat, in row-major order.
pub struct Arrays {
    arrays: HashMap<String, (String, Vec<u8>)>,
}

impl Arrays {
    /// Reads a fixture. Panics when it is damaged, which is a test's way to fail.
    pub fn read(name: &str) -> Arrays {
        let path = fixture(name);
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let index_bytes = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let index: Value = serde_json::from_slice(&bytes[8..8 + index_bytes]).unwrap();
        let data = &bytes[8 + index_bytes..];
        let entries = index.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
        let arrays = entries.map(|(name, entry)| {
            let offset = |end: usize| entry["data_offsets"][end].as_u64().unwrap() as usize;
            let dtype = entry["dtype"].as_str().unwrap().to_owned();
            (name.clone(), (dtype, data[offset(0)..offset(1)].to_vec()))
        });
        Arrays { arrays: arrays.collect() }
    }

    /// Whether there is an array of this name.
    pub fn has(&self, name: &str) -> bool {
        self.arrays.contains_key(name)
    }

    /// An array of 32-bit floats.
    pub fn f32(&self, name: &str) -> Vec<f32> {
        self.elements(name, "F32").map(f32::from_le_bytes).collect()
    }

    /// A single 64-bit float.
    pub fn f64(&self, name: &str) -> f64 {
        self.elements(name, "F64").map(f64::from_le_bytes).next().unwrap()
    }

    /// An array of token ids.
    pub fn tokens(&self, name: &str) -> Vec<u32> {
        self.elements(name, "I32").map(u32::from_le_bytes).collect()
    }

    fn elements<const N: usize>(&self, name: &str, dtype: &str) -> impl Iterator<Item = [u8; N]> {
        let (found, bytes) = self.arrays.get(name).unwrap_or_else(|| panic!("no array `{name}`"));
        assert_eq!(found, dtype, "type of `{name}`");
        bytes.chunks_exact(N).map(|element| element.try_into().unwrap())
    }
}

/// Σ (found − expected)² / Σ expected².
pub fn nmse(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len(), "number of values");
    let square = |x: f64| x * x;
    let error: f64 = found.iter().zip(expected).map(|(&f, &e)| square(f64::from(f) - f64::from(e))).sum();
    error / expected.iter().map(|&e| square(f64::from(e))).sum::<f64>()
}

/// Asserts that two lists of floats are equal to the bit, NaN included.
pub fn assert_bits(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: number of values");
    let different = found.iter().zip(expected).position(|(f, e)| f.to_bits() != e.to_bits());
    if let Some(index) = different {
        panic!("{what}: value {index} is {:e}, expected {:e}", found[index], expected[index]);
    }
}
