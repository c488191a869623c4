//! Norms of rows.

use super::fusion::Fusion;
use super::look;
use crate::graph::{Graph, Tensor};
use ssmgraph_ops::l2_norm::{Form, L2Norm};
use ssmgraph_ops::{Op, RmsNorm, Scale};

/// rms_norm(x) · w becomes rms_norm(x, w), in either order.
pub fn weight(graph: &Graph, root: usize) -> Option<Fusion<'_>> {
    let [a, b] = look::product(graph, root)?;
    weighted(graph, root, a, b).or_else(|| weighted(graph, root, b, a))
}

fn weighted(graph: &Graph, root: usize, norm: Tensor, w: Tensor) -> Option<Fusion<'_>> {
    let (&Op::RmsNorm(RmsNorm { eps, weight: false }), &[x]) = look::op(graph, norm.node())? else {
        return None;
    };
    let mut fusion = Fusion::new(graph);
    fusion.take([norm.node()]);
    let y = fusion.op(RmsNorm { eps, weight: true }, &[x, w])?;
    fusion.replace(root, y)?;
    Some(fusion)
}

/// rms_norm(x) with eps / n, scaled by 1 / √n, for rows of n elements becomes l2_norm(x) with eps added: the norm
/// of q and k as graphs without an op for it write it.
pub fn l2_norm(graph: &Graph, root: usize) -> Option<Fusion<'_>> {
    let (&Op::Scale(Scale { scale, bias: 0.0 }), &[norm]) = look::op(graph, root)? else { return None };
    let (&Op::RmsNorm(RmsNorm { eps, weight: false }), &[x]) = look::op(graph, norm.node())? else {
        return None;
    };
    let count = look::layout(graph, x).ne[0] as f64;
    // 1 / √n may be the rounded root of a rounded quotient. NaN is near nothing.
    let is_near = (f64::from(scale) * count.sqrt() - 1.0).abs() <= 2.0 * f64::from(f32::EPSILON);
    if !is_near {
        return None;
    }
    let mut fusion = Fusion::new(graph);
    fusion.take([norm.node()]);
    let eps = (f64::from(eps) * count) as f32;
    let y = fusion.op(L2Norm { eps, form: Form::Add }, &[x])?;
    fusion.replace(root, y)?;
    Some(fusion)
}
