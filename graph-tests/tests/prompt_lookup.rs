//! The example `prompt_lookup`: drafts change how many runs a text takes, never the text.

#[path = "../../examples/prompt_lookup/lookup.rs"]
mod lookup;

use graph_tests::cuda;
use graph_tests::models::tiny;
use lookup::{DRAFT_MAX, draft, plainly, with_drafts};
use ssmgraph::backend::Devices;
use ssmgraph::formats::Gguf;
use ssmgraph::{Engine, EngineOptions};
use std::path::Path;
use std::sync::Arc;

/// Prompts of different lengths in slots out of order; texts that repeat themselves can be guessed.
const PROMPTS: [(usize, &[u32]); 3] =
    [(2, &[10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12]), (0, &[200]), (1, &[7, 8, 9, 7, 8, 9, 7])];

fn engine(gguf: Gguf, devices: &Devices, context: usize) -> Engine {
    let context = Some(context);
    let options = EngineOptions { slots: 3, rollback: DRAFT_MAX, context, ..EngineOptions::default() };
    Engine::load(Arc::new(gguf), devices, options).unwrap()
}

/// Runs both ways in one engine; how many drafted tokens were accepted, and how many runs that took.
fn check(gguf: Gguf, devices: &Devices, prompts: &[(usize, &[u32])], tokens: usize) -> (usize, usize) {
    // The last token is not fed: no draft may ask for more room than the text takes.
    let longest = prompts.iter().map(|(_, prompt)| prompt.len()).max().unwrap();
    let mut engine = engine(gguf, devices, longest + tokens - 1);
    let (plain, _) = plainly(&mut engine, prompts, tokens).unwrap();
    for (&(slot, prompt), text) in prompts.iter().zip(&plain) {
        assert_eq!(text.len(), tokens);
        assert!(engine.position(slot).unwrap() == prompt.len() + tokens - 1);
        engine.reset(slot).unwrap();
    }
    let (drafted, statistics) = with_drafts(&mut engine, prompts, tokens).unwrap();
    assert_eq!(plain, drafted);
    for &(slot, prompt) in prompts {
        assert_eq!(engine.position(slot).unwrap(), prompt.len() + tokens - 1, "slot {slot}");
    }
    assert!(statistics.accepted <= statistics.drafted && statistics.runs < tokens.max(1));
    (statistics.accepted, statistics.runs)
}

#[test]
fn a_draft_never_changes_the_text() {
    for model in ["mamba2-g1-tiny", "qwen35-tiny", "qwen3next-tiny"] {
        for tokens in [1, 2, 40] {
            check(tiny(&format!("{model}.f32")), &Devices::cpu(Some(2)), &PROMPTS, tokens);
        }
    }
}

#[test]
fn a_draft_never_changes_the_text_on_cuda() {
    for model in ["mamba2-g1-tiny", "qwen35-tiny"] {
        check(tiny(&format!("{model}.f32")), &cuda::devices(), &PROMPTS[..2], 16);
    }
}

#[test]
fn a_text_that_repeats_itself_takes_fewer_runs() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/kjv-mamba1.q8_0.gguf");
    let (accepted, runs) = check(Gguf::open(demo).unwrap(), &Devices::cpu(Some(2)), &[(1, &[65; 20])], 60);
    println!("{accepted} accepted in {runs} runs");
    assert!(accepted > 0 && runs < 59);
}

#[test]
fn a_draft_is_what_followed_the_longest_latest_match() {
    assert_eq!(draft(&[1, 2, 3, 4, 5, 1, 2, 3], 8), [4, 5, 1, 2, 3]);
    assert_eq!(draft(&[1, 2, 3, 4, 5, 1, 2, 3], 2), [4, 5]);
    assert_eq!(draft(&[1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2, 3], 1), [5]);
    assert_eq!(draft(&[0, 1, 2, 3, 4, 9, 1, 2, 3, 5, 0, 1, 2, 3], 1), [4]);
    assert_eq!(draft(&[7, 7, 7, 7], 8), [7]);
    assert!(draft(&[1, 2, 1, 2], 8).is_empty());
    assert!(draft(&[], 8).is_empty());
}
