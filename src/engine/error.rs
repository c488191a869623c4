//! Why an engine refused.

use crate::graph::GraphError;
use crate::models::ModelError;
use crate::plan::PlanError;
use crate::sample::SampleError;
use crate::session::SessionError;
use crate::store::StoreError;

/// Why an engine could not be loaded or could not run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The model was refused.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The graph around the model was refused.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A graph could not be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A session could not be made or run.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Slots or states.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An option of the engine that has no meaning.
    #[error("engine: {option} must be at least 1 and countable")]
    Option {
        /// Which.
        option: &'static str,
    },
    /// A slot that does not exist.
    #[error("slot {slot} does not exist, there are {slots}")]
    Slot {
        /// The slot.
        slot: usize,
        /// How many there are.
        slots: usize,
    },
    /// Two sequences of one call in one slot.
    #[error("slot {slot} is named twice in one call")]
    SlotTwice {
        /// The slot.
        slot: usize,
    },
    /// A token that the model does not know.
    #[error("token {token} (number {place} of sequence {sequence}) is outside the vocabulary of {n_vocab}")]
    Token {
        /// Which sequence of the call.
        sequence: usize,
        /// Which of its tokens, from 0.
        place: usize,
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// A sequence that would outgrow the caches of attention.
    #[error(
        "slot {slot} has seen {position} tokens and has room for {context}: {tokens} more do not fit; ask for a larger \
         context (without it, that of the file's context_length, at most 4096)"
    )]
    Context {
        /// The slot.
        slot: usize,
        /// Tokens that it has seen.
        position: usize,
        /// Tokens that it has room for.
        context: usize,
        /// Tokens to come.
        tokens: usize,
    },
    /// Generation without a token to start from.
    #[error("request {request} has no tokens; a model needs at least one to continue")]
    EmptyPrompt {
        /// Which request.
        request: usize,
    },
    /// A request's next token could not be chosen.
    #[error("request {request}: {why}")]
    Sample {
        /// Which request.
        request: usize,
        /// Why not.
        why: SampleError,
    },
}
