//! Any bytes as a GGUF file with a vocabulary: what is accepted must encode and decode. Apart from `gguf`
//! because building a vocabulary takes a hundred times as long as parsing a file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ssmgraph::formats::gguf::Gguf;
use ssmgraph::formats::tokenizer::{Tokenizer, TokenizerError, vocab_size};
use std::sync::Arc;

const TEXT: &str = "It's 1\u{e9}  a<b>\n";

fuzz_target!(|bytes: &[u8]| {
    let Ok(gguf) = Gguf::parse(Arc::new(bytes.to_vec())) else {
        return;
    };
    let Ok(tokenizer) = Tokenizer::from_gguf(&gguf) else {
        return;
    };
    assert_eq!(vocab_size(&gguf).expect("a vocabulary was read"), tokenizer.len());
    for text in [TEXT, "ab"] {
        match tokenizer.encode_with_control(text) {
            Ok(ids) => assert!(tokenizer.decode(&ids).is_ok(), "encoding gives ids of the vocabulary"),
            Err(error) => assert!(matches!(error, TokenizerError::Byte { .. }), "{error}"),
        }
    }
});
