//! The decay of the gated delta rule.

use super::fusion::Fusion;
use super::look;
use crate::graph::Graph;
use ssmgraph_ops::unary::{Function, Unary};
use ssmgraph_ops::{DecayGate, Op};

/// softplus(alpha + bias) · a becomes decay_gate(alpha, a, bias).
pub fn decay_gate(graph: &Graph, root: usize) -> Option<Fusion<'_>> {
    let [softplus, a] = look::product(graph, root)?;
    let (Op::Unary(Unary { function: Function::Softplus }), &[shifted]) = look::op(graph, softplus.node())?
    else {
        return None;
    };
    let [alpha, bias] = look::sum(graph, shifted.node())?;
    let mut fusion = Fusion::new(graph);
    fusion.take([softplus.node(), shifted.node()]);
    let gate = fusion.op(DecayGate {}, &[alpha, a, bias])?;
    fusion.replace(root, gate)?;
    Some(fusion)
}
