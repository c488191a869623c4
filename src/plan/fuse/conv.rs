//! The causal convolution.

use super::fusion::Fusion;
use super::look;
use crate::graph::{Graph, Tensor};
use ssmgraph_ops::unary::{Function, Unary};
use ssmgraph_ops::{Concat, Cpy, GetRows, Op, Permute, SsmConv, SsmConvStep, Transpose, Window};

/// ssm_conv(sx, w) + bias becomes ssm_conv(sx, w, bias), for a bias of one number per channel.
pub fn bias(graph: &Graph, root: usize) -> Option<Fusion<'_>> {
    let [conv, bias] = look::sum(graph, root)?;
    let (Op::SsmConv(SsmConv { bias: false, silu: false }), &[sx, w]) = look::op(graph, conv.node())? else {
        return None;
    };
    let mut fusion = Fusion::new(graph);
    fusion.take([conv.node()]);
    let y = fusion.op(SsmConv { bias: true, silu: false }, &[sx, w, bias])?;
    fusion.replace(root, y)?;
    Some(fusion)
}

/// silu(ssm_conv(…)) becomes ssm_conv(…) with SiLU.
pub fn silu(graph: &Graph, root: usize) -> Option<Fusion<'_>> {
    let (Op::Unary(Unary { function: Function::Silu }), &[conv]) = look::op(graph, root)? else {
        return None;
    };
    let (&Op::SsmConv(SsmConv { bias, silu: false }), operands) = look::op(graph, conv.node())? else {
        return None;
    };
    let mut fusion = Fusion::new(graph);
    fusion.take([conv.node()]);
    let y = fusion.op(SsmConv { bias, silu: true }, operands)?;
    fusion.replace(root, y)?;
    Some(fusion)
}

/// ssm_conv of concat(window, new inputs), where the window is rows of a pool picked by ids, becomes ssm_conv_step.
/// Copies of the concat's last columns, and of those some tokens back, become its `state` results. A window that is
/// not picked by ids stays joined, since the op wants ids.
pub fn step(graph: &Graph, root: usize) -> Option<Fusion<'_>> {
    let (&Op::SsmConv(SsmConv { bias, silu }), operands) = look::op(graph, root)? else { return None };
    let (joined, w) = (operands[0], operands[1]);
    let (Op::Concat(Concat { axis: 0 }), &[old, new]) = look::op(graph, joined.node())? else { return None };
    let [columns, channels, sequences, _] = look::layout(graph, joined).ne;
    let window = look::layout(graph, w).ne[0].checked_sub(1).filter(|&window| window > 0)?;
    let tokens = columns - window;
    if look::layout(graph, old).ne[0] != window {
        return None;
    }
    let windows = windows(graph, root, joined, [window, channels, sequences, 1], tokens)?;
    let (table, ids) = picked(graph, old)?;
    let [row, rows, _, _] = look::layout(graph, table).ne;
    if row != window * channels {
        return None;
    }

    let mut fusion = Fusion::new(graph);
    fusion.take([joined.node()]);
    fusion.take(windows.iter().map(|window| window.view));
    let s = fusion.reshape(table, [window, channels, 1, rows])?;
    let x = match turned(graph, new) {
        Some(x) => x,
        None => fusion.transpose(new)?,
    };
    let snapshots = windows.iter().map(|window| window.back + 1).max().unwrap_or(1);
    let step = SsmConvStep { bias, silu, snapshots };
    let y = match operands {
        &[_, _, bias] => fusion.op(step, &[s, x, w, bias, ids])?,
        _ => fusion.op(step, &[s, x, w, ids])?,
    };
    fusion.replace(root, y)?;
    for WindowOf { copies, back, .. } in windows {
        for copy in copies {
            fusion.replace(copy, Tensor { result: 1 + back as u16, ..y })?;
        }
    }
    Some(fusion)
}

/// A view of the window some tokens before the last, and packed copies of it.
struct WindowOf {
    view: usize,
    copies: Vec<usize>,
    back: usize,
}

/// Everything but the convolution that reads the joined inputs; `None` if some of it is no window after a new input.
fn windows(
    graph: &Graph,
    conv: usize,
    joined: Tensor,
    ne: [usize; 4],
    tokens: usize,
) -> Option<Vec<WindowOf>> {
    let whole = look::layout(graph, joined);
    let window = |view: usize| {
        let (&Op::Window(Window { ne: counts, nb, offset_bytes }), _) = look::op(graph, view)? else {
            return None;
        };
        let strides_fit = (0..4).all(|axis| ne[axis] == 1 || nb[axis] == whole.nb[axis]);
        let back = tokens.checked_sub(offset_bytes / whole.nb[0])?;
        // With no token the window after the last is the one before the first.
        let made_here = back < tokens.max(1) && offset_bytes.is_multiple_of(whole.nb[0]);
        let copies: Vec<usize> = graph.users(view).collect();
        let all_copies = copies.iter().all(|&copy| is_packed_copy(graph, copy));
        (counts == ne && strides_fit && made_here && all_copies).then_some(WindowOf { view, copies, back })
    };
    graph.users(joined.node()).filter(|&user| user != conv).map(window).collect()
}

fn is_packed_copy(graph: &Graph, index: usize) -> bool {
    let Some((Op::Cpy(Cpy { to }), &[x])) = look::op(graph, index) else { return false };
    to.dtype == look::layout(graph, x).dtype && *to == to.to_contiguous()
}

/// The table and the ids that a tensor's elements were picked by, row after row.
fn picked(graph: &Graph, tensor: Tensor) -> Option<(Tensor, Tensor)> {
    let rows = look::below_reshapes(graph, tensor, &mut Vec::new());
    match look::op(graph, rows.node())? {
        (Op::GetRows(GetRows {}), &[table, ids]) if look::layout(graph, table).ne[2..] == [1, 1] => {
            Some((table, ids))
        }
        _ => None,
    }
}

/// The tensor that this one shows, packed or not, with axes 0 and 1 exchanged.
fn turned(graph: &Graph, tensor: Tensor) -> Option<Tensor> {
    let mut turned = tensor;
    if let (Op::Cpy(_), &[x]) = look::op(graph, tensor.node())? {
        let same = look::layout(graph, x).ne == look::layout(graph, tensor).ne;
        turned = (same && is_packed_copy(graph, tensor.node())).then_some(x)?;
    }
    match look::op(graph, turned.node())? {
        (Op::Transpose(Transpose), &[x]) | (Op::Permute(Permute { axes: [1, 0, 2, 3] }), &[x]) => Some(x),
        _ => None,
    }
}
