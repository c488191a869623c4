//! Greedy decoding of several sequences, plainly and with drafts. Both give the same tokens.

use ssmgraph::sample::{SampleError, argmax};
use ssmgraph::{Engine, Logits};
use std::error::Error;
use std::time::{Duration, Instant};

/// Most tokens of a draft, and so the states that each slot has to remember.
pub const DRAFT_MAX: usize = 8;
/// A draft continues the longest match of so many last tokens ...
const MATCH_MAX: usize = 6;
/// ... and none shorter than this.
const MATCH_MIN: usize = 3;

/// What can fail are runs, and choosing a token among NaN.
type Outcome<T> = Result<T, Box<dyn Error>>;

/// What drafts were worth.
pub struct Statistics {
    /// Runs after that of the prompts.
    pub runs: usize,
    /// Tokens that were guessed.
    pub drafted: usize,
    /// Tokens that were guessed rightly.
    pub accepted: usize,
    /// How long the runs took.
    pub time: Duration,
}

/// One sequence on its way.
struct Sequence {
    slot: usize,
    /// The prompt and what followed it.
    text: Vec<u32>,
    /// Where it ends.
    length: usize,
}

impl Sequence {
    fn is_live(&self) -> bool {
        self.text.len() < self.length
    }
}

/// The next `tokens` tokens of each sequence, a slot and its prompt, in runs of one token each, and how long these took.
pub fn plainly(
    engine: &mut Engine,
    prompts: &[(usize, &[u32])],
    tokens: usize,
) -> Outcome<(Vec<Vec<u32>>, Duration)> {
    let mut sequences = begin(engine, prompts, tokens)?;
    let start = Instant::now();
    while sequences.iter().any(Sequence::is_live) {
        let calls: Vec<(usize, &[u32])> =
            sequences.iter().map(|sequence| (sequence.slot, last(&sequence.text))).collect();
        let logits = engine.step(&calls, Logits::Last)?;
        for (sequence, logits) in sequences.iter_mut().zip(&logits) {
            sequence.text.push(argmax(logits)?);
        }
    }
    Ok((produced(sequences, tokens), start.elapsed()))
}

/// The same tokens, several a run where the guesses are right. The slots must be able to go back [`DRAFT_MAX`] tokens.
pub fn with_drafts(
    engine: &mut Engine,
    prompts: &[(usize, &[u32])],
    tokens: usize,
) -> Outcome<(Vec<Vec<u32>>, Statistics)> {
    let n_vocab = engine.info().n_vocab;
    let mut sequences = begin(engine, prompts, tokens)?;
    let mut statistics = Statistics { runs: 0, drafted: 0, accepted: 0, time: Duration::ZERO };
    let start = Instant::now();
    while sequences.iter().any(Sequence::is_live) {
        let live: Vec<&mut Sequence> = sequences.iter_mut().filter(|sequence| sequence.is_live()).collect();
        // The run gives one token more than it checks.
        let drafts: Vec<Vec<u32>> = live
            .iter()
            .map(|sequence| draft(&sequence.text, sequence.length - sequence.text.len() - 1))
            .collect();
        let fed: Vec<Vec<u32>> = live
            .iter()
            .zip(&drafts)
            .map(|(sequence, draft)| [last(&sequence.text), draft].concat())
            .collect();
        let calls: Vec<(usize, &[u32])> =
            live.iter().zip(&fed).map(|(sequence, fed)| (sequence.slot, fed.as_slice())).collect();
        let logits = engine.step(&calls, Logits::All)?;
        statistics.runs += 1;
        for ((sequence, draft), logits) in live.into_iter().zip(&drafts).zip(&logits) {
            // Row i says what follows fed token i; the draft is right as long as that is the next of it.
            let best = logits.chunks_exact(n_vocab).map(argmax).collect::<Result<Vec<u32>, SampleError>>()?;
            let accepted = draft.iter().zip(&best).take_while(|(drafted, best)| drafted == best).count();
            engine.rollback(sequence.slot, draft.len() - accepted)?;
            sequence.text.extend(&best[..=accepted]);
            statistics.drafted += draft.len();
            statistics.accepted += accepted;
        }
    }
    statistics.time = start.elapsed();
    Ok((produced(sequences, tokens), statistics))
}

/// Runs the prompts, and chooses what follows each.
fn begin(engine: &mut Engine, prompts: &[(usize, &[u32])], tokens: usize) -> Outcome<Vec<Sequence>> {
    let logits = engine.step(prompts, Logits::Last)?;
    let sequences = prompts.iter().zip(&logits).map(|(&(slot, prompt), logits)| {
        let text = [prompt, &[argmax(logits)?]].concat();
        Ok(Sequence { slot, text, length: prompt.len() + tokens })
    });
    sequences.collect()
}

/// The token that the slot has not seen yet.
fn last(text: &[u32]) -> &[u32] {
    &text[text.len() - 1..]
}

fn produced(sequences: Vec<Sequence>, tokens: usize) -> Vec<Vec<u32>> {
    sequences
        .into_iter()
        .map(|mut sequence| sequence.text.drain(sequence.length - tokens..).take(tokens).collect())
        .collect()
}

/// What followed the last tokens of a text where they stood before, latest place first; at most `most` tokens.
pub fn draft(text: &[u32], most: usize) -> Vec<u32> {
    for length in (MATCH_MIN..=MATCH_MAX.min(text.len())).rev() {
        let (earlier, last) = (&text[..text.len() - 1], &text[text.len() - length..]);
        if let Some(place) = earlier.windows(length).rposition(|window| window == last) {
            let from = place + length;
            return text[from..text.len().min(from + most.min(DRAFT_MAX))].to_vec();
        }
    }
    Vec::new()
}
