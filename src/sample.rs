//! Choosing the next token from the logits.
//!
//! Greedy without a temperature. With one: divide the logits by it, keep the `top_k` largest, of those the
//! smallest set whose share reaches `top_p`, and draw from what is left in proportion to `exp(logit)`.
//! The draw depends on the seed and the logits alone, so a run can be repeated.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::cmp::Ordering;

/// How to choose a token.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct SampleOptions {
    /// Above 1 flattens the distribution, below 1 sharpens it; `None` and 0 take the largest logit.
    pub temperature: Option<f32>,
    /// Draw among this many largest logits only.
    pub top_k: Option<usize>,
    /// Draw among the fewest largest logits whose probabilities, after `top_k`, add up to this.
    pub top_p: Option<f32>,
    /// Start of the generator.
    pub seed: u64,
}

/// Why no token could be chosen.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// An option outside its range.
    #[error("sampler: {option} is {found}, expected {expected}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Its value.
        found: String,
        /// Its range.
        expected: &'static str,
    },
    /// There is nothing to choose from.
    #[error("sampler: no logits")]
    Empty,
    /// The model produced something that is no number.
    #[error("sampler: logit {index} of {count} is NaN")]
    Nan {
        /// The first token with such a logit.
        index: usize,
        /// Number of logits.
        count: usize,
    },
}

/// Options and the state of the generator.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: SampleOptions,
    generator: ChaCha8Rng,
    candidates: Vec<Candidate>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    token: u32,
    logit: f32,
    /// Relative to the largest logit, which has weight 1.
    weight: f64,
}

impl Candidate {
    /// Largest logit first, lowest token among equals.
    fn order(&self, other: &Candidate) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.token.cmp(&other.token))
    }
}

impl Sampler {
    /// A sampler at the start of its seed's sequence.
    ///
    /// Errors: a temperature that is negative or not finite, a `top_k` of 0, a `top_p` outside (0, 1].
    pub fn new(options: SampleOptions) -> Result<Sampler, SampleError> {
        let refuse = |option, found, expected| Err(SampleError::Option { option, found, expected });
        match options {
            SampleOptions { temperature: Some(t), .. } if !(t.is_finite() && t >= 0.0) => {
                refuse("temperature", t.to_string(), "a finite number from 0 on")
            }
            SampleOptions { top_k: Some(0), .. } => refuse("top_k", "0".to_string(), "1 or more"),
            SampleOptions { top_p: Some(p), .. } if !(p > 0.0 && p <= 1.0) => {
                refuse("top_p", p.to_string(), "above 0 and at most 1")
            }
            _ => Ok(Sampler {
                options,
                generator: ChaCha8Rng::seed_from_u64(options.seed),
                candidates: Vec::new(),
            }),
        }
    }

    /// Takes the largest logit every time.
    pub fn greedy() -> Sampler {
        Sampler::new(SampleOptions::default()).expect("no option is set")
    }

