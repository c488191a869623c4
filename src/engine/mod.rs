//! Running a model: tokens in, logits out, one slot per sequence.
//!
//! An engine keeps the weights and states of one model and a small set of planned graphs, one for each
//! number of tokens, sequences and wanted rows. What a sequence computes depends on its own tokens alone,
//! not on its neighbours nor on how its tokens were divided over calls.

mod batch;
mod error;
mod generate;
mod memory;
mod sessions;
mod trace;

pub use error::EngineError;
pub use generate::{Finish, Generation, Produced, Request};
pub use memory::DeviceMemory;
pub use sessions::Shape;
pub use trace::NodeTracer;

use crate::backend::Devices;
use crate::formats::Gguf;
use crate::graph::{Graph, SlotsSpec};
use crate::models::{CacheSpec, Info, Model, load_model};
use crate::plan::Plan;
use crate::report::Report;
use crate::store::{SavedSlot, Store};
use batch::{Piece, pieces};
use sessions::{Recipe, Sessions};
use ssmgraph_ops::DType;
use std::sync::Arc;
use trace::Labelled;

/// Choices made when an engine is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Sequences that can be alive at once.
    pub slots: usize,
    /// How many tokens a slot can be rolled back.
    pub rollback: usize,
    /// Most tokens of one run, of all its sequences together; bounds the memory of a long prompt. A run
    /// takes at least one token of each sequence, whatever this says.
    pub prompt_piece_max: usize,
    /// Most planned graphs that are kept; the one used longest ago goes first.
    pub sessions_max: usize,
    /// Tokens that each slot has room for in the caches of attention; by default what the model was made for, and
    /// at most [`CONTEXT_DEFAULT_MAX`]. Models without attention need none and have no limit.
    pub context: Option<usize>,
    /// Element type of those caches: F32 or F16.
    pub cache_dtype: DType,
}

/// The largest context that an engine makes room for without being told so.
pub const CONTEXT_DEFAULT_MAX: usize = 4096;

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            slots: 1,
            rollback: 0,
            prompt_piece_max: 512,
            sessions_max: 16,
            context: None,
            cache_dtype: DType::F32,
        }
    }
}

/// Which logits a step returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// None: the tokens only move the states on.
    None,
    /// Those after the last token of each sequence.
    Last,
    /// Those after every token.
    All,
}

/// A model with its weights and states.
pub struct Engine {
    recipe: Recipe,
    sessions: Sessions,
    store: Arc<Store>,
    prompt_piece_max: usize,
    tracer: Option<Arc<dyn NodeTracer>>,
}

impl Engine {
    /// Loads the model of a file, chosen by its architecture.
    ///
    /// Errors: as [`load_model`], options that make no sense, a device that cannot hold the model.
    pub fn load(gguf: Arc<Gguf>, devices: &Devices, options: EngineOptions) -> Result<Engine, EngineError> {
        let model = load_model(&gguf)?;
        Engine::with_model(model, gguf, devices, options)
    }

    /// An engine for a model of the caller's own, whose weights `gguf` has.
    ///
    /// Errors: options that make no sense, weights that `gguf` lacks, a device that cannot hold the model.
    pub fn with_model(
        model: Box<dyn Model>,
        gguf: Arc<Gguf>,
        devices: &Devices,
        options: EngineOptions,
    ) -> Result<Engine, EngineError> {
        for (option, value) in [
            ("slots", options.slots),
            ("prompt_piece_max", options.prompt_piece_max),
            ("sessions_max", options.sessions_max),
            ("context", options.context.unwrap_or(1)),
        ] {
            if value == 0 {
                return Err(EngineError::Option { option });
            }
        }
        if options.rollback == usize::MAX {
            return Err(EngineError::Option { option: "rollback + 1" });
        }
        let length = model.info().context_length.unwrap_or(CONTEXT_DEFAULT_MAX).min(CONTEXT_DEFAULT_MAX);
        let cache = CacheSpec { capacity: options.context.unwrap_or(length), dtype: options.cache_dtype };
        let cache = (model.info().cache_elements > 0).then_some(cache);
        let store = Store::new(devices, vec![gguf]);
        let mut engine = Engine {
            recipe: Recipe { model, slots: options.slots, rollback: options.rollback, cache },
            sessions: Sessions::new(options.sessions_max),
            store,
            prompt_piece_max: options.prompt_piece_max,
            tracer: None,
        };
        // The graph that every generation needs: binds all weights, so that what is wrong shows now.
        engine.sessions.get(&engine.recipe, &engine.store, Shape { tokens: 1, sequences: 1, outputs: 1 })?;
        Ok(engine)
    }

