//! llama.cpp with and without our plugin, in one process: `peer_ggml PLUGIN models|ops [DEVICE]`.
//!
//! `models` runs the tiny models on llama.cpp's own CPU backend, loads the plugin, runs them again with it (as a helper
//! of the CPU, or with all layers on DEVICE), and prints how far the answers are apart. `ops` computes each op case that
//! ggml accepts on its CPU backend and on DEVICE.

use graph_tests::arrays::{fixture, nmse};
use graph_tests::peer::{Answer, Comparison, Model, Placement, compare, load_plugin, quiet};
use std::path::PathBuf;
use std::process::ExitCode;

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
        return Err("usage: peer_ggml PLUGIN models|ops [DEVICE]".into());
    };
    let plugin = PathBuf::from(plugin);
    quiet();
    match what.as_str() {
        "ops" => ops(&plugin, rest.first().map_or("SSMGRAPH", String::as_str)),
        "models" => models(&plugin, rest.first().cloned().map(|name| &*name.leak())),
        other => Err(format!("{other}: neither models nor ops")),
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
