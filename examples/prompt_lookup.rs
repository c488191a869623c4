//! Speculative decoding with guesses from the text so far (prompt lookup): what followed the last few tokens when they
//! stood there before is drafted, checked in one run, and taken back as far as it was wrong.
//!
//! `cargo run --release --example prompt_lookup [MODEL.gguf [PROMPT]]`

use ssmgraph::backend::Devices;
use ssmgraph::formats::{Gguf, Tokenizer};
use ssmgraph::sample::argmax;
use ssmgraph::{Engine, EngineOptions, Logits};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MODEL: &str = "demo/kjv-mamba1.q8_0.gguf";
const PROMPT: &str = "And God said, Let there be light: and there was light.\nAnd God said, Let there be";
const TOKENS: usize = 300;
/// Most tokens of a draft, and so the states that each slot remembers.
const DRAFT_MAX: usize = 8;
/// A draft continues the longest match of so many last tokens ...
const MATCH_MAX: usize = 6;
/// ... and none shorter than this.
const MATCH_MIN: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().unwrap_or_else(|| MODEL.into());
    let prompt = arguments.next().unwrap_or_else(|| PROMPT.into());
    let gguf = Arc::new(Gguf::open(model)?);
    let tokenizer = Tokenizer::from_gguf(&gguf)?;
    let options = EngineOptions { slots: 2, rollback: DRAFT_MAX, ..EngineOptions::default() };
    let mut engine = Engine::load(gguf, &Devices::cpu(None), options)?;
    let ids = tokenizer.encode(&prompt)?;

    let (plain, plain_time) = plainly(&mut engine, 0, &ids)?;
    let (drafted, statistics) = with_drafts(&mut engine, 1, &ids)?;
    assert_eq!(plain, drafted, "a draft never changes the text");
    println!("{prompt}{}", String::from_utf8_lossy(&tokenizer.decode(&drafted)?));
    println!(
        "{} tokens in {} runs: {} of {} drafted tokens accepted ({:.0} %), {:.2} times as fast as one by one",
        drafted.len(),
        statistics.runs,
        statistics.accepted,
        statistics.drafted,
        100.0 * statistics.accepted as f64 / statistics.drafted.max(1) as f64,
        plain_time.as_secs_f64() / statistics.time.as_secs_f64()
    );
    Ok(())
}

/// Greedy decoding, a token a run, and how long that took after the prompt.
fn plainly(engine: &mut Engine, slot: usize, prompt: &[u32]) -> Result<(Vec<u32>, Duration), Box<dyn Error>> {
    let mut logits = engine.step(&[(slot, prompt)], Logits::Last)?.remove(0);
    let (mut produced, start) = (Vec::new(), Instant::now());
    while produced.len() < TOKENS {
        let token = argmax(&logits)?;
        produced.push(token);
        logits = engine.step(&[(slot, &[token])], Logits::Last)?.remove(0);
    }
    Ok((produced, start.elapsed()))
}

struct Statistics {
    runs: usize,
    drafted: usize,
    accepted: usize,
    time: Duration,
}

/// The same tokens, several a run where the guesses are right.
fn with_drafts(
    engine: &mut Engine,
    slot: usize,
    prompt: &[u32],
) -> Result<(Vec<u32>, Statistics), Box<dyn Error>> {
    let n_vocab = engine.info().n_vocab;
    let logits = engine.step(&[(slot, prompt)], Logits::Last)?.remove(0);
    let mut text = prompt.to_vec();
    let mut next = argmax(&logits)?;
    let start = Instant::now();
    let mut statistics = Statistics { runs: 0, drafted: 0, accepted: 0, time: Duration::ZERO };
    while text.len() < prompt.len() + TOKENS {
        text.push(next);
        let draft = draft(&text);
        let fed = [&[next], draft.as_slice()].concat();
        let logits = engine.step(&[(slot, &fed)], Logits::All)?.remove(0);
        // Row i says what follows fed token i; the draft is right as long as that is the next of it.
        let best = logits.chunks_exact(n_vocab).map(argmax).collect::<Result<Vec<u32>, _>>()?;
        let accepted = draft.iter().zip(&best).take_while(|(drafted, best)| drafted == best).count();
        engine.rollback(slot, draft.len() - accepted)?;
        text.extend(&draft[..accepted]);
        next = best[accepted];
        statistics.runs += 1;
        statistics.drafted += draft.len();
        statistics.accepted += accepted;
    }
    statistics.time = start.elapsed();
    text.truncate(prompt.len() + TOKENS);
    Ok((text.split_off(prompt.len()), statistics))
}

/// What followed the last tokens of a text where they stood before, latest place first.
fn draft(text: &[u32]) -> Vec<u32> {
    for length in (MATCH_MIN..=MATCH_MAX.min(text.len())).rev() {
        let (earlier, last) = (&text[..text.len() - 1], &text[text.len() - length..]);
        if let Some(place) = earlier.windows(length).rposition(|window| window == last) {
            let from = place + length;
            return text[from..text.len().min(from + DRAFT_MAX)].to_vec();
        }
    }
    Vec::new()
}