    /// Facts about the model.
    pub fn info(&self) -> &Info {
        self.recipe.model.info()
    }

    /// Tells `tracer` about every node of the runs to come.
    pub fn trace(&mut self, tracer: Arc<dyn NodeTracer>) {
        self.tracer = Some(tracer);
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.recipe.slots
    }

    /// Bytes of keys and values that each token of a sequence takes; 0 for models without attention.
    pub fn cache_bytes_per_token(&self) -> usize {
        let element = self.recipe.cache.map_or(0, |cache| cache.dtype.block_bytes());
        self.info().cache_elements.saturating_mul(element)
    }

    /// Tokens that each slot has room for, where the model has attention.
    pub fn context(&self) -> Option<usize> {
        self.recipe.cache.map(|cache| cache.capacity)
    }

    /// The store, for sessions of the caller's own.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Feeds tokens to sequences, each a slot and its next tokens, and returns the wanted logits in the order
    /// of the call: for each sequence none, n_vocab, or n_vocab for each token. Sequences may have different
    /// lengths, or no tokens at all, which leaves them as they are and gives no logits.
    ///
    /// Errors: a slot that does not exist, is named twice, was lost or lacks room, a token outside the vocabulary, all
    /// before anything runs; a device that fails. If one fails, some pieces of the tokens may have been
    /// taken in; [`Engine::position`] tells how many.
    pub fn step(
        &mut self,
        sequences: &[(usize, &[u32])],
        logits: Logits,
    ) -> Result<Vec<Vec<f32>>, EngineError> {
        self.check(sequences)?;
        let lengths: Vec<usize> = sequences.iter().map(|(_, tokens)| tokens.len()).collect();
        let mut results: Vec<Vec<f32>> = vec![Vec::new(); sequences.len()];
        for piece in pieces(&lengths, self.prompt_piece_max) {
            self.run_piece(sequences, &piece, logits, &mut results)?;
        }
        Ok(results)
    }

    fn check(&self, sequences: &[(usize, &[u32])]) -> Result<(), EngineError> {
        let n_vocab = self.info().n_vocab;
        for (index, &(slot, tokens)) in sequences.iter().enumerate() {
            self.check_slot(slot)?;
            if sequences[..index].iter().any(|&(other, _)| other == slot) {
                return Err(EngineError::SlotTwice { slot });
            }
            self.check_room(slot, tokens.len())?;
            let outside = |&token: &u32| token as usize >= n_vocab || i32::try_from(token).is_err();
            if let Some(place) = tokens.iter().position(outside) {
                return Err(EngineError::Token { sequence: index, place, token: tokens[place], n_vocab });
            }
        }
        Ok(())
    }

    fn check_room(&self, slot: usize, tokens: usize) -> Result<(), EngineError> {
        let Some(context) = self.context() else { return Ok(()) };
        let position = self.position(slot)?;
        if tokens > context.saturating_sub(position) {
            return Err(EngineError::Context { slot, position, context, tokens });
        }
        Ok(())
    }

    fn check_slot(&self, slot: usize) -> Result<(), EngineError> {
        if slot >= self.recipe.slots {
            return Err(EngineError::Slot { slot, slots: self.recipe.slots });
        }
        Ok(())
    }

    fn run_piece(
        &mut self,
        sequences: &[(usize, &[u32])],
        piece: &Piece,
        logits: Logits,
        results: &mut [Vec<f32>],
    ) -> Result<(), EngineError> {
        let outputs = piece.outputs(logits);
        let shape = Shape { tokens: piece.tokens, sequences: piece.active.len(), outputs: outputs.len() };
        let step = self.sessions.get(&self.recipe, &self.store, shape)?;

        let mut ids: Vec<i32> = Vec::with_capacity(shape.tokens * shape.sequences);
        for &index in &piece.active {
            let part = &sequences[index].1[piece.start..piece.start + piece.tokens];
            ids.extend(part.iter().map(|&token| token as i32));
        }
        let rows: Vec<i32> = outputs.iter().map(|&(_, row)| row as i32).collect();
        let slots: Vec<usize> = piece.active.iter().map(|&index| sequences[index].0).collect();
        step.session.set(step.batch.tokens, &ids)?;
        step.session.set(step.batch.outputs, &rows)?;
        step.session.set_slots(&slots)?;
        match &self.tracer {
            None => step.session.run()?,
            Some(tracer) => {
                let labels = step.labels.get_or_insert_with(|| trace::labels(step.session.plan()));
                step.session.run_observed(Some(&Labelled { tracer: tracer.as_ref(), labels }))?;
            }
        }
        if outputs.is_empty() {
            return Ok(());
        }
        let values = step.session.get::<f32>(step.logits)?;
        let n_vocab = values.len() / outputs.len();
        for ((index, _), row) in outputs.iter().zip(values.chunks_exact(n_vocab.max(1))) {
            results[*index].extend_from_slice(row);
        }
        Ok(())
    }

