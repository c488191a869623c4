//! rms_norm(x) · w, times silu(z) or sigmoid(z): the gated norm.

use super::Calls;
use crate::translate::Call;
use smallvec::smallvec;
use ssmgraph_ops::binary::{Binary, BinaryFunction};
use ssmgraph_ops::gated_norm::{Gate, GatedNorm, Order};
use ssmgraph_ops::unary::{Function, Unary};
use ssmgraph_ops::{Op, RmsNorm};

/// Folds a norm and a gate into the product of both.
pub fn fold(calls: &mut Calls<'_, '_>, index: usize) {
    let Some(product) = calls.call(index) else { return };
    if product.op != Op::from(Binary { function: BinaryFunction::Mul }) {
        return;
    }
    for (normed, gated) in [(0, 1), (1, 0)] {
        let norm = calls.private_maker(&product.inputs[normed]).filter(|&norm| norm < index);
        let gate = calls.private_maker(&product.inputs[gated]).filter(|&gate| gate < index);
        let (Some(norm), Some(gate)) = (norm, gate) else { continue };
        let Some(both) = gated_norm(calls, norm, gate, product) else { continue };
        let folded = [norm, gate];
        let is_kept =
            |operand: usize, from: usize| calls.is_kept(&both.inputs[operand], from + 1..index, &folded);
        if is_kept(0, norm) && is_kept(2, norm) && is_kept(1, gate) && calls.is_computable(&both) {
            calls.replace(index, both, &folded);
            return;
        }
    }
}

fn gated_norm<'a>(calls: &Calls<'a, '_>, norm: usize, gate: usize, product: &Call<'a>) -> Option<Call<'a>> {
    let (norm, gate) = (calls.call(norm)?, calls.call(gate)?);
    let Op::RmsNorm(RmsNorm { eps, weight: true }) = norm.op else { return None };
    let Op::Unary(Unary { function }) = gate.op else { return None };
    let gate_function = match function {
        Function::Silu => Gate::Silu,
        Function::Sigmoid => Gate::Sigmoid,
        _ => return None,
    };
    let group_size = norm.inputs[0].layout().ne[0];
    let op = GatedNorm { eps, group_size, order: Order::NormThenGate, gate: gate_function };
    let inputs = smallvec![norm.inputs[0], gate.inputs[0], norm.inputs[1]];
    Some(Call { op: op.into(), inputs, results: product.results.clone() })
}
