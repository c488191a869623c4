//! Finds ops that were written in parts and puts the whole op in their place.
//!
//! A pattern is one function: given a node that could be the last of its parts, it says which nodes it takes and
//! what stands in their place, or that it does not see itself there. It looks at ops and shapes alone. Whether
//! anybody else sees a part that would disappear is checked here, once for all patterns ([`Fusion::is_unseen`]).

mod conv;
mod decay_gate;
mod fusion;
mod gated_norm;
mod look;
mod norm;
mod qk_norm;

use super::prune::drop_unneeded;
use crate::graph::{Graph, Moves, Rebuild};
use fusion::Fusion;

/// Sees a fusion that ends in a node, or does not.
type Pattern = for<'g> fn(&'g Graph, usize) -> Option<Fusion<'g>>;

/// In this order, each over the whole graph as the ones before left it.
const PATTERNS: &[Pattern] = &[
    conv::bias,
    conv::silu,
    decay_gate::decay_gate,
    norm::l2_norm,
    norm::weight,
    gated_norm::norm_then_gate,
    gated_norm::gate_then_norm,
    qk_norm::repeated_heads,
    qk_norm::lengths,
    conv::step,
];

/// Puts whole ops in the place of their parts, and drops what nobody needs. What is named, kept, an output or a state
/// stays visible under the same name. Returns the new graph and where each tensor went.
pub fn fuse(graph: &Graph) -> (Graph, Moves) {
    let (mut fused, mut moves) = drop_unneeded(graph);
    for &pattern in PATTERNS {
        if let Some((next, step)) = fuse_pattern(&fused, pattern) {
            debug_assert_eq!(next.verify(), Ok(()));
            // What a fusion looked through may still use its parts, and hide them from the next pattern.
            let (next, rest) = drop_unneeded(&next);
            (fused, moves) = (next, moves.then(&step).then(&rest));
        }
    }
    (fused, moves)
}

/// The graph with every fusion of one pattern, if there is any.
fn fuse_pattern(graph: &Graph, pattern: Pattern) -> Option<(Graph, Moves)> {
    let mut chosen = Chosen::new(graph);
    (0..graph.len()).filter_map(|index| pattern(graph, index)).for_each(|fusion| chosen.consider(fusion));
    (!chosen.fusions.is_empty()).then(|| chosen.apply(graph))
}

/// Fusions that do not get into each other's way.
struct Chosen<'g> {
    fusions: Vec<Fusion<'g>>,
    /// For each node the fusion that it is a part of.
    taken: Vec<Option<usize>>,
    /// Whether a fusion reads the node.
    read: Vec<bool>,
    /// Whether a state's new value is the node's. Asked of every part, so not searched for.
    ends_state: Vec<bool>,
}

impl<'g> Chosen<'g> {
    fn new(graph: &Graph) -> Chosen<'g> {
        let mut ends_state = vec![false; graph.len()];
        graph.states().iter().for_each(|(_, last)| ends_state[last.node()] = true);
        Chosen {
            fusions: Vec::new(),
            taken: vec![None; graph.len()],
            read: vec![false; graph.len()],
            ends_state,
        }
    }

    /// Takes a fusion if it can be had without harm, to others or to the ones before it.
    fn consider(&mut self, fusion: Fusion<'g>) {
        let free = fusion.parts().all(|part| self.taken[part].is_none());
        // What disappears must not be read, and what is read must not have disappeared.
        let kept = fusion.vanishing().all(|part| !self.read[part]);
        let there = fusion.operands().all(|operand| match self.taken[operand.node()] {
            Some(other) => !self.fusions[other].drops(operand.node()),
            None => true,
        });
        if !(free && kept && there && fusion.is_unseen(&self.ends_state) && fusion.is_computable()) {
            return;
        }
        fusion.parts().for_each(|part| self.taken[part] = Some(self.fusions.len()));
        fusion.operands().for_each(|operand| self.read[operand.node()] = true);
        self.fusions.push(fusion);
    }

    fn apply(self, graph: &Graph) -> (Graph, Moves) {
        let mut rebuild = Rebuild::new(graph);
        for index in 0..graph.len() {
            match self.taken[index].map(|fusion| &self.fusions[fusion]) {
                Some(fusion) if fusion.first() == index => fusion.apply(&mut rebuild),
                Some(_) => {}
                None => rebuild.copy(index),
            }
        }
        rebuild.finish()
    }
}
