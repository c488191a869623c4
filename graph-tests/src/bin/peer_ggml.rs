//! llama.cpp with and without our plugin, in one process: `peer_ggml PLUGIN models|ops [DEVICE]` or `peer_ggml PLUGIN bench
//! MODEL.gguf [THREADS]`.
//!
//! `models` runs the tiny models on llama.cpp's own CPU backend, loads the plugin, runs them again with it (as a helper
//! of the CPU, or with all layers on DEVICE), and prints how far the answers are apart. `ops` computes each op case that
//! ggml accepts on its CPU backend and on DEVICE.

use graph_tests::arrays::{fixture, nmse};
use graph_tests::peer::{Comparison, compare};
use peer_ggml::{Answer, Context, Model, Placement, load_plugin, quiet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

const MODELS: [&str; 4] = ["mamba1-tiny", "mamba2-g1-tiny", "qwen35-tiny", "qwen3next-tiny"];
/// Tokens of a prompt, and of its continuation.
const PROMPT: usize = 64;
const MORE: usize = 32;
/// Largest error of logits against llama.cpp's own.
const NMSE_MAX: f64 = 1e-10;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [plugin, what, rest @ ..] = &arguments[..] else {
        return Err(
            "usage: peer_ggml PLUGIN models|ops [DEVICE], or PLUGIN bench MODEL.gguf [THREADS]".into()
        );
    };
    let plugin = PathBuf::from(plugin);
    quiet();
    match what.as_str() {
        "ops" => ops(&plugin, rest.first().map_or("SSMGRAPH", String::as_str)),
        "models" => models(&plugin, rest.first().cloned().map(|name| &*name.leak())),
        "bench" => bench(&plugin, rest),
        other => Err(format!("{other}: neither models, ops nor bench")),
    }
}

fn answer(name: &str, placement: Placement) -> Result<Answer, String> {
    let model = Model::load(&fixture(&format!("oracles/{name}.f32.gguf")), placement)?;
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|index| (index * 37 + 11) % 256).collect();
    Answer::of(&model, &prompt, MORE)
}

fn models(plugin: &std::path::Path, device: Option<&'static str>) -> Result<bool, String> {
    let own = MODELS.iter().map(|name| answer(name, Placement::Cpu)).collect::<Result<Vec<_>, _>>()?;
    println!("devices: {}", load_plugin(plugin)?.join(", "));
    let placement = device.map_or(Placement::Cpu, Placement::Device);
    let mut all_right = true;
    for (name, own) in MODELS.iter().zip(own) {
        let with = answer(name, placement)?;
        let worst =
            own.logits.iter().zip(&with.logits).map(|(own, with)| nmse(with, own)).fold(0.0, f64::max);
        let right = own.tokens == with.tokens && worst <= NMSE_MAX;
        all_right &= right;
        let tokens = if own.tokens == with.tokens { "the same tokens" } else { "OTHER TOKENS" };
        println!("{name}: {tokens}, largest NMSE {worst:.1e}");
    }
    Ok(all_right)
}

fn ops(plugin: &std::path::Path, device: &str) -> Result<bool, String> {
    println!("devices: {}", load_plugin(plugin)?.join(", "));
    let comparison = compare(device)?;
    for wrong in &comparison.wrong {
        println!("{wrong}");
    }
    let Comparison { compared, declined, foreign, special, wrong } = &comparison;
    println!(
        "{compared} cases on {device} and on ggml's CPU backend, {} differ; {declined} declined by the plugin, {foreign} \
         are nothing that ggml accepts, {special} hold special values",
        wrong.len()
    );
    Ok(wrong.is_empty() && *compared > 0)
}

/// Tokens of a timed prompt, timed single tokens, and rounds.
const BENCH_PROMPT: usize = 512;
const BENCH_TOKENS: usize = 32;
const BENCH_ROUNDS: usize = 5;

fn bench(plugin: &std::path::Path, rest: &[String]) -> Result<bool, String> {
    let [path, threads @ ..] = rest else { return Err("bench wants a MODEL.gguf".into()) };
    let threads =
        threads.first().map_or(Ok(2), |text| text.parse::<usize>().map_err(|error| error.to_string()))?;
    let model = Model::load(std::path::Path::new(path), Placement::Cpu)?;
    let length = BENCH_PROMPT + BENCH_TOKENS;
    // A context asks for backends when it is made: the first is without the plugin, the second with it.
    let mut own = Context::new(&model, threads, length)?;
    load_plugin(plugin)?;
    let mut with = Context::new(&model, threads, length)?;
    let prompt: Vec<u32> = (0..BENCH_PROMPT as u32).map(|index| (index * 37 + 11) % 256).collect();
    let mut rates: [[Vec<f64>; 2]; 2] = Default::default();
    for round in 0..=BENCH_ROUNDS {
        for (context, rates) in [&mut own, &mut with].into_iter().zip(&mut rates) {
            context.clear();
            let start = Instant::now();
            context.decode(&prompt)?;
            let prompt_rate = BENCH_PROMPT as f64 / start.elapsed().as_secs_f64();
            let start = Instant::now();
            for &token in &prompt[..BENCH_TOKENS] {
                context.decode(&[token])?;
            }
            let token_rate = BENCH_TOKENS as f64 / start.elapsed().as_secs_f64();
            // The first round warms up.
            if round > 0 {
                rates[0].push(prompt_rate);
                rates[1].push(token_rate);
            }
        }
    }
    for (what, index) in [("prompt", 0), ("single tokens", 1)] {
        let [own, with] = [0, 1].map(|side| spread(&rates[side][index]));
        println!(
            "{what}: llama.cpp {:.1} ({:.1} to {:.1}) tokens/s, with the plugin {:.1} ({:.1} to {:.1}): {:.2} times",
            own[1],
            own[0],
            own[2],
            with[1],
            with[0],
            with[2],
            with[1] / own[1]
        );
    }
    Ok(true)
}

/// Least, median and largest.
fn spread(values: &[f64]) -> [f64; 3] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    [sorted[0], sorted[sorted.len() / 2], sorted[sorted.len() - 1]]
}
