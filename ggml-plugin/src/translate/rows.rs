//! Nodes that work along rows.

use super::{Call, Place, operands};
use crate::abi;
use crate::tensor::Tensor;
use ssmgraph::backend::Declined;
use ssmgraph_ops::l2_norm::{Form, L2Norm};
use ssmgraph_ops::rope::RopeMode;
use ssmgraph_ops::{
    Argmax, Cumsum, DType, Layout, Mean, Norm, Op, RmsNorm, Rope, SoftMax, Sum, SumRows, TopK,
};

/// SUM, SUM_ROWS, CUMSUM, MEAN, ARGMAX.
pub fn reduction(node: Tensor<'_>) -> Result<Call<'_>, Declined> {
    let op: Op = match node.op() {
        abi::OP_SUM => Sum {}.into(),
        abi::OP_SUM_ROWS => SumRows {}.into(),
        abi::OP_CUMSUM => Cumsum {}.into(),
        abi::OP_MEAN => Mean {}.into(),
        _ => Argmax {}.into(),
    };
    let [x] = operands(node)?;
    // Ours adds the right elements, but ggml's own CPU backend takes such rows for packed ones: a host that splits a
    // graph between the two would get two answers.
    if node.op() == abi::OP_SUM && !x.layout.rows_packed() {
        return Err(Declined(
            "rows of SUM are not packed, and ggml's CPU backend adds other elements then".into(),
        ));
    }
    Ok(Call::of(op, [x], [Place::of(node)?]))
}

/// NORM, RMS_NORM, L2_NORM.
pub fn norm(node: Tensor<'_>) -> Result<Call<'_>, Declined> {
    let eps = node.float(0);
    let op: Op = match node.op() {
        abi::OP_NORM => Norm { eps }.into(),
        abi::OP_RMS_NORM => RmsNorm { eps, weight: false }.into(),
        _ => L2Norm { eps, form: Form::Max }.into(),
    };
    Ok(Call::of(op, operands::<1>(node)?, [Place::of(node)?]))
}

/// SOFT_MAX.
pub fn soft_max(node: Tensor<'_>) -> Result<Call<'_>, Declined> {
    if node.float(1) != 0.0 {
        return Err(Declined("a bias that grows with the distance (ALiBi) is not supported".into()));
    }
    if node.optional(2).is_some() {
        return Err(Declined("sinks are not supported".into()));
    }
    let result = [Place::of(node)?];
    let [x] = operands(node)?;
    let Some(mask) = node.optional(1) else {
        return Ok(Call::of(SoftMax { scale: node.float(0), mask: false }, [x], result));
    };
    let mut mask = Place::of(mask)?;
    // The host's mask may have more rows than there are tokens.
    let [_, rows, ..] = x.layout.ne;
    if mask.layout.ne[1] > rows {
        let Layout { dtype, mut ne, nb } = mask.layout;
        ne[1] = rows;
        mask.layout = Layout::strided(dtype, ne, nb).map_err(|error| Declined(error.0))?;
    }
    Ok(Call::of(SoftMax { scale: node.float(0), mask: true }, [x, mask], result))
}

/// ARGSORT in falling order, TOP_K.
pub fn top_k(node: Tensor<'_>) -> Result<Call<'_>, Declined> {
    if node.op() == abi::OP_ARGSORT && node.int(0) != 1 {
        return Err(Declined("sorting in rising order is not supported".into()));
    }
    let result = Place::of(node)?;
    Ok(Call::of(TopK { k: result.layout.ne[0] }, operands::<1>(node)?, [result]))
}

/// ROPE.
pub fn rope(node: Tensor<'_>) -> Result<Call<'_>, Declined> {
    let params = node.params();
    let section = |index: usize| usize::try_from(params[11 + index]).ok();
    let sections = || -> Option<[usize; 4]> { Some([section(0)?, section(1)?, section(2)?, section(3)?]) };
    let negative = || Declined("a section of negative size".into());
    let mode = match node.int(2) {
        0 => RopeMode::Normal,
        2 => RopeMode::Neox,
        8 => RopeMode::Sections { sections: sections().ok_or_else(negative)?, interleaved: false },
        40 => RopeMode::Sections { sections: sections().ok_or_else(negative)?, interleaved: true },
        other => return Err(Declined(format!("mode {other} is not supported"))),
    };
    if node.optional(2).is_some() {
        return Err(Declined("factors for single frequencies are not supported".into()));
    }
    if node.float(7) != 0.0 || node.float(8) != 1.0 {
        return Err(Declined("YaRN is not supported".into()));
    }
    if params[15] != 0 {
        return Err(Declined("an offset of the turned elements is not supported".into()));
    }
    let n_rot = usize::try_from(node.int(1)).map_err(|_| Declined("n_dims is negative".into()))?;
    let op = Rope { mode, n_rot, freq_base: node.float(5), freq_scale: node.float(6) };
    let [x, mut positions] = operands(node)?;
    let [_, _, tokens, sequences] = x.layout.ne;
    // One list of positions for all sequences.
    let one = DType::I32.block_bytes();
    let per_token = if matches!(mode, RopeMode::Sections { .. }) { 4 } else { 1 };
    let is_list = positions.layout.dtype == DType::I32 && positions.layout.is_contiguous();
    if !is_list || tokens.checked_mul(per_token).is_none_or(|count| positions.layout.ne != [count, 1, 1, 1]) {
        return Err(Declined(format!(
            "positions are {}, expected i32 {{{per_token} · {tokens}}}",
            positions.layout
        )));
    }
    let (ne, nb) = match per_token {
        4 => ([tokens, 4, sequences, 1], [one, one * tokens, 0, 0]),
        _ => ([tokens, sequences, 1, 1], [one, 0, 0, 0]),
    };
    positions.layout = Layout::strided(DType::I32, ne, nb).map_err(|error| Declined(error.0))?;
    Ok(Call::of(op, [x, positions], [Place::of(node)?]))
}