    /// Starts to generate text for several prompts at once; see [`Generation`].
    ///
    /// Errors: a request without tokens, a slot that does not exist or is named twice, a token outside the
    /// vocabulary.
    pub fn generate(&mut self, requests: Vec<Request>) -> Result<Generation<'_>, EngineError> {
        Generation::new(self, requests)
    }

    /// Forgets a slot's sequence.
    ///
    /// Errors: a slot that does not exist.
    pub fn reset(&mut self, slot: usize) -> Result<(), EngineError> {
        Ok(self.store.reset(slot)?)
    }

    /// Tokens that a slot's sequence has seen.
    ///
    /// Errors: a slot that does not exist.
    pub fn position(&self, slot: usize) -> Result<usize, EngineError> {
        Ok(self.store.position(slot)?)
    }

    /// Forgets the last tokens of a slot.
    ///
    /// Errors: more tokens than [`EngineOptions::rollback`] allows, or than the slot has seen.
    pub fn rollback(&mut self, slot: usize, tokens: usize) -> Result<(), EngineError> {
        Ok(self.store.rollback(slot, tokens)?)
    }

    /// Takes a copy of a slot's states.
    ///
    /// Errors: a slot that does not exist or was lost, a failed copy.
    pub fn save(&self, slot: usize) -> Result<SavedSlot, EngineError> {
        Ok(self.store.save(slot)?)
    }

    /// Makes a slot continue where `saved` was taken, from this engine or another with the same model.
    ///
    /// Errors: a slot that does not exist, states of another model, a failed copy.
    pub fn restore(&mut self, slot: usize, saved: &SavedSlot) -> Result<(), EngineError> {
        Ok(self.store.restore(slot, saved)?)
    }

    /// The graph for `tokens` tokens of each of `sequences` sequences, with the last token's logits.
    ///
    /// Errors: more sequences than slots, a size that cannot be addressed.
    pub fn graph_for(&self, tokens: usize, sequences: usize) -> Result<Graph, EngineError> {
        Ok(self.recipe.build(Shape { tokens, sequences, outputs: sequences })?.graph)
    }

    /// The schedule of [`Engine::graph_for`] on this engine's devices.
    ///
    /// Errors: as there.
    pub fn plan_for(&self, tokens: usize, sequences: usize) -> Result<Plan, EngineError> {
        Ok(Plan::new(&self.graph_for(tokens, sequences)?, self.store.devices())?)
    }

    /// Bytes on each device for runs of `tokens` tokens of each of `sequences` sequences.
    ///
    /// Errors: as [`Engine::graph_for`].
    pub fn memory_for(&self, tokens: usize, sequences: usize) -> Result<Vec<DeviceMemory>, EngineError> {
        Ok(memory::of_plans([&self.plan_for(tokens, sequences)?]))
    }

    /// Bytes that are in use on each device now, with every planned graph that is kept.
    pub fn memory(&self) -> Vec<DeviceMemory> {
        memory::of_plans(self.sessions.iter().map(|(_, session)| session.plan()))
    }

    /// For each planned graph that is kept, where its nodes run and why.
    pub fn reports(&self) -> Vec<(Shape, Report)> {
        self.sessions.iter().map(|(shape, session)| (shape, session.report())).collect()
    }

    /// The slot space that graphs of this engine have, for `tokens` tokens of each of `sequences` sequences.
    pub fn slots_spec(&self, tokens: usize, sequences: usize) -> SlotsSpec {
        self.recipe.spec(tokens, sequences)
    }
}
