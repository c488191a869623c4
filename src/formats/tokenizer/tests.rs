use super::super::gguf::{Value, Writer};
use super::*;

fn alphabet() -> Vec<String> {
    (0..=255u8).map(|byte| bytes::char_of(byte).to_string()).collect()
}

fn write(model: &str, pre: &str, tokens: &[String], merges: &[&str]) -> Writer {
    let mut writer = Writer::new();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    writer
        .metadata("general.architecture", "mamba")
        .and_then(|w| w.metadata(MODEL_KEY, model))
        .and_then(|w| w.metadata(PRE_KEY, pre))
        .and_then(|w| w.metadata(TOKENS_KEY, tokens))
        .and_then(|w| w.metadata(MERGES_KEY, merges.to_vec()))
        .unwrap();
    writer
}

fn load(writer: &Writer) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_gguf(&writer.to_gguf().unwrap())
}

/// The alphabet, `he`, `ll`, `hell`, ` w`, `<end>` (control) and `<tab>` (user-defined).
fn small() -> Tokenizer {
    let mut tokens = alphabet();
    tokens.extend(["he", "ll", "hell", "Ġw", "<end>", "<tab>"].map(String::from));
    let mut types = vec![1i32; 256 + 4];
    types.extend([3, 4]);
    let mut writer = write("gpt2", "gpt-2", &tokens, &["h e", "l l", "he ll", "Ġ w"]);
    writer
        .metadata(TYPES_KEY, types)
        .and_then(|w| w.metadata(EOS_KEY, 260u32))
        .and_then(|w| w.metadata(BOS_KEY, 260u32))
        .and_then(|w| w.metadata(ADD_BOS_KEY, true))
        .unwrap();
    load(&writer).unwrap()
}

#[test]
fn without_merges_ids_are_bytes() {
    let tokenizer = load(&write("gpt2", "gpt-2", &alphabet(), &[])).unwrap();
    let text = "In the beginning \u{2014} héllo\n\0\t🦀  ";
    let ids = tokenizer.encode(text).unwrap();
    let bytes: Vec<u32> = text.bytes().map(u32::from).collect();
    assert_eq!(ids, bytes);
    assert_eq!(tokenizer.decode(&ids).unwrap(), text.as_bytes());
    assert_eq!(tokenizer.encode("").unwrap(), [0; 0]);
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.add_bos()), (None, None, false));
    assert_eq!(tokenizer.len(), 256);
}

#[test]
fn merges_apply_in_their_order_and_within_words() {
    let tokenizer = small();
    assert_eq!(tokenizer.encode("hello world").unwrap(), [258, 111, 259, 111, 114, 108, 100]);
    assert_eq!(tokenizer.encode("hel").unwrap(), [256, 108]);
    // The space belongs to the second word, so "h" and "e" never meet.
    assert_eq!(tokenizer.encode("h e").unwrap(), [104, 32, 101]);
    assert_eq!(tokenizer.decode_lossy(&[258, 111, 259]).unwrap(), "hello w");
}

#[test]
fn control_tokens_need_to_be_asked_for() {
    let tokenizer = small();
    let plain: Vec<u32> = "<end>".bytes().map(u32::from).collect();
    assert_eq!(tokenizer.encode("<end>").unwrap(), plain);
    assert_eq!(tokenizer.encode_with_control("a<end><end>b").unwrap(), [97, 260, 260, 98]);
    assert_eq!(tokenizer.encode("a<tab>b").unwrap(), [97, 261, 98]);
    assert_eq!(tokenizer.decode(&[97, 260, 261]).unwrap(), b"a<tab>");
    assert_eq!(tokenizer.token_bytes(260).unwrap(), b"<end>");
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.add_bos()), (Some(260), Some(260), true));
    assert!(tokenizer.is_end(260) && !tokenizer.is_end(261));
}

