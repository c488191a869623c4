//! `info`: what is in a model file, and the memory it will need.

use super::model::{self, DeviceArgs};
use super::text::{self, Style};
use super::{Out, Outcome};
use ssmgraph::engine::{DeviceMemory, Engine, EngineOptions};
use ssmgraph::formats::Gguf;
use ssmgraph::formats::gguf::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

/// Arrays up to this length are shown.
const ARRAY_SHOWN_MAX: usize = 8;
/// Texts up to this many characters are shown whole.
const TEXT_SHOWN_MAX: usize = 60;
/// Tokens of a piece of a prompt, for the memory figure.
const PIECE_TOKENS: usize = 512;

/// Arguments of `info`.
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF file
    model: PathBuf,
    #[command(flatten)]
    device: DeviceArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Memory of a model at two sizes of a run.
struct Memory {
    piece_tokens: usize,
    piece: Vec<DeviceMemory>,
    token: Vec<DeviceMemory>,
}

/// Shows a file. A model that cannot be run is an error after everything else was shown.
pub fn run(args: Args, out: &mut Out<'_>) -> Outcome {
    let devices = args.device.devices()?;
    let gguf = model::open(&args.model)?;
    let name = args.model.display().to_string();
    let engine = model::load(&name, &gguf, &devices, EngineOptions::default());
    let (engine, refusal) = match engine {
        Ok(engine) => (Some(engine), None),
        Err(failure) => (None, Some(failure)),
    };
    let memory = engine.as_ref().map(memory).transpose()?;
    match args.json {
        true => print_json(&name, &gguf, engine.as_ref(), memory.as_ref(), out)?,
        false => print_text(&gguf, engine.as_ref(), memory.as_ref(), out)?,
    }
    refusal.map_or(Ok(()), Err)
}

fn memory(engine: &Engine) -> Outcome<Memory> {
    let (piece, token) = (engine.memory_for(PIECE_TOKENS, 1)?, engine.memory_for(1, 1)?);
    Ok(Memory { piece_tokens: PIECE_TOKENS, piece, token })
}

/// Number of tensors, elements and bytes of each element type.
fn by_type(gguf: &Gguf) -> BTreeMap<&'static str, [usize; 3]> {
    let mut types: BTreeMap<&'static str, [usize; 3]> = BTreeMap::new();
    for tensor in gguf.tensors() {
        let sums = types.entry(tensor.layout.dtype.name()).or_default();
        let add = [1, tensor.layout.elements(), tensor.layout.span_bytes()];
        sums.iter_mut().zip(add).for_each(|(sum, add)| *sum = sum.saturating_add(add));
    }
    types
}

fn shown(value: &Value) -> String {
    match value {
        Value::Array(array) if array.len() > ARRAY_SHOWN_MAX => array.type_name(),
        Value::String(text) => {
            let text = String::from_utf8_lossy(&text.0).escape_debug().to_string();
            match text.char_indices().nth(TEXT_SHOWN_MAX) {
                Some((end, _)) => format!("{}…", &text[..end]),
                None => text,
            }
        }
        other => other.to_string(),
    }
}

fn print_text(gguf: &Gguf, engine: Option<&Engine>, memory: Option<&Memory>, out: &mut Out<'_>) -> Outcome {
    let rows: Vec<Vec<String>> =
        gguf.metadata().map(|(key, value)| vec![key.to_owned(), shown(value)]).collect();
    writeln!(out, "GGUF version {}", gguf.version())?;
    writeln!(out, "{}", text::table(Style::Plain, &["key", "value"], &rows, 2))?;
    let types: Vec<Vec<String>> = by_type(gguf)
        .into_iter()
        .map(|(dtype, [count, elements, bytes])| {
            vec![dtype.to_owned(), count.to_string(), elements.to_string(), text::bytes(bytes)]
        })
        .collect();
    writeln!(out, "{}", text::table(Style::Plain, &["type", "tensors", "elements", "size"], &types, 1))?;
    let (Some(engine), Some(memory)) = (engine, memory) else { return Ok(()) };
    let info = engine.info();
    writeln!(
        out,
        "{}: {} parameters, {} layers of {}, vocabulary of {}",
        info.architecture,
        info.parameters(),
        info.n_layer,
        info.n_embd,
        info.n_vocab
    )?;
    if !info.unused.is_empty() {
        writeln!(out, "tensors that the model does not use: {}", info.unused.join(", "))?;
    }
    for line in cache_lines(engine) {
        writeln!(out, "{line}")?;
    }
    let piece = format!("activations, {} tokens", memory.piece_tokens);
    let head =
        ["device", "weights", "state per slot", "caches per slot", piece.as_str(), "activations, 1 token"];
    let rows: Vec<Vec<String>> = memory
        .piece
        .iter()
        .map(|device| {
            let one = memory.token.iter().find(|other| other.device == device.device);
            vec![
                device.device.clone(),
                text::bytes(device.weight_bytes),
                text::bytes(device.state_bytes),
                text::bytes(device.cache_bytes),
                text::bytes(device.arena_bytes),
                one.map_or("-".into(), |one| text::bytes(one.arena_bytes)),
            ]
        })
        .collect();
    writeln!(out, "{}", text::table(Style::Plain, &head, &rows, 1))?;
    Ok(())
}

