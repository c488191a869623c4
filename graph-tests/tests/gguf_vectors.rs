//! GGUF files that must be read, that must be refused, and that are damaged at random: never a panic, and
//! whatever is accepted can be used.

use ssmgraph::formats::gguf::{Gguf, GgufError, Writer};
use ssmgraph::formats::{Tokenizer, TokenizerError};
use ssmgraph_ops::DType;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

struct Vector {
    name: String,
    expect: String,
    bytes: Vec<u8>,
}

fn vectors(file: &str) -> Vec<Vector> {
    let text = std::fs::read_to_string(here("fixtures/vectors").join(file)).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let text_of = |case: &serde_json::Value, field: &str| case[field].as_str().unwrap().to_owned();
    let parse = |case: &serde_json::Value| {
        let bytes = unhex(&text_of(case, "hex"));
        assert_eq!(bytes.len() as u64, case["size"].as_u64().unwrap());
        Vector { name: text_of(case, "name"), expect: text_of(case, "expect"), bytes }
    };
    json["cases"].as_array().unwrap().iter().map(parse).collect()
}

fn unhex(hex: &str) -> Vec<u8> {
    let digit = |digit: u8| (digit as char).to_digit(16).unwrap() as u8;
    hex.as_bytes().chunks_exact(2).map(|pair| (digit(pair[0]) << 4) | digit(pair[1])).collect()
}

/// Uses everything an accepted file offers; the answer keeps the reads from being optimised away.
fn use_everything(gguf: &Gguf) -> u64 {
    let file_bytes = (**gguf.bytes()).as_ref().len();
    let mut sum = 0u64;
    for tensor in gguf.tensors() {
        assert!(tensor.range().end <= file_bytes, "{} ends past the file", tensor.name);
        assert_eq!(gguf.tensor(&tensor.name).unwrap(), tensor);
        let bytes = gguf.tensor_bytes(&tensor.name).unwrap();
        assert_eq!(bytes.len(), tensor.layout.span_bytes());
        sum += bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    }
    for (key, value) in gguf.metadata() {
        assert!(gguf.get(key).is_ok());
        sum += value.to_string().len() as u64;
    }
    sum
}

fn parse(bytes: &[u8]) -> Result<Gguf, GgufError> {
    Gguf::parse(Arc::new(bytes.to_vec()))
}

