//! Reading vector files.

use crate::conformance::memory::{Stored, flat};
use half::{bf16, f16};
use serde::Deserialize;
use serde_json::Value;
use ssmgraph_ops::{DType, Layout};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Why vectors could not be read.
#[derive(Debug, thiserror::Error)]
pub enum VectorError {
    /// The file or folder itself.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// What is in the file.
    #[error("{file}: {what}")]
    Format {
        /// The file.
        file: String,
        /// What is wrong, and in which case.
        what: String,
    },
    /// A folder without a single vector.
    #[error("{0}: no vectors; expected .json files")]
    Empty(String),
}

/// One vector of a file.
#[derive(Clone, Debug)]
pub struct Vector {
    /// Name of the file, without its folder.
    pub file: String,
    /// Name of the case.
    pub name: String,
    /// The op it names; `GGUF` for files, `GENERATED` for formulas.
    pub op: String,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Op(Box<OpVector>),
    Generated,
    Gguf { expect: String, bytes: Vec<u8> },
}

/// An op with its operands and results.
#[derive(Clone, Debug)]
pub(super) struct OpVector {
    pub op: String,
    pub params: Params,
    pub inputs: BTreeMap<String, Stored>,
    pub expected: BTreeMap<String, Expected>,
    /// Results that a fault would give, by `<result>_if_<fault>`.
    pub wrong_if: BTreeMap<String, Expected>,
    pub rtol: f64,
    pub atol: f64,
}

/// Attributes of all ops.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Params {
    #[serde(rename = "K")]
    pub snapshots: Option<usize>,
    /// Lengths of the pieces in which the tokens are run.
    pub splits: Option<Vec<usize>>,
    /// Whether a slot is new, for each slot.
    pub reset: Option<Vec<u8>>,
    pub t: Option<usize>,
    pub eps: Option<f32>,
    pub form: Option<String>,
    pub group_size: Option<usize>,
    pub norm_before_gate: Option<bool>,
    pub gate: Option<String>,
    /// Which key head a value head reads.
    pub bcast: Option<String>,
}

/// A result, packed.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    pub dtype: DType,
    pub ne: [usize; 4],
    pub data: Vec<f64>,
}

#[derive(Deserialize)]
struct RawOp {
    op: String,
    #[serde(default)]
    params: Value,
    inputs: BTreeMap<String, RawInput>,
    expected: BTreeMap<String, RawExpected>,
    #[serde(default)]
    wrong_if: Option<BTreeMap<String, RawExpected>>,
    rtol: f64,
    atol: f64,
}

#[derive(Deserialize)]
struct RawInput {
    #[serde(rename = "type")]
    dtype: String,
    ne: [usize; 4],
    nb: [usize; 4],
    offset: usize,
    storage: Vec<Number>,
}

#[derive(Deserialize)]
struct RawExpected {
    #[serde(rename = "type")]
    dtype: String,
    ne: [usize; 4],
    data: Vec<Number>,
}

#[derive(Deserialize)]
struct RawGguf {
    expect: String,
    size: usize,
    hex: String,
}

/// A JSON number, or one that JSON cannot write.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Plain(f64),
    Named(String),
}

impl Number {
    fn value(&self) -> Result<f64, String> {
        match self {
            Number::Plain(value) => Ok(*value),
            Number::Named(name) => match name.as_str() {
                "NaN" => Ok(f64::NAN),
                "Infinity" => Ok(f64::INFINITY),
                "-Infinity" => Ok(f64::NEG_INFINITY),
                other => Err(format!("\"{other}\" is no number")),
            },
        }
    }
}