    /// Chooses a token, the index of its logit. `-inf` forbids a token; among equal largest logits, greedy
    /// takes the lowest token.
    ///
    /// Errors: no logits, or one that is NaN.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SampleError> {
        let best = argmax(logits)?;
        match self.options.temperature {
            Some(temperature) if temperature > 0.0 => {
                self.weigh(logits, logits[best as usize], temperature);
                self.keep_top_k();
                self.keep_top_p();
                Ok(self.draw().unwrap_or(best))
            }
            _ => Ok(best),
        }
    }

    fn weigh(&mut self, logits: &[f32], largest: f32, temperature: f32) {
        let weight = |logit: f32| {
            // Infinite largest logits have no finite difference to themselves.
            if logit == largest {
                1.0
            } else {
                ((f64::from(logit) - f64::from(largest)) / f64::from(temperature)).exp()
            }
        };
        self.candidates.clear();
        self.candidates.extend((0u32..).zip(logits).map(|(token, &logit)| Candidate {
            token,
            logit,
            weight: weight(logit),
        }));
    }

    fn keep_top_k(&mut self) {
        match self.options.top_k {
            Some(k) if k < self.candidates.len() => {
                self.candidates.select_nth_unstable_by(k, Candidate::order);
                self.candidates.truncate(k);
                self.candidates.sort_unstable_by(Candidate::order);
            }
            _ => {}
        }
    }

    fn keep_top_p(&mut self) {
        match self.options.top_p {
            Some(p) if p < 1.0 => {
                self.candidates.sort_unstable_by(Candidate::order);
                let share = f64::from(p) * self.total();
                let mut sum = 0.0;
                let enough = self.candidates.iter().position(|candidate| {
                    sum += candidate.weight;
                    sum >= share
                });
                self.candidates.truncate(enough.map_or(self.candidates.len(), |last| last + 1));
            }
            _ => {}
        }
    }

    fn total(&self) -> f64 {
        self.candidates.iter().map(|candidate| candidate.weight).sum()
    }

    fn draw(&mut self) -> Option<u32> {
        // 53 random bits make every multiple of 2^-53 in [0, 1) equally likely.
        let uniform = (self.generator.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let target = uniform * self.total();
        let mut sum = 0.0;
        let mut last = None;
        for candidate in self.candidates.iter().filter(|candidate| candidate.weight > 0.0) {
            sum += candidate.weight;
            last = Some(candidate.token);
            if sum > target {
                break;
            }
        }
        last
    }
}

