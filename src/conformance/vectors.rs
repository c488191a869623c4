//! Test vectors in JSON files: op vectors, generated cases, GGUF files.
//!
//! The format of a file is one of:
//! - `{"id", "cases": [{name, op, params, inputs, expected, rtol, atol, wrong_if?}]}`. An input is a buffer
//!   (`storage`, in memory order) with `type`, `ne[4]`, `nb[4]` and `offset` in bytes. A result is packed
//!   (`data`). Numbers may be the strings `"NaN"`, `"Infinity"`, `"-Infinity"`. `wrong_if` names faults by
//!   the result they would give.
//! - `{"id", "cases": [{name, expect, size, hex}]}`: whole GGUF files, to be accepted or refused.
//! - `[{"id", …}]`: cases too large to list, computed by formulas known to this program.
//!
//! An element passes when `|got − want| ≤ atol + rtol·|want|`; NaN matches NaN, an infinity the same
//! infinity; integers must be equal.

mod generated;
mod parse;
mod program;
mod scan;

pub use parse::{Vector, VectorError, load};

use super::{CaseResult, Outcome, Summary, outcome};
use crate::backend::{Backend, Declined};
use crate::formats::Gguf;
use parse::Kind;
use std::sync::Arc;

/// Runs vectors on a backend, with the reference backend behind it.
pub fn run(backend: &Arc<dyn Backend>, vectors: &[Vector]) -> Summary {
    let mut summary = Summary { backend: backend.name().to_owned(), cases: Vec::new() };
    for vector in vectors {
        let case = format!("{}: {}", vector.file, vector.name);
        summary.cases.push(CaseResult { op: vector.op.clone(), case, outcome: run_one(backend, vector) });
    }
    summary
}

/// Runs one vector on a backend, with the reference backend behind it.
pub fn run_one(backend: &Arc<dyn Backend>, vector: &Vector) -> Outcome {
    match &vector.kind {
        Kind::Op(case) => {
            let mut answer = Ok(());
            let checked = outcome(Ok(()), || {
                let (checked, declined) = program::check(backend, case);
                answer = declined.map_or(Ok(()), |reason| Err(Declined(reason)));
                checked
            });
            match (checked, answer) {
                (Outcome::Passed, Err(reason)) => Outcome::Declined(reason.to_string()),
                (checked, _) => checked,
            }
        }
        Kind::Generated => generated::run_one(backend, &vector.name),
        Kind::Gguf { expect, bytes } => outcome(Ok(()), || check_gguf(expect, bytes)),
    }
}

/// Reads a file that must be accepted, or refused, as `expect` begins; where it allows both, only a panic is
/// wrong.
fn check_gguf(expect: &str, bytes: &[u8]) -> Result<(), String> {
    let read = Gguf::parse(Arc::new(bytes.to_vec()));
    let used = match &read {
        Ok(gguf) => gguf.tensors().iter().try_for_each(|tensor| {
            let bytes = gguf.tensor_bytes(&tensor.name).map_err(|error| error.to_string())?;
            let wanted = tensor.layout.span_bytes();
            (bytes.len() == wanted)
                .then_some(())
                .ok_or_else(|| format!("{} has {} bytes, expected {wanted}", tensor.name, bytes.len()))
        }),
        Err(_) => Ok(()),
    };
    used?;
    match read {
        Ok(_) if expect.starts_with("reject") => Err(format!("was accepted, expected: {expect}")),
        Err(error) if !expect.contains("reject") => Err(format!("was refused ({error}), expected: {expect}")),
        _ => Ok(()),
    }
}
