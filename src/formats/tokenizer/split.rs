//! The ways of cutting text into words before merging, by the names that `tokenizer.ggml.pre` gives them.
//!
//! Source: the expressions are facts of the published vocabularies; which name means which one follows
//! llama.cpp.

use super::TokenizerError;
use tokenizers::SplitDelimiterBehavior;
use tokenizers::pre_tokenizers::split::{Split as Expression, SplitPattern};

/// How one family of vocabularies cuts text.
#[derive(Debug)]
pub(super) struct Split {
    /// Applied one after the other, each to the pieces of the one before. What no match covers is a piece
    /// as well.
    pub expressions: Vec<Expression>,
    /// Whether a word that is in the vocabulary as a whole is one token, whatever the merges say.
    pub whole_words_first: bool,
    /// Whether a text begins with `bos` when the file does not say.
    pub add_bos: bool,
}

struct Family {
    names: &'static [&'static str],
    expressions: &'static [&'static str],
    whole_words_first: bool,
    add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// As `QWEN2`, with marks counted as letters.
const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const FAMILIES: &[Family] = &[
    Family {
        names: &["default"],
        expressions: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        whole_words_first: false,
        add_bos: false,
    },
    // `mpt` and `olmo` are what converters write for the GPT-NeoX vocabulary of the first Mamba models.
    Family {
        names: &["gpt-2", "mpt", "olmo", "phi-2", "granite-docling"],
        expressions: &[GPT2],
        whole_words_first: false,
        add_bos: false,
    },
    Family {
        names: &["qwen2", "deepseek-r1-qwen", "stablelm2"],
        expressions: &[QWEN2],
        whole_words_first: false,
        add_bos: false,
    },
    Family { names: &["qwen35"], expressions: &[QWEN35], whole_words_first: false, add_bos: false },
    Family {
        names: &["llama-bpe", "llama3", "falcon3", "falcon-h1", "lfm2"],
        expressions: &[LLAMA3],
        whole_words_first: true,
        add_bos: true,
    },
    Family {
        names: &["dbrx", "smaug-bpe"],
        expressions: &[LLAMA3],
        whole_words_first: false,
        add_bos: false,
    },
    Family {
        names: &["falcon"],
        expressions: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
        whole_words_first: false,
        add_bos: false,
    },
    Family {
        names: &["starcoder", "refact", "command-r", "smollm"],
        expressions: &[r"\p{N}", GPT2],
        whole_words_first: false,
        add_bos: false,
    },
];

impl Split {
    /// The way of cutting with this name.
    ///
    /// Errors: a name that is not in the list.
    pub(super) fn named(pre: &str) -> Result<Split, TokenizerError> {
        let family = FAMILIES.iter().find(|family| family.names.contains(&pre)).ok_or_else(|| {
            let known: Vec<&str> = FAMILIES.iter().flat_map(|family| family.names).copied().collect();
            TokenizerError::UnknownSplit { pre: pre.to_string(), known: known.join(", ") }
        })?;
        let expression = |text: &&str| {
            Expression::new(SplitPattern::Regex(text.to_string()), SplitDelimiterBehavior::Isolated, false)
                .map_err(super::library)
        };
        Ok(Split {
            expressions: family.expressions.iter().map(expression).collect::<Result<_, _>>()?,
            whole_words_first: family.whole_words_first,
            add_bos: family.add_bos,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::tokenizer::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    fn words(pre: &str, text: &str) -> Vec<String> {
        let mut words = PreTokenizedString::from(text);
        for expression in Split::named(pre).unwrap().expressions {
            expression.pre_tokenize(&mut words).unwrap();
        }
        let splits = words.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(word, _, _)| word.to_string()).collect()
    }

    #[test]
    fn every_name_builds() {
        for name in FAMILIES.iter().flat_map(|family| family.names) {
            Split::named(name).unwrap();
        }
    }

    #[test]
    fn families_cut_differently() {
        let text = "It's 1234  ok.\n\nNo";
        assert_eq!(words("gpt-2", text), ["It", "'s", " 1234", " ", " ok", ".", "\n", "\n", "No"]);
        assert_eq!(words("qwen2", text), ["It", "'s", " ", "1", "2", "3", "4", " ", " ok", ".\n\n", "No"]);
        assert_eq!(words("llama-bpe", text), ["It", "'s", " ", "123", "4", " ", " ok", ".\n\n", "No"]);
        assert_eq!(words("falcon", "a1234")[..], ["a", "123", "4"]);
        assert_eq!(words("smollm", "x 12")[..], ["x", " ", "1", "2"]);
        // A combining mark belongs to the word only where marks count as letters.
        assert_eq!(words("qwen35", "e\u{301}a"), ["e\u{301}a"]);
        assert_eq!(words("qwen2", "e\u{301}a"), ["e", "\u{301}a"]);
    }

    #[test]
    fn nothing_is_lost_between_matches() {
        let text = " \t\u{a0}x\r\n\u{3000}y\0🦀 \n ";
        for family in FAMILIES {
            assert_eq!(words(family.names[0], text).concat(), text, "{}", family.names[0]);
        }
    }
}
