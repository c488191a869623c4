//! Passes from graph to graph: fuse neighbours into ops that do both, drop what nobody needs.

use super::PlanError;
use crate::graph::{Action, Flags, Graph, Node, Tensor};
use smallvec::{SmallVec, smallvec};
use ssmgraph_ops::binary::{Binary, BinaryFunction};
use ssmgraph_ops::unary::{Function, Unary};
use ssmgraph_ops::{DecayGate, Op, RmsNorm, SsmConv};

/// Finds ops written in parts: rms_norm then mul by a weight; ssm_conv then add of a bias, then silu; add of
/// a bias, then softplus, then mul by a rate, which is decay_gate. The parts that became useless stay for
/// [`prune`]. Returns the new graph and, for each old node, its new index.
pub fn fuse(graph: &Graph) -> (Graph, Vec<Option<u32>>) {
    // A part may only disappear into its user if nobody else sees it.
    let single: Vec<bool> = graph
        .nodes()
        .map(|(index, node)| {
            graph.uses(index) == 1
                && !node.flags.intersects(Flags::OUTPUT | Flags::KEEP)
                && node.name.is_none()
        })
        .collect();
    graph.rebuild(|new, index, node| {
        let first = |index: usize| graph.node(index).operands.first().map(|operand| operand.node());
        let Some(inner) = first(index).filter(|&inner| single[inner]) else { return Some(node) };
        // Nodes keep their indices here, since none is dropped.
        let whole = first(inner).filter(|&innermost| single[innermost]);
        let gate = whole.and_then(|innermost| decay_gate(new, &node, innermost));
        Some(gate.unwrap_or_else(|| fuse_node(new, node)))
    })
}

/// softplus(alpha + bias) · a as one op; `innermost` is the sum.
fn decay_gate(graph: &Graph, node: &Node, innermost: usize) -> Option<Node> {
    let (softplus, sum) = (graph.node(node.operands[0].node()), graph.node(innermost));
    let (Action::Op(outer), Action::Op(middle), Action::Op(inner)) =
        (&node.action, &softplus.action, &sum.action)
    else {
        return None;
    };
    let parts = *outer == Op::from(Binary { function: BinaryFunction::Mul })
        && *middle == Op::from(Unary { function: Function::Softplus })
        && *inner == Op::from(Binary { function: BinaryFunction::Add });
    if !parts {
        return None;
    }
    let operands: SmallVec<[Tensor; 4]> = smallvec![sum.operands[0], node.operands[1], sum.operands[1]];
    let layouts: Vec<_> =
        operands.iter().map(|operand| graph.node(operand.node()).results[operand.result()]).collect();
    let op = Op::from(DecayGate {});
    // Sums of other types stay apart.
    let fits = op.infer(&layouts).is_ok_and(|results| results == node.results);
    fits.then(|| Node { action: Action::Op(op), operands, ..node.clone() })
}

/// The node with the work of its first operand folded in, or the node as it was.
fn fuse_node(graph: &Graph, node: Node) -> Node {
    let Some(first) = node.operands.first().map(|operand| graph.node(operand.node())) else { return node };
    let (Action::Op(outer), Action::Op(inner)) = (&node.action, &first.action) else { return node };
    let Some(op) = fused_op(graph, &node, outer, inner) else { return node };
    let mut operands = first.operands.clone();
    operands.extend(node.operands[1..].iter().copied());
    Node { action: Action::Op(op), operands, ..node }
}

fn fused_op(graph: &Graph, node: &Node, outer: &Op, inner: &Op) -> Option<Op> {
    let second = node.operands.get(1).map(|operand| graph.node(operand.node()).results[operand.result()]);
    match (outer, inner) {
        (
            Op::Binary(Binary { function: BinaryFunction::Mul }),
            Op::RmsNorm(RmsNorm { eps, weight: false }),
        ) => {
            let op = Op::from(RmsNorm { eps: *eps, weight: true });
            let x = graph.node(node.operands[0].node()).operands[0];
            let x = graph.node(x.node()).results[x.result()];
            // The product has the norm's type; a weight of a type that the norm refuses stays apart.
            op.infer(&[x, second?]).is_ok_and(|results| results == node.results).then_some(op)
        }
        (
            Op::Binary(Binary { function: BinaryFunction::Add }),
            Op::SsmConv(SsmConv { bias: false, silu: false }),
        ) => {
            let [channels, _, _, _] = node.results[0].ne;
            let bias = second?;
            let is_bias = bias.ne == [channels, 1, 1, 1] && bias.dtype == node.results[0].dtype;
            is_bias.then_some(Op::from(SsmConv { bias: true, silu: false }))
        }
        (Op::Unary(Unary { function: Function::Silu }), Op::SsmConv(SsmConv { bias, silu: false })) => {
            Some(Op::from(SsmConv { bias: *bias, silu: true }))
        }
        _ => None,
    }
}

/// Drops every node that no output, kept tensor or state update needs. States and slot rows stay only if
/// needed too.
///
/// Errors: nothing is needed at all.
pub fn prune(graph: &Graph) -> Result<(Graph, Vec<Option<u32>>), PlanError> {
    let mut needed = vec![false; graph.len()];
    for (index, node) in graph.nodes() {
        needed[index] = node.flags.intersects(Flags::OUTPUT | Flags::KEEP);
    }
    for (pool, last) in graph.states() {
        needed[last.node()] |= pool != last;
    }
    if !needed.contains(&true) {
        return Err(PlanError::NoOutput);
    }
    for index in (0..graph.len()).rev().collect::<Vec<_>>() {
        if needed[index] {
            for operand in &graph.node(index).operands {
                needed[operand.node()] = true;
            }
        }
    }
    Ok(graph.rebuild(|_, index, node| needed[index].then_some(node)))
}
