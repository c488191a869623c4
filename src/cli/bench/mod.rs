//! `bench`: prompt and generation speed, beside what memory can do.

#[cfg(feature = "peer-ggml")]
mod peer;

use super::model::{self, DeviceArgs, Peer};
use super::text::{self, Spread, Style};
use super::{Failure, Out, Outcome, bandwidth};
use ssmgraph::engine::{Engine, EngineOptions};
use ssmgraph::models::Info;
use ssmgraph::{EngineError, Logits};
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

/// Arguments of `bench`.
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF file
    model: PathBuf,
    /// Tokens of the prompt; 0 leaves the prompt out
    #[arg(long, default_value_t = 512, allow_negative_numbers = true)]
    pp: usize,
    /// Tokens to generate; 0 leaves generation out
    #[arg(long, default_value_t = 128, allow_negative_numbers = true)]
    tg: usize,
    /// Runs of each
    #[arg(long, default_value_t = 5, allow_negative_numbers = true)]
    runs: usize,
    #[command(flatten)]
    device: DeviceArgs,
    /// Another program to measure beside
    #[arg(long)]
    peer: Option<Peer>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One measured kind of work.
struct Row {
    test: &'static str,
    tokens: usize,
    tokens_per_second: Spread,
    /// Weight bytes read per second, where every token reads them all.
    weight_bytes_per_second: Option<f64>,
}

/// What was measured of a model.
struct Measured {
    /// Where it ran.
    device: String,
    /// Seconds until the graph of one token is ready to run, weights packed.
    load_seconds: f64,
    /// Weight bytes that a token needs.
    bytes_per_token: usize,
    rows: Vec<Row>,
    /// Bytes that memory reads per second.
    read: f64,
}

/// Measures and prints.
pub fn run(args: Args, out: &mut Out<'_>) -> Outcome {
    if args.runs == 0 || (args.pp == 0 && args.tg == 0) {
        return Err(Failure::Call("nothing to measure; give at least one run of --pp or --tg tokens".into()));
    }
    if args.peer.is_some() {
        return beside_peer(&args, out);
    }
    let devices = args.device.devices()?;
    let gguf = model::open(&args.model)?;
    let name = args.model.display().to_string();
    let options = EngineOptions { context: Some(args.pp.max(args.tg)), ..EngineOptions::default() };
    let start = Instant::now();
    let mut engine = model::load(&name, &gguf, &devices, options)?;
    let load_seconds = start.elapsed().as_secs_f64();
    let bytes_per_token = bytes_per_token(engine.info());
    let mut rows = Vec::new();
    if args.pp > 0 {
        let tokens_per_second = measure(&mut engine, args.runs, args.pp, prompt)?;
        rows.push(Row { test: "prompt", tokens: args.pp, tokens_per_second, weight_bytes_per_second: None });
    }
    if args.tg > 0 {
        let tokens_per_second = measure(&mut engine, args.runs, args.tg, generation)?;
        let weight_bytes_per_second = Some(tokens_per_second.median * bytes_per_token as f64);
        rows.push(Row { test: "generation", tokens: args.tg, tokens_per_second, weight_bytes_per_second });
    }
    let threads = args.device.threads.cpu().threads();
    let read = bandwidth::measure(threads).read;
    model::warn_of_fallbacks(&engine);
    let device = match devices.backends()[0].name() {
        "cpu" => format!("cpu ({}, {threads} threads)", ssmgraph_kernels::arch_name()),
        other => other.to_owned(),
    };
    let measured = Measured { device, load_seconds, bytes_per_token, rows, read };
    match args.json {
        true => print_json(&args, threads, &measured, out),
        false => print_table(threads, &measured, out),
    }
}

#[cfg(feature = "peer-ggml")]
fn beside_peer(args: &Args, out: &mut Out<'_>) -> Outcome {
    peer::run(args, out)
}

#[cfg(not(feature = "peer-ggml"))]
fn beside_peer(_args: &Args, _out: &mut Out<'_>) -> Outcome {
    Err(Peer::missing())
}

