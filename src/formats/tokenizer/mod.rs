//! Text to token ids and back, with the vocabulary inside a GGUF file.
//!
//! Supported is `tokenizer.ggml.model = "gpt2"`: byte-level BPE, which the first Mamba models share with
//! GPT-NeoX and which Qwen uses as well. Its tokens are written with one printable character per byte. Text
//! is cut by a regular expression that `tokenizer.ggml.pre` names, and each piece is merged pair by pair in
//! the order of `tokenizer.ggml.merges`; with no merges, each byte is a token.
//!
//! Other vocabularies are refused by name. Such a model still runs on token ids; only text is missing.
//!
//! Source: the behaviour of llama.cpp's `llama_tokenize` and `llama_token_to_piece`.

mod bytes;
mod split;
mod stream;

pub use stream::Utf8Stream;

use super::gguf::{Gguf, GgufError};
use split::Split;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::tokenizer::{Model, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

const MODEL_KEY: &str = "tokenizer.ggml.model";
const PRE_KEY: &str = "tokenizer.ggml.pre";
const TOKENS_KEY: &str = "tokenizer.ggml.tokens";
const TYPES_KEY: &str = "tokenizer.ggml.token_type";
const MERGES_KEY: &str = "tokenizer.ggml.merges";
const BOS_KEY: &str = "tokenizer.ggml.bos_token_id";
const EOS_KEY: &str = "tokenizer.ggml.eos_token_id";
const ADD_BOS_KEY: &str = "tokenizer.ggml.add_bos_token";
/// Ends of a turn and of a message, which end a generation as `eos` does.
const OTHER_END_KEYS: [&str; 2] = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// Why a vocabulary or a text was refused.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A key is missing or has the wrong type.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A kind of vocabulary that is not implemented.
    #[error(
        "tokenizer model \"{model}\" is not supported, expected \"gpt2\"; the model itself still runs on token ids"
    )]
    Unsupported {
        /// `tokenizer.ggml.model`, or `none` without that key.
        model: String,
    },
    /// A way of cutting text that is not implemented.
    #[error("tokenizer.ggml.pre \"{pre}\" is not supported, expected one of {known}")]
    UnknownSplit {
        /// `tokenizer.ggml.pre`.
        pre: String,
        /// The names that are, separated by commas.
        known: String,
    },
    /// Tokens, types, merges and special ids that contradict each other.
    #[error("tokenizer: {0}")]
    Vocabulary(String),
    /// A byte of the text has no token.
    #[error("tokenizer: byte 0x{byte:02x} at {offset} of the text has no token in this vocabulary")]
    Byte {
        /// The byte.
        byte: u8,
        /// Where it is, in bytes from the start.
        offset: usize,
    },
    /// An id outside the vocabulary.
    #[error("tokenizer: token {id} is outside the vocabulary of {count} tokens")]
    Token {
        /// The id.
        id: u32,
        /// Number of tokens.
        count: usize,
    },
}

/// What a token is for: `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Text as bytes.
    Normal,
    /// Structure of the model's own, such as the end of a text: found in text only when asked, and no text
    /// when decoded.
    Control,
    /// Literal text that is always one token.
    UserDefined,
}

impl Kind {
    fn from_number(number: i32) -> Kind {
        match number {
            // 2 marks the token for unknown text, which byte-level vocabularies never need.
            2 | 3 => Kind::Control,
            4 => Kind::UserDefined,
            _ => Kind::Normal,
        }
    }
}

/// A byte-level BPE vocabulary.
#[derive(Debug)]
pub struct Tokenizer {
    split: Split,
    bpe: BPE,
    /// Bytes of each token.
    pieces: Vec<Box<[u8]>>,
    kinds: Vec<Kind>,
    /// Control and user-defined tokens with their text, longest first.
    literals: Vec<(String, u32)>,
    /// Whether each byte has a token of its own; the others cannot be encoded.
    has_byte: [bool; 256],
    bos: Option<u32>,
    eos: Option<u32>,
    other_ends: Vec<u32>,
    add_bos: bool,
}

/// A part of a text while it is encoded.
enum Part<'a> {
    Text { offset: usize, text: &'a str },
    Token(u32),
}

