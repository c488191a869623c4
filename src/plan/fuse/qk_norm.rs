//! Queries and keys on their way into the gated delta rule.

use super::fusion::Fusion;
use super::look;
use crate::graph::{Graph, Tensor};
use ssmgraph_ops::gated_delta_net::{GatedDeltaNet, Grouping};
use ssmgraph_ops::l2_norm::L2Norm;
use ssmgraph_ops::qk_norm::QkNorm;
use ssmgraph_ops::{Op, Repeat};

/// gated_delta_net of repeat(q) and repeat(k) becomes gated_delta_net of q and k, with the grouping that says which
/// value heads share a key head.
pub fn repeated_heads(graph: &Graph, root: usize) -> Option<Fusion<'_>> {
    let (delta, operands) = delta_net(graph, root)?;
    let (q, k) = (repeated(graph, operands[1], operands[1])?, repeated(graph, operands[2], operands[2])?);
    let grouping = q.grouping_with(&k, graph, delta, operands)?;
    let mut fusion = Fusion::new(graph);
    fusion.take(q.parts.iter().chain(&k.parts).copied());
    let ne = q.ne;
    let (q, k) = (fusion.reshape(q.source, ne)?, fusion.reshape(k.source, ne)?);
    replace_delta(fusion, root, GatedDeltaNet { grouping, ..delta }, operands, [q, k])
}

/// gated_delta_net of l2_norm(q) and l2_norm(k) becomes gated_delta_net of the results of qk_norm(q, k). Where heads
/// were repeated before the norm, the norm and the delta rule read them once.
pub fn lengths(graph: &Graph, root: usize) -> Option<Fusion<'_>> {
    let (mut delta, operands) = delta_net(graph, root)?;
    let (q, k) = (divided(graph, operands[1])?, divided(graph, operands[2])?);
    if q.norm != k.norm || q.parts == k.parts {
        return None;
    }
    let mut fusion = Fusion::new(graph);
    fusion.take(q.parts.iter().chain(&k.parts).copied());
    let (mut ne, mut sources) = (look::layout(graph, operands[1]).ne, [q.source, k.source]);
    if let (Some(q), Some(k)) =
        (repeated(graph, q.source, operands[1]), repeated(graph, k.source, operands[2]))
        && let Some(grouping) = q.grouping_with(&k, graph, delta, operands)
    {
        fusion.take(q.parts.iter().chain(&k.parts).copied());
        delta.grouping = grouping;
        (ne, sources) = (q.ne, [q.source, k.source]);
    }
    let [q_source, k_source] = sources;
    let sources = [fusion.reshape(q_source, ne)?, fusion.reshape(k_source, ne)?];
    let L2Norm { eps, form } = q.norm;
    let q = fusion.op(QkNorm { eps, form, heads: ne[1], grouping: Grouping::Tiled }, &sources)?;
    let k = Tensor { result: 1, ..q };
    replace_delta(fusion, root, delta, operands, [q, k])
}

fn delta_net(graph: &Graph, index: usize) -> Option<(GatedDeltaNet, &[Tensor])> {
    match look::op(graph, index)? {
        (&Op::GatedDeltaNet(delta), operands) => Some((delta, operands)),
        _ => None,
    }
}

/// The delta rule again, of other queries and keys.
fn replace_delta<'g>(
    mut fusion: Fusion<'g>,
    root: usize,
    delta: GatedDeltaNet,
    operands: &[Tensor],
    qk: [Tensor; 2],
) -> Option<Fusion<'g>> {
    let mut operands = operands.to_vec();
    operands[1..3].copy_from_slice(&qk);
    let y = fusion.op(delta, &operands)?;
    fusion.replace(root, y)?;
    Some(fusion)
}

/// Rows divided by their lengths.
struct Divided {
    source: Tensor,
    norm: L2Norm,
    parts: Vec<usize>,
}

/// A tensor as the norm of another. Reshapes between keep the rows.
fn divided(graph: &Graph, tensor: Tensor) -> Option<Divided> {
    let mut parts = Vec::new();
    let row = look::layout(graph, tensor).ne[0];
    let tensor = look::below_reshapes(graph, tensor, &mut parts);
    parts.push(tensor.node());
    match look::op(graph, tensor.node())? {
        (&Op::L2Norm(norm), &[source]) if look::layout(graph, tensor).ne[0] == row => {
            Some(Divided { source, norm, parts })
        }
        _ => None,
    }
}

/// Heads that come several times.
struct Repeated {
    source: Tensor,
    /// Shape of the source, {S, Hk, T, B}.
    ne: [usize; 4],
    grouping: Grouping,
    parts: Vec<usize>,
}

/// A tensor with the elements of `heads` {S, H, T, B}, as heads repeated: all heads of a token again and again, or
/// each head as neighbours.
fn repeated(graph: &Graph, tensor: Tensor, heads: Tensor) -> Option<Repeated> {
    let mut parts = Vec::new();
    let [size, all, tokens, sequences] = look::layout(graph, heads).ne;
    let tensor = look::below_reshapes(graph, tensor, &mut parts);
    parts.push(tensor.node());
    let (&Op::Repeat(Repeat { ne: to }), &[source]) = look::op(graph, tensor.node())? else { return None };
    let from = look::layout(graph, source).ne;
    let axis = (0..4).find(|&axis| from[axis] != to[axis])?;
    if to.contains(&0) || (axis + 1..4).any(|axis| from[axis] != to[axis]) {
        return None;
    }
    let key_heads = (all / (to[axis] / from[axis])).max(1);
    // Elements that come together, `to[axis] / from[axis]` times in a row.
    let together: usize = from[..=axis].iter().product();
    let grouping = match together {
        _ if together == size * key_heads => Grouping::Tiled,
        _ if together == size => Grouping::Interleaved,
        _ => return None,
    };
    Some(Repeated { source, ne: [size, key_heads, tokens, sequences], grouping, parts })
}

impl Repeated {
    /// The grouping of a delta net that reads these queries and keys before they were repeated.
    fn grouping_with(
        &self,
        keys: &Repeated,
        graph: &Graph,
        delta: GatedDeltaNet,
        operands: &[Tensor],
    ) -> Option<Grouping> {
        let value_heads = look::layout(graph, operands[3]).ne[1];
        // Heads that are still fewer than the values' are repeated once more by the op, which must be in the same way.
        let one_way =
            look::layout(graph, operands[1]).ne[1] == value_heads || delta.grouping == self.grouping;
        let alike = self.grouping == keys.grouping && self.ne == keys.ne && self.parts != keys.parts;
        (one_way && alike).then_some(self.grouping)
    }
}
