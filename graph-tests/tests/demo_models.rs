//! Small models of English text: what they write and how well they predict; see `fixtures/README.md`.

use graph_tests::arrays::{Arrays, fixture, nmse};
use ssmgraph::backend::Devices;
use ssmgraph::engine::Request;
use ssmgraph::formats::Gguf;
use ssmgraph::sample::{Sampler, argmax};
use ssmgraph::{Engine, EngineOptions, Logits};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

const PROMPTS: [&str; 3] = ["P1", "P16", "P200"];
/// Where the reference's two best logits are closer than this, other rounding may choose the other one.
const MARGIN_MIN: f32 = 0.02;
const BITS_PER_BYTE_ERROR_MAX: f64 = 1e-3;

struct Demo {
    engine: Engine,
    expected: Arrays,
    /// Which of the reference's arrays to compare with.
    reference: &'static str,
}

fn demo(name: &str, path: PathBuf, reference: &'static str) -> Demo {
    let gguf = Arc::new(Gguf::open(path).unwrap());
    let options = EngineOptions { slots: PROMPTS.len(), ..EngineOptions::default() };
    let engine = Engine::load(gguf, &Devices::cpu(Some(2)), options).unwrap();
    Demo { engine, expected: Arrays::read(&format!("demo/{name}.safetensors")), reference }
}

impl Demo {
    /// All prompts at once; the text is compared up to the first near-tie.
    /// `sure_min` tokens come before the first near-tie of each prompt.
    fn check_text(mut self, sure_min: usize) {
        let requests = PROMPTS.iter().enumerate().map(|(slot, prompt)| Request {
            slot,
            prompt: self.expected.tokens(&format!("{prompt}.ids")),
            sampler: Sampler::greedy(),
            tokens_max: 128,
            stop: vec![0],
        });
        let mut texts = vec![Vec::new(); PROMPTS.len()];
        for produced in self.engine.generate(requests.collect()).unwrap() {
            for produced in produced.unwrap() {
                texts[produced.request].push(produced.token);
            }
        }
        for (prompt, text) in PROMPTS.iter().zip(&texts) {
            let greedy = self.expected.tokens(&format!("{prompt}.{}greedy", self.reference));
            let margins = self.expected.f32(&format!("{prompt}.{}greedy_margin", self.reference));
            let sure = margins.iter().position(|&margin| margin < MARGIN_MIN).unwrap_or(margins.len());
            assert!(sure >= sure_min, "{prompt}: only {sure} tokens are sure");
            assert_eq!(text[..sure], greedy[..sure], "{prompt}");
            println!("{prompt}: {sure} of {} tokens are sure, {} equal", greedy.len(), equal(text, &greedy));
        }
    }

    /// The reference's text is fed, so that what follows a near-tie is compared too.
    fn check_choices(mut self) {
        for (slot, prompt) in PROMPTS.iter().enumerate() {
            let ids = self.expected.tokens(&format!("{prompt}.ids"));
            let greedy = self.expected.tokens(&format!("{prompt}.{}greedy", self.reference));
            let margins = self.expected.f32(&format!("{prompt}.{}greedy_margin", self.reference));
            let fed: Vec<u32> = ids.iter().chain(&greedy[..greedy.len() - 1]).copied().collect();
            let logits = self.engine.step(&[(slot, &fed)], Logits::All).unwrap().remove(0);
            let rows = logits.chunks_exact(self.engine.info().n_vocab).skip(ids.len() - 1);
            let choices: Vec<u32> = rows.map(|row| argmax(row).unwrap()).collect();
            for (place, margin) in margins.iter().enumerate() {
                let sure = *margin >= MARGIN_MIN;
                assert!(!sure || choices[place] == greedy[place], "{prompt}: token {place}");
            }
        }
    }

    fn check_last_logits(mut self, max: f64) {
        for (slot, prompt) in PROMPTS.iter().enumerate() {
            let ids = self.expected.tokens(&format!("{prompt}.ids"));
            let logits = self.engine.step(&[(slot, &ids)], Logits::Last).unwrap().remove(0);
            let error = nmse(&logits, &self.expected.f32(&format!("{prompt}.{}last", self.reference)));
            println!("{prompt}: NMSE {error:.1e}, at most {max:.0e}");
            assert!(error <= max, "{prompt}: NMSE {error:e}");
        }
    }

    /// Mean negative log2 probability of each byte of a text after the first.
    fn check_prediction(mut self) {
        let text = fs::read(fixture("demo/heldout-4096.txt")).unwrap();
        let tokens: Vec<u32> = text.iter().map(|&byte| byte.into()).collect();
        let logits = self.engine.step(&[(0, &tokens)], Logits::All).unwrap().remove(0);
        let rows = logits.chunks_exact(self.engine.info().n_vocab);
        let bits: f64 = rows.zip(&tokens[1..]).map(|(row, &next)| surprise_bits(row, next)).sum();
        let found = bits / (tokens.len() - 1) as f64;
        let expected = self.expected.f64(&format!("{}bpb_4096", self.reference));
        println!("{found:.5} bits per byte, expected {expected:.5}");
        assert!((found - expected).abs() <= BITS_PER_BYTE_ERROR_MAX);
    }
}

fn equal(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn surprise_bits(logits: &[f32], token: u32) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
    (sum.ln() - f64::from(logits[token as usize] - largest)) / std::f64::consts::LN_2
}

macro_rules! demos {
    ($($module:ident = $demo:expr, $sure_min:literal, $nmse_max:literal;)*) => {$(
        mod $module {
            use super::*;

            #[test]
            fn greedy_text() {
                $demo.check_text($sure_min);
            }

            #[test]
            fn choices() {
                $demo.check_choices();
            }

            #[test]
            fn last_logits() {
                $demo.check_last_logits($nmse_max);
            }

            #[test]
            fn prediction() {
                $demo.check_prediction();
            }
        }
    )*};
}

fn shipped() -> PathBuf {
    fixture("../../demo/kjv-mamba1.q8_0.gguf")
}

// F16 weights with activations as they are: the f64 reference computes that, llama.cpp rounds them. Q8_0
// weights with rounded activations: llama.cpp computes that.
demos! {
    mamba_f16 = demo("kjv-mamba1", fixture("demo/kjv-mamba1.gguf"), "f64_"), 30, 1e-10;
    mamba_q8_0 = demo("kjv-mamba1.q8_0", shipped(), ""), 30, 1e-4;
    qwen35_f16 = demo("kjv-qwen35", fixture("demo/kjv-qwen35.gguf"), "f64_"), 28, 1e-10;
    mamba2_q8_0 = demo("kjv-mamba2.q8_0", fixture("demo/kjv-mamba2.q8_0.gguf"), ""), 30, 1e-4;
}