#[test]
fn every_byte_survives_a_round_trip() {
    let tokenizer = small();
    for id in 0..256u32 {
        assert_eq!(tokenizer.decode(&[id]).unwrap(), [id as u8]);
    }
    let text: String = (0..0x3000u32).filter_map(char::from_u32).collect();
    assert_eq!(tokenizer.decode_lossy(&tokenizer.encode(&text).unwrap()).unwrap(), text);
}

#[test]
fn a_byte_without_token_is_an_error() {
    let tokens: Vec<String> = alphabet().into_iter().filter(|token| token != "x").collect();
    let tokenizer = load(&write("gpt2", "gpt-2", &tokens, &[])).unwrap();
    let error = tokenizer.encode("abxc").unwrap_err().to_string();
    assert_eq!(error, "tokenizer: byte 0x78 at 2 of the text has no token in this vocabulary");
    let error = tokenizer.decode(&[0, 300]).unwrap_err().to_string();
    assert_eq!(error, "tokenizer: token 300 is outside the vocabulary of 255 tokens");
}

#[test]
fn other_vocabularies_are_refused_by_name() {
    for model in ["llama", "rwkv", "bert", "none", "no_vocab"] {
        let error = load(&write(model, "gpt-2", &alphabet(), &[])).unwrap_err();
        assert!(matches!(&error, TokenizerError::Unsupported { model: found } if found == model));
        assert!(error.to_string().ends_with("the model itself still runs on token ids"));
    }
    let empty = Writer::new().to_gguf().unwrap();
    assert!(matches!(Tokenizer::from_gguf(&empty), Err(TokenizerError::Unsupported { .. })));
    let error = load(&write("gpt2", "tekken", &alphabet(), &[])).unwrap_err().to_string();
    assert!(
        error.starts_with("tokenizer.ggml.pre \"tekken\" is not supported, expected one of default, gpt-2")
    );
}

#[test]
fn contradictions_are_refused() {
    let text = |writer: &Writer| load(writer).unwrap_err().to_string();
    let with = |key: &str, value: Value| {
        let mut writer = write("gpt2", "gpt-2", &alphabet(), &[]);
        writer.metadata(key, value).unwrap();
        writer
    };
    assert_eq!(
        text(&with(TYPES_KEY, vec![1i32].into())),
        "tokenizer: tokenizer.ggml.token_type has 1 entries, expected 256, one for each token"
    );
    assert_eq!(
        text(&with(EOS_KEY, 256u32.into())),
        "tokenizer: tokenizer.ggml.eos_token_id is 256, outside the vocabulary of 256 tokens"
    );
    assert!(text(&with(EOS_KEY, 1.0f32.into())).contains("tokenizer.ggml.eos_token_id"));
    for merge in ["", "a", " ", "a ", "ab", " a"] {
        let error = text(&write("gpt2", "gpt-2", &alphabet(), &[merge]));
        assert!(error.contains("expected two tokens separated by a space"), "{merge:?}: {error}");
    }
    let error = text(&write("gpt2", "gpt-2", &alphabet(), &["a b"]));
    assert_eq!(error, "tokenizer: tokenizer.ggml.merges: Token `ab` out of vocabulary");
    let mut twice = alphabet();
    twice.push("a".to_string());
    assert_eq!(text(&write("gpt2", "gpt-2", &twice, &[])), "tokenizer: token \"a\" has the ids 97 and 256");
}

#[test]
fn the_vocabulary_has_a_size_even_without_tokens() {
    let writer = write("llama", "default", &alphabet(), &[]);
    assert_eq!(vocab_size(&writer.to_gguf().unwrap()).unwrap(), 256);
    let mut none = Writer::new();
    none.metadata("general.architecture", "mamba2")
        .and_then(|w| w.metadata(MODEL_KEY, "no_vocab"))
        .and_then(|w| w.metadata("mamba2.vocab_size", 50_288u32))
        .unwrap();
    assert_eq!(vocab_size(&none.to_gguf().unwrap()).unwrap(), 50_288);
    let error = vocab_size(&Writer::new().to_gguf().unwrap()).unwrap_err();
    assert!(matches!(error, GgufError::MissingKey { .. }));
}
