//! RMS norm with a gate before or after it.

use super::fusion::Fusion;
use super::look;
use crate::graph::{Graph, Tensor};
use ssmgraph_ops::gated_norm::{Gate, GatedNorm, Order};
use ssmgraph_ops::glu::{Glu, GluFunction};
use ssmgraph_ops::unary::{Function, Unary};
use ssmgraph_ops::{Op, RmsNorm};

/// norm(x) · act(z), in either order, or swiglu(z, norm(x)), becomes gated_norm(x, z, w). There may be reshapes
/// between norm and product.
pub fn norm_then_gate(graph: &Graph, root: usize) -> Option<Fusion<'_>> {
    gated(graph, root).into_iter().find_map(|product| {
        let norm = normed(graph, product.x)?;
        let ne = look::layout(graph, graph.tensor(root, 0)).ne;
        let x = norm.x;
        fused(graph, root, Order::NormThenGate, x, product, norm, ne)
    })
}

/// norm(x · act(z)), or norm(swiglu(z, x)), becomes gated_norm(x, z, w). There may be reshapes between product and
/// norm.
pub fn gate_then_norm(graph: &Graph, root: usize) -> Option<Fusion<'_>> {
    if let (Op::Reshape(_), _) = look::op(graph, root)? {
        return None;
    }
    let mut norm = normed(graph, graph.tensor(root, 0))?;
    let inner = look::below_reshapes(graph, norm.x, &mut norm.parts);
    let product = gated(graph, inner.node()).into_iter().next()?;
    let ne = look::layout(graph, inner).ne;
    let x = product.x;
    fused(graph, root, Order::GateThenNorm, x, product, norm, ne)
}

/// x · act(z)
struct Gated {
    x: Tensor,
    z: Tensor,
    gate: Gate,
    parts: Vec<usize>,
}

/// The ways to read a node as a gated tensor: none, one, or two where both factors are activations.
fn gated(graph: &Graph, index: usize) -> Vec<Gated> {
    if let Some((Op::Glu(Glu { function: GluFunction::Swiglu, split: true, .. }), &[z, x])) =
        look::op(graph, index)
    {
        return vec![Gated { x, z, gate: Gate::Silu, parts: vec![index] }];
    }
    let Some([a, b]) = look::product(graph, index) else { return Vec::new() };
    let ways = [(a, b), (b, a)].into_iter().filter_map(|(x, act)| {
        let (&Op::Unary(Unary { function }), &[z]) = look::op(graph, act.node())? else { return None };
        let gate = match function {
            Function::Silu => Gate::Silu,
            Function::Sigmoid => Gate::Sigmoid,
            _ => return None,
        };
        Some(Gated { x, z, gate, parts: vec![index, act.node()] })
    });
    ways.collect()
}

/// rms_norm(x) · w, where every `weights` elements, row after row, use w from its start.
struct Normed {
    x: Tensor,
    eps: f32,
    group_size: usize,
    w: Tensor,
    weights: usize,
    parts: Vec<usize>,
}

/// A tensor as a norm with its weight, in one op or, with reshapes between, in two.
fn normed(graph: &Graph, tensor: Tensor) -> Option<Normed> {
    let mut parts = Vec::new();
    let tensor = look::below_reshapes(graph, tensor, &mut parts);
    parts.push(tensor.node());
    let ne = look::layout(graph, tensor).ne;
    let (norm, w) = match look::op(graph, tensor.node())? {
        (Op::RmsNorm(RmsNorm { weight: true, .. }), &[_, w]) => (tensor, w),
        _ => {
            let [norm, w] = look::product(graph, tensor.node())?;
            let norm = look::below_reshapes(graph, norm, &mut parts);
            parts.push(norm.node());
            (norm, w)
        }
    };
    let (&Op::RmsNorm(RmsNorm { eps, weight }), operands) = look::op(graph, norm.node())? else {
        return None;
    };
    if weight != (norm == tensor) {
        return None;
    }
    let weights = match look::layout(graph, w).ne {
        [row, 1, 1, 1] if row == ne[0] => row,
        [row, groups, 1, 1] if [row, groups] == ne[..2] => row * groups,
        _ => return None,
    };
    // A computed factor may have one row for each token, and look like a weight where there is one token.
    if !look::is_given(graph, w) {
        return None;
    }
    let group_size = look::layout(graph, norm).ne[0];
    Some(Normed { x: operands[0], eps, group_size, w, weights, parts })
}

/// One op in the place of norm and product: under the shape `preferred`, with the groups side by side in rows, or with a
/// group as a row, whichever the op allows first.
fn fused<'g>(
    graph: &'g Graph,
    root: usize,
    order: Order,
    x: Tensor,
    product: Gated,
    norm: Normed,
    preferred: [usize; 4],
) -> Option<Fusion<'g>> {
    let op = GatedNorm { eps: norm.eps, group_size: norm.group_size, order, gate: product.gate };
    let by_group @ [group, groups, tokens, sequences] = look::layout(graph, norm.x).ne;
    [preferred, [group * groups, tokens, sequences, 1], by_group].into_iter().find_map(|ne| {
        let mut fusion = Fusion::new(graph);
        fusion.take(product.parts.iter().chain(&norm.parts).copied().filter(|&part| part != root));
        let operands = [
            fusion.reshape(x, ne)?,
            fusion.reshape(product.z, ne)?,
            fusion.reshape(norm.w, [norm.weights, 1, 1, 1])?,
        ];
        let y = fusion.op(op, &operands)?;
        fusion.replace(root, y)?;
        Some(fusion)
    })
}
