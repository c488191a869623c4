//! Drops what nobody needs.

use super::PlanError;
use crate::graph::{Flags, Graph, Moves, Rebuild};

/// Drops every node that no output, kept tensor or state update needs. States and slot rows stay only if
/// needed too.
///
/// Errors: nothing is needed at all.
pub fn prune(graph: &Graph) -> Result<(Graph, Moves), PlanError> {
    let (pruned, moves) = drop_unneeded(graph);
    if pruned.is_empty() { Err(PlanError::NoOutput) } else { Ok((pruned, moves)) }
}

/// [`prune`], down to nothing where nothing is needed.
pub fn drop_unneeded(graph: &Graph) -> (Graph, Moves) {
    let mut needed = vec![false; graph.len()];
    for (index, node) in graph.nodes() {
        needed[index] = node.flags.intersects(Flags::OUTPUT | Flags::KEEP);
    }
    for (pool, last) in graph.states() {
        needed[last.node()] |= pool != last;
    }
    for index in (0..graph.len()).rev() {
        if needed[index] {
            for operand in &graph.node(index).operands {
                needed[operand.node()] = true;
            }
        }
    }
    let mut rebuild = Rebuild::new(graph);
    (0..graph.len()).filter(|&index| needed[index]).for_each(|index| rebuild.copy(index));
    rebuild.finish()
}