/// The token with the largest logit, the lowest among equals.
///
/// Errors: no logits, or one that is NaN.
pub fn argmax(logits: &[f32]) -> Result<u32, SampleError> {
    if let Some(index) = logits.iter().position(|logit| logit.is_nan()) {
        return Err(SampleError::Nan { index, count: logits.len() });
    }
    let mut best = None;
    for (token, &logit) in (0u32..).zip(logits) {
        if best.is_none_or(|(_, largest)| logit > largest) {
            best = Some((token, logit));
        }
    }
    best.map(|(token, _)| token).ok_or(SampleError::Empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WARM: SampleOptions = SampleOptions { temperature: Some(1.0), top_k: None, top_p: None, seed: 7 };

    fn draws(options: SampleOptions, logits: &[f32], count: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(options).unwrap();
        (0..count).map(|_| sampler.sample(logits).unwrap()).collect()
    }

    fn shares(options: SampleOptions, logits: &[f32]) -> Vec<f64> {
        const COUNT: usize = 40_000;
        let mut shares = vec![0.0; logits.len()];
        for token in draws(options, logits, COUNT) {
            shares[token as usize] += 1.0 / COUNT as f64;
        }
        shares
    }

    fn assert_shares(found: &[f64], wanted: &[f64]) {
        // Five standard deviations of a share of 40,000 draws are below 0.0125.
        let close = found.iter().zip(wanted).all(|(f, w)| (f - w).abs() < 0.0125);
        assert!(close, "found {found:?}, wanted {wanted:?}");
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals() {
        let mut greedy = Sampler::greedy();
        assert_eq!(greedy.sample(&[1.0, 3.0, 3.0, 2.0]), Ok(1));
        assert_eq!(greedy.sample(&[0.0, -0.0]), Ok(0));
        assert_eq!(greedy.sample(&[f32::NEG_INFINITY; 3]), Ok(0));
        assert_eq!(greedy.sample(&[1.0, f32::INFINITY]), Ok(1));
    }

    #[test]
    fn what_is_no_choice_is_an_error() {
        for options in [SampleOptions::default(), WARM] {
            let mut sampler = Sampler::new(options).unwrap();
            assert_eq!(sampler.sample(&[]), Err(SampleError::Empty));
            let error = sampler.sample(&[0.0, f32::NAN, f32::NAN]).unwrap_err();
            assert_eq!(error.to_string(), "sampler: logit 1 of 3 is NaN");
        }
    }

    #[test]
    fn options_outside_their_range_are_refused() {
        for temperature in [-0.5, f32::NAN, f32::INFINITY] {
            assert!(Sampler::new(SampleOptions { temperature: Some(temperature), ..WARM }).is_err());
        }
        for top_p in [0.0, -1.0, 1.5, f32::NAN] {
            assert!(Sampler::new(SampleOptions { top_p: Some(top_p), ..WARM }).is_err());
        }
        let error = Sampler::new(SampleOptions { top_k: Some(0), ..WARM }).unwrap_err();
        assert_eq!(error.to_string(), "sampler: top_k is 0, expected 1 or more");
    }

    #[test]
    fn draws_follow_the_softmax() {
        let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln(), f32::NEG_INFINITY];
        assert_shares(&shares(WARM, &logits), &[0.5, 0.3, 0.2, 0.0]);
        // Temperature 0.5 squares the probabilities.
        let sharp = SampleOptions { temperature: Some(0.5), ..WARM };
        assert_shares(&shares(sharp, &logits), &[0.25 / 0.38, 0.09 / 0.38, 0.04 / 0.38, 0.0]);
    }

    #[test]
    fn top_k_and_top_p_renormalise_what_they_keep() {
        let logits = [0.2f32.ln(), 0.5f32.ln(), 0.3f32.ln()];
        let two = SampleOptions { top_k: Some(2), ..WARM };
        assert_shares(&shares(two, &logits), &[0.0, 0.625, 0.375]);
        let most = SampleOptions { top_p: Some(0.7), ..WARM };
        assert_shares(&shares(most, &logits), &[0.0, 0.625, 0.375]);
        // After top_k the largest has 0.625, which is already enough.
        let both = SampleOptions { top_k: Some(2), top_p: Some(0.6), ..WARM };
        assert_shares(&shares(both, &logits), &[0.0, 1.0, 0.0]);
    }

    #[test]
    fn edges_of_top_p() {
        let logits = [0.0f32, 1.0, 1.0, -2.0];
        let least = SampleOptions { top_p: Some(f32::MIN_POSITIVE), ..WARM };
        assert!(draws(least, &logits, 100).iter().all(|&token| token == 1));
        let all = SampleOptions { top_p: Some(1.0), ..WARM };
        assert_eq!(draws(all, &logits, 100), draws(WARM, &logits, 100));
        let one = [3.0f32];
        assert_eq!(draws(SampleOptions { top_p: Some(0.5), ..WARM }, &one, 3), [0, 0, 0]);
    }

    #[test]
    fn one_candidate_is_greedy() {
        let logits = [0.1f32, 0.7, 0.7, 0.2];
        let one = SampleOptions { top_k: Some(1), ..WARM };
        assert!(draws(one, &logits, 100).iter().all(|&token| token == 1));
        let cold = SampleOptions { temperature: Some(0.0), ..WARM };
        assert!(draws(cold, &logits, 100).iter().all(|&token| token == 1));
        let distinct = [0.1f32, 0.7, 0.69, 0.2];
        let nearly_cold = SampleOptions { temperature: Some(1e-30), ..WARM };
        assert!(draws(nearly_cold, &distinct, 100).iter().all(|&token| token == 1));
    }

    #[test]
    fn infinite_logits_have_no_nan_weights() {
        let sure = [0.0f32, f32::INFINITY, 5.0];
        assert!(draws(WARM, &sure, 50).iter().all(|&token| token == 1));
        let none = [f32::NEG_INFINITY; 2];
        assert_shares(&shares(WARM, &none), &[0.5, 0.5]);
    }

    #[test]
    fn a_seed_repeats_its_draws() {
        let logits: Vec<f32> = (0..50).map(|token| (token as f32 * 0.7).sin()).collect();
        let first = draws(WARM, &logits, 200);
        assert_eq!(first, draws(WARM, &logits, 200));
        assert_ne!(first, draws(SampleOptions { seed: 8, ..WARM }, &logits, 200));
        let top = SampleOptions { top_k: Some(10), top_p: Some(0.9), ..WARM };
        assert_eq!(draws(top, &logits, 200), draws(top, &logits, 200));
    }
}