/// Parses, and uses the file if it was accepted; answers whether it was.
fn survives(bytes: &[u8]) -> bool {
    match parse(bytes) {
        Ok(gguf) => {
            use_everything(&gguf);
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

/// A small file with most kinds of entry.
fn valid() -> Vec<u8> {
    let mut writer = Writer::new();
    writer
        .metadata("general.architecture", "mamba2")
        .and_then(|w| w.metadata("mamba2.block_count", 1u32))
        .and_then(|w| w.metadata("mamba2.attention.layer_norm_rms_epsilon", 1e-5f32))
        .and_then(|w| w.metadata("tokenizer.ggml.tokens", vec!["a", "b", "\u{120}c"]))
        .and_then(|w| w.metadata("tokenizer.ggml.token_type", vec![1i32, 1, 3]))
        .and_then(|w| w.metadata("flags", vec![true, false]))
        .and_then(|w| w.alignment(64))
        .and_then(|w| w.tensor_f32("token_embd.weight", &[4, 3], &[0.5; 12]))
        .and_then(|w| w.tensor("blk.0.ssm_in.weight", DType::Q8_0, &[32, 2], vec![3; 68]))
        .and_then(|w| w.tensor("blk.0.ssm_x.weight", DType::Q4_0, &[32, 2], vec![5; 36]))
        .and_then(|w| w.tensor("blk.0.ssm_out.weight", DType::Q4K, &[256, 1], vec![7; 144]))
        .and_then(|w| w.tensor("output.weight", DType::Q6K, &[256, 1], vec![9; 210]))
        .and_then(|w| w.tensor("empty", DType::F16, &[8, 0, 2], Vec::new()))
        .and_then(|w| w.tensor("blk.0.ssm_d", DType::BF16, &[5], vec![1; 10]))
        .unwrap();
    writer.to_bytes()
}

/// xorshift64*: the same numbers on every machine.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

#[test]
fn vectors_are_read_or_refused_as_they_say() {
    for file in ["A27.json", "A28.json"] {
        for vector in vectors(file) {
            let label = format!("{file}: {}", vector.name);
            match (parse(&vector.bytes), vector.expect.as_str()) {
                (Ok(gguf), expect) => {
                    assert!(expect.starts_with("accept"), "{label}: was read, expected: {expect}");
                    use_everything(&gguf);
                }
                (Err(error), expect) => assert!(expect.contains("reject"), "{label}: {error}"),
            }
        }
    }
}

#[test]
fn a_valid_vector_has_the_values_it_was_made_with() {
    let vector = vectors("A27.json").into_iter().next().unwrap();
    let gguf = parse(&vector.bytes).unwrap();
    assert_eq!(gguf.architecture().unwrap(), "mamba2");
    let floats = |name: &str| -> Vec<f32> {
        let (chunks, rest) = gguf.tensor_bytes(name).unwrap().as_chunks::<4>();
        assert!(rest.is_empty());
        chunks.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect()
    };
    assert_eq!(floats("a"), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(floats("b"), [5.0, 6.0]);
}

#[test]
fn refusals_say_what_was_found() {
    let mut texts = String::new();
    for file in ["A27.json", "A28.json"] {
        for vector in vectors(file) {
            if let Err(error) = parse(&vector.bytes) {
                texts += &format!("{}: {error}\n", vector.name);
            }
        }
    }
    let wanted = std::fs::read_to_string(here("fixtures/gguf_refusals.txt")).unwrap();
    assert_eq!(texts, wanted, "found:\n{texts}");
}

#[test]
fn every_truncation_is_survived() {
    let bytes = valid();
    assert!(survives(&bytes));
    let shortest = (0..bytes.len()).find(|&len| survives(&bytes[..len])).unwrap();
    // All that may be missing is the padding after the last tensor.
    assert_eq!(shortest, bytes.len() - (64 - 10));
}

#[test]
fn flipped_bytes_are_survived() {
    let valid = valid();
    let mut numbers = Numbers(0x5eed);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut bytes = valid.clone();
        for _ in 0..1 + numbers.below(4) {
            let at = numbers.below(bytes.len());
            bytes[at] = numbers.next() as u8;
        }
        if survives(&bytes) { accepted += 1 } else { refused += 1 }
    }
    assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused: too one-sided");
}

#[test]
fn extreme_numbers_are_survived_at_every_place() {
    let valid = valid();
    let extremes =
        [0, 1, 5, 0x7f, 0xffff, 1 << 31, u64::from(u32::MAX), 1 << 62, (1 << 63) - 1, 1 << 63, u64::MAX];
    for at in 0..valid.len() - 8 {
        for extreme in extremes {
            for width in [4, 8] {
                let mut bytes = valid.clone();
                bytes[at..at + width].copy_from_slice(&extreme.to_le_bytes()[..width]);
                survives(&bytes);
            }
        }
    }
}

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(here("fuzz/corpus").join(target)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.map(|path| (path.display().to_string(), std::fs::read(&path).unwrap())).collect()
}

/// None of the files the fuzzer keeps may panic, and the valid ones among them stay valid.
#[test]
fn the_fuzz_corpus_is_survived() {
    let files = corpus("gguf");
    assert!(files.len() > 20, "{} files in the corpus", files.len());
    for (name, bytes) in files {
        assert!(survives(&bytes) || !name.contains("valid"), "{name} was refused");
    }
}

#[test]
fn the_fuzz_corpus_of_vocabularies_is_survived() {
    let files = corpus("tokenizer");
    assert!(files.len() > 1, "{} files in the corpus", files.len());
    for (name, bytes) in files {
        match parse(&bytes).map(|gguf| Tokenizer::from_gguf(&gguf)) {
            Ok(Ok(tokenizer)) => match tokenizer.encode_with_control("It's 1\u{e9}  a<b>\n") {
                Ok(ids) => assert!(tokenizer.decode(&ids).is_ok(), "{name}"),
                Err(error) => assert!(matches!(error, TokenizerError::Byte { .. }), "{name}: {error}"),
            },
            _ => assert!(!name.contains("valid"), "{name} was refused"),
        }
    }
}
