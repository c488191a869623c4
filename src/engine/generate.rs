//! Generating tokens for several prompts at once.

use super::{Engine, EngineError, Logits};
use crate::sample::Sampler;

/// One prompt and how to continue it.
#[derive(Clone, Debug)]
pub struct Request {
    /// The slot that it lives in. A slot with history goes on from there; reset it to start anew.
    pub slot: usize,
    /// The next tokens.
    pub prompt: Vec<u32>,
    /// Chooses tokens from logits.
    pub sampler: Sampler,
    /// Most tokens to produce. With 0 nothing runs, the prompt included.
    pub tokens_max: usize,
    /// Tokens after which to stop.
    pub stop: Vec<u32>,
}

/// Why a request is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A token of [`Request::stop`] was produced.
    Stop,
    /// [`Request::tokens_max`] tokens were produced.
    TokensMax,
}

/// A token that was produced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Produced {
    /// Which request, in the order of the call.
    pub request: usize,
    /// The token.
    pub token: u32,
    /// Set on the request's last token.
    pub finish: Option<Finish>,
}

/// Tokens as they are produced: each item has one token of every request that is still running, and all of
/// them are computed in one run. The last token of a request is not fed to its slot.
///
/// After an error there are no further items.
pub struct Generation<'e> {
    engine: &'e mut Engine,
    live: Vec<Live>,
}

/// A request that is still running.
struct Live {
    index: usize,
    request: Request,
    /// Tokens that the slot has not seen yet.
    pending: Vec<u32>,
    produced: usize,
}

impl<'e> Generation<'e> {
    pub(super) fn new(engine: &'e mut Engine, requests: Vec<Request>) -> Result<Generation<'e>, EngineError> {
        if let Some(request) = requests.iter().position(|request| request.prompt.is_empty()) {
            return Err(EngineError::EmptyPrompt { request });
        }
        let prompts: Vec<(usize, &[u32])> = requests.iter().map(|r| (r.slot, r.prompt.as_slice())).collect();
        engine.check(&prompts)?;
        let live = requests.into_iter().enumerate().map(|(index, mut request)| Live {
            index,
            pending: std::mem::take(&mut request.prompt),
            request,
            produced: 0,
        });
        Ok(Generation { engine, live: live.filter(|live| live.request.tokens_max > 0).collect() })
    }

    fn advance(&mut self) -> Result<Vec<Produced>, EngineError> {
        let sequences: Vec<(usize, &[u32])> =
            self.live.iter().map(|live| (live.request.slot, live.pending.as_slice())).collect();
        let logits = self.engine.step(&sequences, Logits::Last)?;
        let chosen = self.live.iter_mut().zip(&logits).map(|(live, logits)| live.choose(logits));
        let produced = chosen.collect::<Result<Vec<Produced>, _>>()?;
        let mut running = produced.iter().map(|produced| produced.finish.is_none());
        self.live.retain(|_| running.next().unwrap_or(false));
        Ok(produced)
    }
}

impl Live {
    fn choose(&mut self, logits: &[f32]) -> Result<Produced, EngineError> {
        let token = self.request.sampler.sample(logits);
        let token = token.map_err(|why| EngineError::Sample { request: self.index, why })?;
        self.produced += 1;
        self.pending.clear();
        self.pending.push(token);
        let finish = if self.request.stop.contains(&token) {
            Some(Finish::Stop)
        } else {
            (self.produced == self.request.tokens_max).then_some(Finish::TokensMax)
        };
        Ok(Produced { request: self.index, token, finish })
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Vec<Produced>, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.live.is_empty() {
            return None;
        }
        let produced = self.advance();
        if produced.is_err() {
            self.live.clear();
        }
        Some(produced)
    }
}