/// Reads a vector file, or every `.json` file of a folder, in the order of their names.
///
/// Errors: a path that cannot be read, a file in no known format, nothing at all.
pub fn load(path: &Path) -> Result<Vec<Vector>, VectorError> {
    let io = |path: &Path, error| VectorError::Io { path: path.display().to_string(), error };
    let mut files: Vec<PathBuf> = vec![path.to_owned()];
    if path.is_dir() {
        let entries = std::fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let entries = entries.map_err(|error| io(path, error))?;
        files = entries.into_iter().map(|entry| entry.path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
        files.sort();
    }
    let mut vectors = Vec::new();
    for file in &files {
        let text = std::fs::read(file).map_err(|error| io(file, error))?;
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let found = parse(&name, &text);
        vectors.extend(found.map_err(|what| VectorError::Format { file: file.display().to_string(), what })?);
    }
    if vectors.is_empty() {
        return Err(VectorError::Empty(path.display().to_string()));
    }
    Ok(vectors)
}

fn parse(file: &str, text: &[u8]) -> Result<Vec<Vector>, String> {
    let json: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if let Value::Array(generated) = &json {
        return generated.iter().map(|case| generated_vector(file, case)).collect();
    }
    let cases = json.get("cases").and_then(Value::as_array);
    let cases = cases.ok_or("expected a list, or an object with a list `cases`")?;
    cases.iter().map(|case| vector(file, case)).collect()
}

fn generated_vector(file: &str, case: &Value) -> Result<Vector, String> {
    let id = case.get("id").and_then(Value::as_str).ok_or("a case without an `id`")?;
    let (file, name) = (file.to_owned(), id.to_owned());
    Ok(Vector { file, name, op: "GENERATED".into(), kind: Kind::Generated })
}

fn vector(file: &str, case: &Value) -> Result<Vector, String> {
    let name = case.get("name").and_then(Value::as_str).ok_or("a case without a `name`")?;
    let within = |error: String| format!("case \"{name}\": {error}");
    let (op, kind) = if case.get("hex").is_some() {
        let raw: RawGguf = RawGguf::deserialize(case).map_err(|error| within(error.to_string()))?;
        let bytes = unhex(&raw.hex).map_err(within)?;
        if bytes.len() != raw.size {
            return Err(within(format!("{} bytes of hex, expected {}", bytes.len(), raw.size)));
        }
        ("GGUF".to_owned(), Kind::Gguf { expect: raw.expect, bytes })
    } else {
        let raw: RawOp = RawOp::deserialize(case).map_err(|error| within(error.to_string()))?;
        (raw.op.clone(), Kind::Op(Box::new(op_vector(raw).map_err(within)?)))
    };
    Ok(Vector { file: file.to_owned(), name: name.to_owned(), op, kind })
}

fn op_vector(raw: RawOp) -> Result<OpVector, String> {
    let params = match raw.params {
        Value::Null => Params::default(),
        params => Params::deserialize(params).map_err(|error| format!("params: {error}"))?,
    };
    let mut inputs = BTreeMap::new();
    for (name, input) in raw.inputs {
        let input = stored(&input).map_err(|error| format!("input {name}: {error}"))?;
        inputs.insert(name, input);
    }
    let expected = results(raw.expected)?;
    let wrong_if = results(raw.wrong_if.unwrap_or_default())?;
    Ok(OpVector { op: raw.op, params, inputs, expected, wrong_if, rtol: raw.rtol, atol: raw.atol })
}

fn results(raw: BTreeMap<String, RawExpected>) -> Result<BTreeMap<String, Expected>, String> {
    let mut results = BTreeMap::new();
    for (name, result) in raw {
        let within = |error: String| format!("result {name}: {error}");
        let dtype = known_type(&result.dtype).map_err(within)?;
        let data = result.data.iter().map(Number::value).collect::<Result<Vec<f64>, _>>().map_err(within)?;
        let layout = Layout::contiguous(dtype, &result.ne).map_err(|error| within(error.to_string()))?;
        if data.len() != layout.elements() {
            return Err(within(format!("{} numbers for {layout}", data.len())));
        }
        results.insert(name, Expected { dtype, ne: result.ne, data });
    }
    Ok(results)
}

fn known_type(name: &str) -> Result<DType, String> {
    let known = [DType::F32, DType::F16, DType::BF16, DType::I32];
    let dtype = DType::from_name(name).filter(|dtype| known.contains(dtype));
    dtype.ok_or_else(|| format!("type \"{name}\", expected f32, f16, bf16 or i32"))
}

fn stored(raw: &RawInput) -> Result<Stored, String> {
    let dtype = known_type(&raw.dtype)?;
    let layout = Layout::strided(dtype, raw.ne, raw.nb).map_err(|error| error.to_string())?;
    let mut bytes = Vec::with_capacity(raw.storage.len() * dtype.block_bytes());
    for number in &raw.storage {
        let value = number.value()?;
        match dtype {
            DType::F16 => bytes.extend(f16::from_f64(value).to_le_bytes()),
            DType::BF16 => bytes.extend(bf16::from_f64(value).to_le_bytes()),
            DType::I32 => bytes.extend((value as i32).to_le_bytes()),
            _ => bytes.extend((value as f32).to_le_bytes()),
        }
    }
    let storage = flat(dtype, bytes).map_err(|error| error.to_string())?;
    Ok(Stored { storage, offset_bytes: raw.offset, layout })
}

fn unhex(text: &str) -> Result<Vec<u8>, String> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0).ok_or("hex: expected pairs of hex digits")?;
    Ok(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}