/// What keys and values take, for a few lengths up to that which the model was made for.
fn cache_lines(engine: &Engine) -> Vec<String> {
    let each = engine.cache_bytes_per_token();
    let Some(capacity) = engine.context() else { return Vec::new() };
    let longest = engine.info().context_length.unwrap_or(capacity);
    let mut lengths = vec![capacity, longest];
    lengths.extend([4096, 32_768].into_iter().filter(|&length| length < longest));
    lengths.sort_unstable();
    lengths.dedup();
    let line = |length: usize| format!("  {length} tokens: {}", text::bytes(each.saturating_mul(length)));
    let head = format!("keys and values: {} per token and slot", text::bytes(each));
    std::iter::once(head).chain(lengths.into_iter().map(line)).collect()
}

fn print_json(
    name: &str,
    gguf: &Gguf,
    engine: Option<&Engine>,
    memory: Option<&Memory>,
    out: &mut Out<'_>,
) -> Outcome {
    let metadata: serde_json::Map<String, serde_json::Value> =
        gguf.metadata().map(|(key, value)| (key.to_owned(), json_value(value))).collect();
    let tensors: Vec<serde_json::Value> = gguf
        .tensors()
        .iter()
        .map(|tensor| {
            serde_json::json!({
                "name": tensor.name,
                "type": tensor.layout.dtype.name(),
                "ne": tensor.layout.ne,
                "bytes": tensor.layout.span_bytes(),
            })
        })
        .collect();
    let devices = |devices: &[DeviceMemory]| {
        let device = |device: &DeviceMemory| {
            serde_json::json!({
                "device": device.device,
                "weight_bytes": device.weight_bytes,
                "state_bytes_per_slot": device.state_bytes,
                "cache_bytes_per_slot": device.cache_bytes,
                "arena_bytes": device.arena_bytes,
                "input_bytes": device.input_bytes,
            })
        };
        devices.iter().map(device).collect::<Vec<_>>()
    };
    let model = engine.map(|engine| {
        let info = engine.info();
        let hyper: serde_json::Map<String, serde_json::Value> =
            info.hyper.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
        serde_json::json!({
            "architecture": info.architecture,
            "parameters": info.parameters(),
            "layers": info.n_layer,
            "embedding_length": info.n_embd,
            "vocabulary": info.n_vocab,
            "hyper_parameters": hyper,
            "unused_tensors": info.unused,
            "context_length": info.context_length,
            "cache_bytes_per_token": engine.cache_bytes_per_token(),
            "cache_tokens_per_slot": engine.context(),
        })
    });
    let memory = memory.map(|memory| {
        serde_json::json!({
            "prompt_piece_tokens": memory.piece_tokens,
            "prompt_piece": devices(&memory.piece),
            "one_token": devices(&memory.token),
        })
    });
    let report = serde_json::json!({
        "file": name,
        "version": gguf.version(),
        "metadata": metadata,
        "tensors": tensors,
        "model": model,
        "memory": memory,
    });
    writeln!(out, "{report}")?;
    Ok(())
}

/// Numbers and flags as such; long arrays by their type.
fn json_value(value: &Value) -> serde_json::Value {
    match value {
        Value::Bool(flag) => (*flag).into(),
        Value::F64(number) => (*number).into(),
        Value::Array(array) if array.len() > ARRAY_SHOWN_MAX => array.type_name().into(),
        Value::Array(array) => {
            (0..array.len()).filter_map(|i| array.get(i)).map(|v| json_value(&v)).collect()
        }
        Value::String(text) => String::from_utf8_lossy(&text.0).into(),
        other => match other.as_integer().and_then(|integer| i64::try_from(integer).ok()) {
            Some(integer) => integer.into(),
            None => other.as_f32().map_or(other.to_string().into(), serde_json::Value::from),
        },
    }
}
