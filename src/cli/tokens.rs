//! Token ids on the command line.

use super::{Failure, Outcome};

/// Reads `1,2,3`, or `@FILE` with a JSON list of ids.
///
/// Errors: a file that cannot be read, something that is no id, no id at all.
pub fn parse(text: &str) -> Outcome<Vec<u32>> {
    let tokens = match text.strip_prefix('@') {
        Some(path) => from_file(path)?,
        None => from_list(text)?,
    };
    if tokens.is_empty() {
        return Err(Failure::Call(format!("--tokens {text}: no token ids")));
    }
    Ok(tokens)
}

fn from_list(text: &str) -> Outcome<Vec<u32>> {
    let id = |part: &str| {
        let part = part.trim();
        part.parse().map_err(|_| Failure::Call(format!("--tokens: \"{part}\" is no token id")))
    };
    text.split(',').map(id).collect()
}

fn from_file(path: &str) -> Outcome<Vec<u32>> {
    let bytes = std::fs::read(path).map_err(|error| Failure::Call(format!("{path}: {error}")))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Failure::Call(format!("{path}: expected a JSON list of token ids: {error}")))
}