impl Tokenizer {
    /// Reads the vocabulary of a model.
    ///
    /// Errors: no vocabulary or one of another kind ([`TokenizerError::Unsupported`]), an unknown way of
    /// cutting text, a missing key, parts that contradict each other.
    pub fn from_gguf(gguf: &Gguf) -> Result<Tokenizer, TokenizerError> {
        let model = GgufError::optional(gguf.string(MODEL_KEY))?.unwrap_or("none");
        if model != "gpt2" {
            return Err(TokenizerError::Unsupported { model: model.to_string() });
        }
        let split = Split::named(GgufError::optional(gguf.string(PRE_KEY))?.unwrap_or("default"))?;
        let tokens = gguf.array_string(TOKENS_KEY)?;
        let kinds = kinds(gguf, tokens.len())?;
        let bpe = bpe(&tokens, &kinds, &gguf.array_string(MERGES_KEY)?, split.whole_words_first)?;

        let mut literals: Vec<(String, u32)> = (0u32..)
            .zip(tokens.iter().zip(&kinds))
            .filter(|(_, (text, kind))| **kind != Kind::Normal && !text.is_empty())
            .map(|(id, (text, _))| (text.to_string(), id))
            .collect();
        literals.sort_by_key(|(text, id)| (std::cmp::Reverse(text.len()), *id));
        let pieces = tokens
            .iter()
            .zip(&kinds)
            .map(|(text, kind)| match kind {
                Kind::Normal => bytes::decode(text),
                Kind::Control | Kind::UserDefined => text.as_bytes().into(),
            })
            .collect();
        let token_of = |byte| bpe.token_to_id(bytes::char_of(byte).encode_utf8(&mut [0; 4]));
        let has_byte = std::array::from_fn(|byte| token_of(byte as u8).is_some());
        let id = |key| special_id(gguf, key, tokens.len());
        Ok(Tokenizer {
            bos: id(BOS_KEY)?,
            eos: id(EOS_KEY)?,
            other_ends: OTHER_END_KEYS
                .into_iter()
                .filter_map(|key| id(key).transpose())
                .collect::<Result<_, _>>()?,
            add_bos: GgufError::optional(gguf.bool(ADD_BOS_KEY))?.unwrap_or(split.add_bos),
            has_byte,
            pieces,
            kinds,
            literals,
            split,
            bpe,
        })
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether the model was trained with [`Tokenizer::bos`] before each text. Encoding leaves that to the
    /// caller.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether generation should stop at this token: the end of a text, a turn or a message.
    pub fn is_end(&self, id: u32) -> bool {
        self.eos == Some(id) || self.other_ends.contains(&id)
    }

    /// The ids of a text. What looks like a control token is encoded as ordinary text, so that a prompt
    /// from elsewhere cannot smuggle one in.
    ///
    /// Errors: a byte that the vocabulary has no token for.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_parts(text, false)
    }

    /// The ids of a text in which control tokens such as `<|im_start|>` are written out.
    ///
    /// Errors: as [`Tokenizer::encode`].
    pub fn encode_with_control(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_parts(text, true)
    }

    fn encode_parts(&self, text: &str, control: bool) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        for part in self.cut_literals(text, control) {
            match part {
                Part::Token(id) => ids.push(id),
                Part::Text { offset, text } => self.encode_ordinary(offset, text, &mut ids)?,
            }
        }
        Ok(ids)
    }

    /// Cuts literal tokens out of the text, the longest ones first wherever they are.
    fn cut_literals<'a>(&self, text: &'a str, control: bool) -> Vec<Part<'a>> {
        let mut parts = vec![Part::Text { offset: 0, text }];
        for (literal, id) in &self.literals {
            let wanted = control || self.kinds[*id as usize] == Kind::UserDefined;
            if wanted && text.contains(literal.as_str()) {
                parts = parts.into_iter().flat_map(|part| cut_literal(part, literal, *id)).collect();
            }
        }
        parts
    }

    fn encode_ordinary(&self, offset: usize, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        if let Some(at) = text.bytes().position(|byte| !self.has_byte[usize::from(byte)]) {
            return Err(TokenizerError::Byte { byte: text.as_bytes()[at], offset: offset + at });
        }
        let mut words = PreTokenizedString::from(text);
        for expression in &self.split.expressions {
            expression.pre_tokenize(&mut words).map_err(library)?;
        }
        // Only spells bytes as characters: the cutting is done.
        ByteLevel::new(false, false, false).pre_tokenize(&mut words).map_err(library)?;
        words.tokenize(|word| self.bpe.tokenize(word.get())).map_err(library)?;
        for (_, _, tokens) in words.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            ids.extend(tokens.iter().flatten().map(|token| token.id));
        }
        Ok(())
    }

    /// The bytes of one token as it is written in the vocabulary, those of control tokens included.
    ///
    /// Errors: an id outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Result<&[u8], TokenizerError> {
        let piece = self.pieces.get(id as usize);
        piece.map(|bytes| &**bytes).ok_or(TokenizerError::Token { id, count: self.pieces.len() })
    }

    /// The bytes of the text that `ids` spell; control tokens spell nothing. A prefix of a text may end
    /// inside a character: see [`Utf8Stream`].
    ///
    /// Errors: an id outside the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<Vec<u8>, TokenizerError> {
        let mut bytes = Vec::new();
        for &id in ids {
            let piece = self.token_bytes(id)?;
            if self.kinds[id as usize] != Kind::Control {
                bytes.extend_from_slice(piece);
            }
        }
        Ok(bytes)
    }

    /// As [`Tokenizer::decode`], with what is not UTF-8 replaced by `U+FFFD`.
    ///
    /// Errors: an id outside the vocabulary.
    pub fn decode_lossy(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        Ok(String::from_utf8_lossy(&self.decode(ids)?).into_owned())
    }
}

