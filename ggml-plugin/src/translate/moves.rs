//! Nodes that copy.

use super::{Call, Place, operands};
use crate::tensor::Tensor;
use ssmgraph::backend::Declined;
use ssmgraph_ops::{Concat, Cpy, DType, GetRows, Repeat, SetRows};

/// DUP, CONT, CPY: elements of operand 0 in index order.
pub fn copy(node: Tensor<'_>) -> Result<Call<'_>, Declined> {
    let result = Place::of(node)?;
    let [x] = operands(node)?;
    let (from, to) = (x.layout.dtype, result.layout.dtype);
    // Ours chooses other scales for the blocks of these formats: a host that splits a graph between the two would get
    // two answers.
    if from != to && to.is_block() && to != DType::Q8_0 {
        return Err(Declined(format!("rounding to {to} differs from ggml's")));
    }
    Ok(Call::of(Cpy { to: result.layout }, [x], [result]))
}

/// CONCAT.
pub fn concat(node: Tensor<'_>) -> Result<Call<'_>, Declined> {
    let axis = usize::try_from(node.int(0)).map_err(|_| Declined("a negative axis".into()))?;
    Ok(Call::of(Concat { axis }, operands::<2>(node)?, [Place::of(node)?]))
}

/// REPEAT.
pub fn repeat(node: Tensor<'_>) -> Result<Call<'_>, Declined> {
    let result = Place::of(node)?;
    Ok(Call::of(Repeat { ne: result.layout.ne }, operands::<1>(node)?, [result]))
}

/// GET_ROWS.
pub fn get_rows(node: Tensor<'_>) -> Result<Call<'_>, Declined> {
    Ok(Call::of(GetRows {}, operands::<2>(node)?, [Place::of(node)?]))
}

/// SET_ROWS, whose operands are the rows, their places, and the table.
pub fn set_rows(node: Tensor<'_>) -> Result<Call<'_>, Declined> {
    let [rows, ids, table] = operands(node)?;
    let result = Place::of(node)?;
    if (result.layout, node.address()) != (table.layout, table.tensor.address()) {
        return Err(Declined("the result is not the table itself".into()));
    }
    Ok(Call::of(SetRows {}, [table, rows, ids], [result]))
}
