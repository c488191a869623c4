//! `run`: text or token ids from a model.

use super::model::{self, DeviceArgs};
use super::trace::{self, Tracer};
use super::{Failure, Out, Outcome, tokens};
use ssmgraph::engine::{Engine, EngineOptions, Finish, Request};
use ssmgraph::formats::tokenizer::Utf8Stream;
use ssmgraph::formats::{Gguf, Tokenizer};
use ssmgraph::sample::{SampleOptions, Sampler};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The demo model: see `demo/README.md`.
static DEMO: &[u8] = include_bytes!("../../demo/kjv-mamba1.q8_0.gguf");
const DEMO_NAME: &str = "the demo model";
/// A whole verse, so that what follows begins with one.
const DEMO_PROMPT: &str = "And God said, Let there be light: and there was light.\n";
/// So small a model repeats itself when it is greedy.
const DEMO_TEMPERATURE: f32 = 0.7;
const DEMO_TOKENS: usize = 400;
const TOKENS: usize = 128;

/// Arguments of `run`.
#[derive(clap::Args, Default)]
pub struct Args {
    /// A GGUF file; without it, the demo model inside this program
    model: Option<PathBuf>,
    /// Text to continue; several are continued together
    #[arg(short = 'p', long = "prompt", value_name = "PROMPT")]
    prompts: Vec<String>,
    /// Token ids to continue, 1,2,3 or @FILE.json; prints ids instead of text
    #[arg(long, value_name = "IDS", conflicts_with = "prompts")]
    tokens: Option<String>,
    /// Most tokens to produce [default: 128; for the demo 400]
    #[arg(short = 'n', long = "count", value_name = "N", allow_negative_numbers = true)]
    count: Option<usize>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Sample at this temperature instead of taking the likeliest token
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    temp: Option<f32>,
    /// Sample among the K likeliest tokens only
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    top_k: Option<usize>,
    /// Sample among the fewest tokens whose probabilities add up to this
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Start of the random numbers
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<u64>,
    /// Write a Chrome trace with one span per node
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
}

/// One prompt and what became of it.
struct Sequence {
    prompt: Option<String>,
    ids: Vec<u32>,
    produced: Vec<u32>,
    stream: Utf8Stream,
    text: String,
    stopped: bool,
}

/// How long things took.
struct Timing {
    prompt_tokens: usize,
    prompt: Duration,
    generated_tokens: usize,
    generation: Duration,
}

/// Generates.
pub fn run(args: Args, out: &mut Out<'_>) -> Outcome {
    let sampler = sampler(&args)?;
    let count = args.count.unwrap_or(if args.model.is_some() { TOKENS } else { DEMO_TOKENS });
    if count == 0 {
        return Err(Failure::Call("-n 0: nothing to generate; give at least 1".into()));
    }
    let devices = args.device.devices()?;
    let (name, gguf) = match &args.model {
        Some(path) => (path.display().to_string(), model::open(path)?),
        None => (DEMO_NAME.to_owned(), demo()?),
    };
    let given = args.tokens.as_deref().map(tokens::parse).transpose()?;
    let tokenizer = if given.is_some() { None } else { Some(tokenizer(&gguf)?) };
    let mut sequences = match (&tokenizer, given) {
        (Some(tokenizer), _) => encode(&args, tokenizer)?,
        (None, ids) => vec![Sequence::new(None, ids.unwrap_or_default())],
    };
    let longest = sequences.iter().map(|sequence| sequence.ids.len()).max().unwrap_or(0);
    let context = Some(longest.saturating_add(count).max(1));
    let options = EngineOptions { slots: sequences.len(), context, ..EngineOptions::default() };
    let mut engine = model::load(&name, &gguf, &devices, options)?;
    note_long_text(&engine);
    let trace = args.trace.as_deref().map(trace::start).transpose()?;
    if trace.is_some() {
        engine.trace(Arc::new(Tracer::default()));
    }
    let stop = stop_tokens(&gguf, tokenizer.as_ref());
    let requests = sequences.iter().enumerate().map(|(slot, sequence)| Request {
        slot,
        prompt: sequence.ids.clone(),
        sampler: sampler.clone(),
        tokens_max: count,
        stop: stop.clone(),
    });
    let requests = requests.collect();
    let live = sequences.len() == 1 && !args.json;
    let timing = generate(&mut engine, requests, &mut sequences, tokenizer.as_ref(), live.then_some(out))?;
    drop(trace);
    match (args.json, live) {
        (true, _) => print_json(&name, &sequences, &timing, out)?,
        (false, true) => {}
        (false, false) => print_all(&sequences, out)?,
    }
    // The text is complete on its own stream before anything is said about it.
    out.flush()?;
    model::warn_of_fallbacks(&engine);
    timing.tell();
    Ok(())
}

