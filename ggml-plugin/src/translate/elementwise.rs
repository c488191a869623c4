//! Nodes that work element by element.

use super::{Call, Place, operands};
use crate::abi;
use crate::tensor::Tensor;
use ssmgraph::backend::Declined;
use ssmgraph_ops::Scale;
use ssmgraph_ops::binary::{Binary, BinaryFunction};
use ssmgraph_ops::glu::{Glu, GluFunction};
use ssmgraph_ops::unary::{Function, Unary};

/// ADD, SUB, MUL, DIV.
pub fn binary(node: Tensor<'_>) -> Result<Call<'_>, Declined> {
    let function = match node.op() {
        abi::OP_ADD => BinaryFunction::Add,
        abi::OP_SUB => BinaryFunction::Sub,
        abi::OP_MUL => BinaryFunction::Mul,
        _ => BinaryFunction::Div,
    };
    let [mut a, mut b] = operands(node)?;
    let result = Place::of(node)?;
    // The host may have put the result where operand 1 was; only operand 0 can be taken over.
    let commutes = matches!(function, BinaryFunction::Add | BinaryFunction::Mul);
    if commutes && a.layout == b.layout && node.address() == b.tensor.address() {
        (a, b) = (b, a);
    }
    Ok(Call::of(Binary { function }, [a, b], [result]))
}

/// SQR: an operand times itself.
pub fn square(node: Tensor<'_>) -> Result<Call<'_>, Declined> {
    let [x] = operands(node)?;
    Ok(Call::of(Binary { function: BinaryFunction::Mul }, [x, x], [Place::of(node)?]))
}

/// UNARY.
pub fn unary(node: Tensor<'_>) -> Result<Call<'_>, Declined> {
    let function = match node.int(0) {
        2 => Function::Neg,
        4 => Function::Tanh,
        6 => Function::Relu,
        7 => Function::Sigmoid,
        8 => Function::Gelu,
        10 => Function::Silu,
        13 => Function::Exp,
        15 => Function::Softplus,
        other => return Err(Declined(format!("there is no unary function {other}"))),
    };
    Ok(Call::of(Unary { function }, operands::<1>(node)?, [Place::of(node)?]))
}

/// GLU.
pub fn glu(node: Tensor<'_>) -> Result<Call<'_>, Declined> {
    let function = match node.int(0) {
        0 => GluFunction::Reglu,
        1 => GluFunction::Geglu,
        2 => GluFunction::Swiglu,
        other => return Err(Declined(format!("there is no gated unit {other}"))),
    };
    let (split, swapped) = (node.optional(1).is_some(), node.int(1) != 0);
    let op = Glu { function, split, swapped };
    let result = [Place::of(node)?];
    match split {
        true => Ok(Call::of(op, operands::<2>(node)?, result)),
        false => Ok(Call::of(op, operands::<1>(node)?, result)),
    }
}

/// SCALE.
pub fn scale(node: Tensor<'_>) -> Result<Call<'_>, Declined> {
    let op = Scale { scale: node.float(0), bias: node.float(1) };
    Ok(Call::of(op, operands::<1>(node)?, [Place::of(node)?]))
}
