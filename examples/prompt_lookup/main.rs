//! Speculative decoding with guesses from the text so far (prompt lookup): what followed the last few tokens when they
//! stood there before is drafted, checked in one run, and taken back as far as it was wrong. Several prompts are
//! continued together, each with drafts of its own.
//!
//! `cargo run --release --example prompt_lookup [MODEL.gguf [PROMPT …]]`

mod lookup;

use lookup::{DRAFT_MAX, plainly, with_drafts};
use ssmgraph::backend::Devices;
use ssmgraph::formats::{Gguf, Tokenizer};
use ssmgraph::{Engine, EngineOptions};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

const MODEL: &str = "demo/kjv-mamba1.q8_0.gguf";
const PROMPT: &str = "And God said, Let there be light: and there was light.\nAnd God said, Let there be";
const TOKENS: usize = 300;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().unwrap_or_else(|| MODEL.into());
    let mut prompts: Vec<String> = arguments.collect();
    if prompts.is_empty() {
        prompts.push(PROMPT.into());
    }
    let gguf = Arc::new(Gguf::open(model)?);
    let tokenizer = Tokenizer::from_gguf(&gguf)?;
    let options = EngineOptions { slots: prompts.len(), rollback: DRAFT_MAX, ..EngineOptions::default() };
    let mut engine = Engine::load(gguf, &Devices::cpu(None), options)?;
    let ids = prompts.iter().map(|prompt| tokens_of(&tokenizer, prompt)).collect::<Result<Vec<_>, _>>()?;
    let sequences: Vec<(usize, &[u32])> = ids.iter().map(Vec::as_slice).enumerate().collect();

    let (plain, plain_time) = plainly(&mut engine, &sequences, TOKENS)?;
    (0..prompts.len()).try_for_each(|slot| engine.reset(slot))?;
    let (drafted, statistics) = with_drafts(&mut engine, &sequences, TOKENS)?;
    assert_eq!(plain, drafted, "a draft never changes the text");
    for (prompt, tokens) in prompts.iter().zip(&drafted) {
        println!("{prompt}{}\n", String::from_utf8_lossy(&tokenizer.decode(tokens)?));
    }
    println!(
        "{} tokens in {} runs: {} of {} drafted tokens accepted ({:.0} %), {:.2} times as fast as one by one",
        TOKENS * prompts.len(),
        statistics.runs,
        statistics.accepted,
        statistics.drafted,
        100.0 * statistics.accepted as f64 / statistics.drafted.max(1) as f64,
        plain_time.as_secs_f64() / statistics.time.as_secs_f64()
    );
    Ok(())
}

/// A prompt as the model was trained to begin one.
fn tokens_of(tokenizer: &Tokenizer, prompt: &str) -> Result<Vec<u32>, Box<dyn Error>> {
    let mut ids: Vec<u32> = tokenizer.bos().filter(|_| tokenizer.add_bos()).into_iter().collect();
    ids.extend(tokenizer.encode(prompt)?);
    if ids.is_empty() { Err("an empty prompt: there is nothing to continue".into()) } else { Ok(ids) }
}