/// Attention sees positions that it was not trained for; recurrent models have none.
fn note_long_text(engine: &Engine) {
    if let (Some(room), Some(made_for)) = (engine.context(), engine.info().context_length)
        && room > made_for
    {
        eprintln!("note: the text may reach {room} tokens; the model was made for {made_for}");
    }
}

fn demo() -> Outcome<Arc<Gguf>> {
    // Kernels read weights in place from memory of any alignment a Vec has.
    Gguf::parse(Arc::new(DEMO.to_vec())).map(Arc::new).map_err(Failure::wrong)
}

fn sampler(args: &Args) -> Outcome<Sampler> {
    let temperature = args.temp.or(args.model.is_none().then_some(DEMO_TEMPERATURE));
    let greedy = temperature.is_none_or(|temperature| temperature == 0.0);
    if greedy && (args.top_k.is_some() || args.top_p.is_some() || args.seed.is_some()) {
        eprintln!("note: --top-k, --top-p and --seed change nothing without a --temp above 0");
    }
    let options =
        SampleOptions { temperature, top_k: args.top_k, top_p: args.top_p, seed: args.seed.unwrap_or(0) };
    Sampler::new(options).map_err(Failure::call)
}

fn tokenizer(gguf: &Gguf) -> Outcome<Tokenizer> {
    Tokenizer::from_gguf(gguf).map_err(|error| {
        let Failure::Call(why) = Failure::call(error) else { unreachable!("just made") };
        Failure::Call(format!("{why}; give token ids with `run --tokens 1,2,3` or `logits --tokens 1,2,3`"))
    })
}

fn encode(args: &Args, tokenizer: &Tokenizer) -> Outcome<Vec<Sequence>> {
    let default = if args.model.is_none() { DEMO_PROMPT } else { "\n" };
    let default = [default.to_owned()];
    let prompts = if args.prompts.is_empty() { &default[..] } else { &args.prompts };
    let sequence = |prompt: &String| {
        let mut ids: Vec<u32> = tokenizer.bos().filter(|_| tokenizer.add_bos()).into_iter().collect();
        ids.extend(tokenizer.encode(prompt).map_err(Failure::call)?);
        if ids.is_empty() {
            return Err(Failure::Call(
                "an empty prompt: this model needs at least one token to continue".into(),
            ));
        }
        Ok(Sequence::new(Some(prompt.clone()), ids))
    };
    prompts.iter().map(sequence).collect()
}

fn stop_tokens(gguf: &Gguf, tokenizer: Option<&Tokenizer>) -> Vec<u32> {
    match tokenizer {
        Some(tokenizer) => (0..tokenizer.len() as u32).filter(|&id| tokenizer.is_end(id)).collect(),
        None => gguf.u32("tokenizer.ggml.eos_token_id").into_iter().collect(),
    }
}

impl Sequence {
    fn new(prompt: Option<String>, ids: Vec<u32>) -> Sequence {
        let (stream, text) = (Utf8Stream::new(), String::new());
        Sequence { prompt, ids, produced: Vec::new(), stream, text, stopped: false }
    }

