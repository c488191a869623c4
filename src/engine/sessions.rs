//! Planned graphs of one model, by shape.

use super::EngineError;
use crate::graph::{Graph, SlotsSpec, Tensor};
use crate::models::{Batch, CacheSpec, Model};
use crate::session::Session;
use crate::store::Store;
use std::sync::Arc;

/// What a planned graph is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Tokens of each sequence.
    pub tokens: usize,
    /// Sequences.
    pub sequences: usize,
    /// Rows of logits.
    pub outputs: usize,
}

/// What all graphs of an engine are built from.
pub(super) struct Recipe {
    pub model: Box<dyn Model>,
    pub slots: usize,
    pub rollback: usize,
    /// Room for attention, where the model has some.
    pub cache: Option<CacheSpec>,
}

/// A graph with the handles that a run needs.
pub(super) struct Built {
    pub graph: Graph,
    pub batch: Batch,
    pub logits: Tensor,
}

impl Recipe {
    pub fn spec(&self, tokens: usize, sequences: usize) -> SlotsSpec {
        SlotsSpec { slots: self.slots, rollback: self.rollback, sequences, tokens }
    }

    pub fn build(&self, shape: Shape) -> Result<Built, EngineError> {
        let mut graph = Graph::new();
        let spec = self.spec(shape.tokens, shape.sequences);
        let batch = Batch::declare(&mut graph, spec, shape.outputs, self.cache)?;
        let logits = self.model.forward(&mut graph, &batch)?;
        // Without wanted rows the head is nobody's result, and the plan leaves it out.
        if shape.outputs > 0 {
            graph.output(logits)?;
        }
        Ok(Built { graph, batch, logits })
    }
}

/// A session with the handles that a run needs.
pub(super) struct Step {
    pub session: Session,
    pub batch: Batch,
    pub logits: Tensor,
    /// Op and text of each node, once a tracer has asked.
    pub labels: Option<Vec<(&'static str, String)>>,
}

/// Sessions, the one used last at the end.
pub(super) struct Sessions {
    kept: Vec<(Shape, Step)>,
    max: usize,
}

impl Sessions {
    pub fn new(max: usize) -> Sessions {
        Sessions { kept: Vec::new(), max }
    }

    /// The session for a shape; made if it is not kept.
    pub fn get(
        &mut self,
        recipe: &Recipe,
        store: &Arc<Store>,
        shape: Shape,
    ) -> Result<&mut Step, EngineError> {
        match self.kept.iter().position(|(kept, _)| *kept == shape) {
            Some(index) => self.kept[index..].rotate_left(1),
            None => {
                let built = recipe.build(shape)?;
                // Room first: the old session's memory may be what the new one needs.
                if self.kept.len() >= self.max {
                    self.kept.remove(0);
                }
                let session = Session::with_store(&built.graph, store)?;
                self.kept
                    .push((shape, Step { session, batch: built.batch, logits: built.logits, labels: None }));
            }
        }
        Ok(&mut self.kept.last_mut().expect("just moved or pushed").1)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Shape, &Session)> {
        self.kept.iter().map(|(shape, step)| (*shape, &step.session))
    }
}