/// Number of tokens the model knows: `{arch}.vocab_size` for a file without vocabulary, else the length of
/// the vocabulary, whatever its kind.
///
/// Errors: neither is there, or has the wrong type.
pub fn vocab_size(gguf: &Gguf) -> Result<usize, GgufError> {
    Ok(vocab_size_and_key(gguf)?.0)
}

/// [`vocab_size`], and the key that says so.
///
/// Errors: as [`vocab_size`].
pub fn vocab_size_and_key(gguf: &Gguf) -> Result<(usize, String), GgufError> {
    match GgufError::optional(gguf.string(MODEL_KEY))? {
        None | Some("none" | "no_vocab") => {
            let key = format!("{}.vocab_size", gguf.architecture()?);
            Ok((gguf.usize(&key)?, key))
        }
        Some(_) => Ok((gguf.array(TOKENS_KEY)?.len(), TOKENS_KEY.to_owned())),
    }
}

fn kinds(gguf: &Gguf, count: usize) -> Result<Vec<Kind>, TokenizerError> {
    match GgufError::optional(gguf.array_i32(TYPES_KEY))? {
        None => Ok(vec![Kind::Normal; count]),
        Some(numbers) if numbers.len() == count => Ok(numbers.into_iter().map(Kind::from_number).collect()),
        Some(numbers) => Err(TokenizerError::Vocabulary(format!(
            "{TYPES_KEY} has {} entries, expected {count}, one for each token",
            numbers.len()
        ))),
    }
}

fn bpe(
    tokens: &[&str],
    kinds: &[Kind],
    merges: &[&str],
    whole_words_first: bool,
) -> Result<BPE, TokenizerError> {
    let mut vocab = Vocab::with_capacity(tokens.len());
    for (id, (text, kind)) in (0u32..).zip(tokens.iter().zip(kinds)) {
        // A control token must not come out of ordinary text by way of merges.
        if *kind == Kind::Control {
            continue;
        }
        if let Some(first) = vocab.insert(text.to_string(), id) {
            return Err(TokenizerError::Vocabulary(format!("token {text:?} has the ids {first} and {id}")));
        }
    }
    let merges = merges.iter().map(|merge| pair(merge)).collect::<Result<Vec<_>, _>>()?;
    let builder = BPE::builder().vocab_and_merges(vocab, merges).ignore_merges(whole_words_first);
    builder.build().map_err(|error| TokenizerError::Vocabulary(format!("{MERGES_KEY}: {error}")))
}

/// The two halves of a merge, which a space separates; the first half is never empty.
fn pair(merge: &str) -> Result<(String, String), TokenizerError> {
    let first = merge.chars().next().map_or(0, char::len_utf8);
    match merge[first..].split_once(' ') {
        Some((rest, right)) if !right.is_empty() => {
            Ok((format!("{}{rest}", &merge[..first]), right.to_string()))
        }
        _ => Err(TokenizerError::Vocabulary(format!(
            "{MERGES_KEY} has {merge:?}, expected two tokens separated by a space"
        ))),
    }
}

fn special_id(gguf: &Gguf, key: &str, count: usize) -> Result<Option<u32>, TokenizerError> {
    match GgufError::optional(gguf.u32(key))? {
        Some(id) if id as usize >= count => Err(TokenizerError::Vocabulary(format!(
            "{key} is {id}, outside the vocabulary of {count} tokens"
        ))),
        id => Ok(id),
    }
}

fn cut_literal<'a>(part: Part<'a>, literal: &str, id: u32) -> Vec<Part<'a>> {
    let Part::Text { mut offset, mut text } = part else {
        return vec![part];
    };
    let mut parts = Vec::new();
    while let Some(at) = text.find(literal) {
        if at > 0 {
            parts.push(Part::Text { offset, text: &text[..at] });
        }
        parts.push(Part::Token(id));
        offset += at + literal.len();
        text = &text[at + literal.len()..];
    }
    if !text.is_empty() {
        parts.push(Part::Text { offset, text });
    }
    parts
}

/// The library's own errors, none of which a text can cause once the vocabulary is built.
fn library(error: Box<dyn std::error::Error + Send + Sync>) -> TokenizerError {
    TokenizerError::Vocabulary(error.to_string())
}

#[cfg(test)]
mod tests;
