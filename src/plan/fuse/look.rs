//! What patterns ask of a graph.

use crate::graph::{Action, Graph, Tensor};
use ssmgraph_ops::binary::{Binary, BinaryFunction};
use ssmgraph_ops::{Layout, Op, Storage};

/// Where a tensor's elements lie.
pub fn layout(graph: &Graph, tensor: Tensor) -> Layout {
    graph.node(tensor.node()).results[tensor.result()]
}

/// A node's op and operands; `None` for leaves.
pub fn op(graph: &Graph, index: usize) -> Option<(&Op, &[Tensor])> {
    let node = graph.node(index);
    match &node.action {
        Action::Op(op) => Some((op, &node.operands)),
        Action::Leaf | Action::Slots(_) => None,
    }
}

/// The factors of a product, the one that gives the shape first.
pub fn product(graph: &Graph, index: usize) -> Option<[Tensor; 2]> {
    match op(graph, index)? {
        (Op::Binary(Binary { function: BinaryFunction::Mul }), &[a, b]) => Some([a, b]),
        _ => None,
    }
}

/// The summands of a sum, the one that gives the shape first.
pub fn sum(graph: &Graph, index: usize) -> Option<[Tensor; 2]> {
    match op(graph, index)? {
        (Op::Binary(Binary { function: BinaryFunction::Add }), &[a, b]) => Some([a, b]),
        _ => None,
    }
}

/// What lies below reshapes, which become parts.
pub fn below_reshapes(graph: &Graph, mut tensor: Tensor, parts: &mut Vec<usize>) -> Tensor {
    while let Some((Op::Reshape(_), operands)) = op(graph, tensor.node()) {
        parts.push(tensor.node());
        tensor = operands[0];
    }
    tensor
}

/// Whether a tensor comes from outside, as it is or as a view: a weight, an input, never a computed value.
pub fn is_given(graph: &Graph, mut tensor: Tensor) -> bool {
    while let Some((op, operands)) = op(graph, tensor.node()) {
        if !matches!(op.storage(), Storage::View { .. }) {
            return false;
        }
        tensor = operands[0];
    }
    true
}
