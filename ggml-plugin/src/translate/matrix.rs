//! Matrix products.

use super::{Call, Place, operands};
use crate::tensor::Tensor;
use ssmgraph::backend::Declined;
use ssmgraph_ops::{MulMat, MulMatId};

/// MUL_MAT.
pub fn mul_mat(node: Tensor<'_>) -> Result<Call<'_>, Declined> {
    let [a, b] = operands(node)?;
    Ok(Call::of(MulMat::of(a.layout.dtype), [a, b], [Place::of(node)?]))
}

/// MUL_MAT_ID.
pub fn mul_mat_id(node: Tensor<'_>) -> Result<Call<'_>, Declined> {
    let [a, b, ids] = operands(node)?;
    Ok(Call::of(MulMatId::of(a.layout.dtype), [a, b, ids], [Place::of(node)?]))
}