/// Weight bytes that one token needs: all of them, but of an embedding that is not the head a single row, and of
/// experts as many as it uses.
fn bytes_per_token(info: &Info) -> usize {
    let embedding = "token_embd.weight";
    let separate_head = info.weights.iter().any(|weight| weight.name() == "output.weight");
    let one_row = |name: &str| separate_head && name == embedding;
    let used = info.hyper.iter().find(|(key, _)| key.ends_with(".expert_used_count"));
    let used = used.and_then(|(_, count)| count.parse::<usize>().ok());
    let bytes = |weight: &ssmgraph::models::Weight| match (one_row(weight.name()), used) {
        (true, _) => weight.layout().row_bytes(),
        (_, Some(used)) if weight.name().ends_with("_exps.weight") => {
            weight.layout().span_bytes() / weight.layout().ne[2].max(1) * used
        }
        _ => weight.layout().span_bytes(),
    };
    info.weights.iter().map(bytes).sum()
}

/// Tokens to feed: some of the vocabulary.
fn token_ids(engine: &Engine, tokens: usize) -> Vec<u32> {
    let n_vocab = engine.info().n_vocab.max(1);
    (0..tokens).map(|index| (index * 7919 % n_vocab) as u32).collect()
}

/// What a run works through, on a sequence that has just been reset.
type Work = fn(&mut Engine, &[u32]) -> Result<(), EngineError>;

/// Seconds of one run.
fn seconds(engine: &mut Engine, ids: &[u32], work: Work) -> Outcome<f64> {
    engine.reset(0)?;
    let start = Instant::now();
    work(engine, ids)?;
    Ok(start.elapsed().as_secs_f64())
}

/// Tokens per second over some runs, after one that does not count.
fn measure(engine: &mut Engine, runs: usize, tokens: usize, work: Work) -> Outcome<Spread> {
    let ids = token_ids(engine, tokens);
    seconds(engine, &ids, work)?;
    let speed = |_| seconds(engine, &ids, work).map(|seconds| tokens as f64 / seconds);
    (0..runs).map(speed).collect::<Outcome<Vec<f64>>>().map(Spread::of)
}

fn prompt(engine: &mut Engine, ids: &[u32]) -> Result<(), EngineError> {
    engine.step(&[(0, ids)], Logits::Last).map(drop)
}

fn generation(engine: &mut Engine, ids: &[u32]) -> Result<(), EngineError> {
    ids.chunks(1).try_for_each(|id| engine.step(&[(0, id)], Logits::Last).map(drop))
}

fn print_table(threads: usize, measured: &Measured, out: &mut Out<'_>) -> Outcome {
    let read = measured.read;
    let cells = |row: &Row| {
        let Spread { median, min, max } = row.tokens_per_second;
        let speed = row.weight_bytes_per_second;
        vec![
            row.test.to_owned(),
            row.tokens.to_string(),
            format!("{median:.1}"),
            format!("{min:.1}..{max:.1}"),
            speed.map_or("-".into(), |speed| format!("{:.2}", speed / 1e9)),
            speed.map_or("-".into(), |speed| format!("{:.0} %", 100.0 * speed / read)),
        ]
    };
    let head = ["test", "tokens", "tokens/s", "min..max", "weights GB/s", "of memory"];
    let rows: Vec<Vec<String>> = measured.rows.iter().map(cells).collect();
    writeln!(out, "{}", text::table(Style::Plain, &head, &rows, 1))?;
    writeln!(
        out,
        "on {}, loaded in {:.2} s; weights read per token: {}; memory reads {:.1} GB/s with {threads} threads",
        measured.device,
        measured.load_seconds,
        text::bytes(measured.bytes_per_token),
        read / 1e9
    )?;
    Ok(())
}

fn print_json(args: &Args, threads: usize, measured: &Measured, out: &mut Out<'_>) -> Outcome {
    let results: Vec<serde_json::Value> = measured
        .rows
        .iter()
        .map(|row| {
            serde_json::json!({
                "test": row.test,
                "tokens": row.tokens,
                "tokens_per_second": row.tokens_per_second,
                "weight_bytes_per_second": row.weight_bytes_per_second,
            })
        })
        .collect();
    let report = serde_json::json!({
        "model": args.model.display().to_string(),
        "device": args.device.device.to_string(),
        "threads": threads,
        "runs": args.runs,
        "results": results,
        "ran_on": measured.device,
        "load_seconds": measured.load_seconds,
        "weight_bytes_per_token": measured.bytes_per_token,
        "memory_read_bytes_per_second": measured.read,
    });
    writeln!(out, "{report}")?;
    Ok(())
}