    /// Takes in a token and returns what it adds to the printed text.
    fn take(&mut self, token: u32, finish: Option<Finish>, tokenizer: Option<&Tokenizer>) -> Outcome<String> {
        self.produced.push(token);
        self.stopped = finish == Some(Finish::Stop);
        let mut added = match tokenizer {
            None => format!("{}{token}", if self.produced.len() > 1 { "," } else { "" }),
            // The token that ends a text is no part of it.
            Some(_) if self.stopped => String::new(),
            Some(tokenizer) => self.stream.push(&tokenizer.decode(&[token]).map_err(Failure::wrong)?),
        };
        if finish.is_some() {
            added += &self.stream.finish();
        }
        self.text += &added;
        Ok(added)
    }
}

/// Runs all requests; with `live`, prints text as it comes.
fn generate(
    engine: &mut Engine,
    requests: Vec<Request>,
    sequences: &mut [Sequence],
    tokenizer: Option<&Tokenizer>,
    mut live: Option<&mut Out<'_>>,
) -> Outcome<Timing> {
    let prompt_tokens = sequences.iter().map(|sequence| sequence.ids.len()).sum();
    let zero = Duration::ZERO;
    let mut timing = Timing { prompt_tokens, prompt: zero, generated_tokens: 0, generation: zero };
    let mut generation = engine.generate(requests)?;
    loop {
        let start = Instant::now();
        let Some(produced) = generation.next() else { break };
        let produced = produced?;
        // The first tokens come out of the prompts' own run.
        if timing.prompt.is_zero() {
            timing.prompt = start.elapsed();
        } else {
            timing.generation += start.elapsed();
            timing.generated_tokens += produced.len();
        }
        for item in produced {
            let added = sequences[item.request].take(item.token, item.finish, tokenizer)?;
            if let Some(out) = live.as_mut().filter(|_| !added.is_empty()) {
                write!(out, "{added}")?;
                out.flush()?;
            }
        }
    }
    if let Some(out) = live.filter(|_| !sequences[0].text.ends_with('\n')) {
        writeln!(out)?;
    }
    Ok(timing)
}

fn print_all(sequences: &[Sequence], out: &mut Out<'_>) -> Outcome {
    for (index, sequence) in sequences.iter().enumerate() {
        let prompt = sequence.prompt.as_deref().unwrap_or_default();
        writeln!(out, "{}== {}: {prompt:?}", if index > 0 { "\n" } else { "" }, index + 1)?;
        writeln!(out, "{}", sequence.text.trim_end_matches('\n'))?;
    }
    Ok(())
}

fn print_json(model: &str, sequences: &[Sequence], timing: &Timing, out: &mut Out<'_>) -> Outcome {
    let results: Vec<serde_json::Value> = sequences
        .iter()
        .map(|sequence| {
            serde_json::json!({
                "prompt": sequence.prompt,
                "prompt_tokens": sequence.ids,
                "tokens": sequence.produced,
                "text": sequence.prompt.as_ref().map(|_| &sequence.text),
                "finish": if sequence.stopped { "stop" } else { "length" },
            })
        })
        .collect();
    let report = serde_json::json!({
        "model": model,
        "sequences": results,
        "prompt_tokens_per_second": timing.prompt_speed(),
        "generation_tokens_per_second": timing.generation_speed(),
    });
    writeln!(out, "{report}")?;
    Ok(())
}

impl Timing {
    fn prompt_speed(&self) -> f64 {
        self.prompt_tokens as f64 / self.prompt.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Nothing is known of it when the prompt's run gave all tokens.
    fn generation_speed(&self) -> Option<f64> {
        let seconds = self.generation.as_secs_f64();
        (seconds > 0.0).then(|| self.generated_tokens as f64 / seconds)
    }

    fn tell(&self) {
        let generation = match self.generation_speed() {
            Some(speed) => format!("generation {} tokens, {speed:.1} tokens/s", self.generated_tokens),
            None => "generation: all tokens came out of the prompt's run".into(),
        };
        eprintln!("prompt {} tokens, {:.1} tokens/s; {generation}", self.prompt_tokens, self.prompt_speed());
    }
}
