//! An op and the next one: rms_norm · w; ssm_conv + bias; silu of that.

use super::Calls;
use crate::translate::{Call, Source};
use ssmgraph_ops::Op;
use ssmgraph_ops::binary::{Binary, BinaryFunction};
use ssmgraph_ops::unary::{Function, Unary};
use ssmgraph_ops::{RmsNorm, SsmConv};

/// Folds the call that made an operand of this one into it.
pub fn fold(calls: &mut Calls<'_, '_>, index: usize) {
    let Some(outer) = calls.call(index) else { return };
    for operand in 0..outer.inputs.len().min(2) {
        let Some(maker) = calls.private_maker(&outer.inputs[operand]).filter(|&maker| maker < index) else {
            continue;
        };
        let Some(both) = calls.call(maker).and_then(|inner| joined(inner, outer, operand)) else { continue };
        let reads_what_it_read = both.inputs.iter().all(|input| calls.is_kept(input, maker + 1..index, &[]));
        if reads_what_it_read && calls.is_computable(&both) {
            calls.replace(index, both, &[maker]);
            return;
        }
    }
}

/// Both calls as one, if `outer` takes the result of `inner` as this operand and there is an op for it.
fn joined<'a>(inner: &Call<'a>, outer: &Call<'a>, operand: usize) -> Option<Call<'a>> {
    let other = outer.inputs.get(1 - operand).copied();
    let (op, more): (Op, Option<Source<'a>>) = match (&outer.op, &inner.op) {
        (
            Op::Binary(Binary { function: BinaryFunction::Mul }),
            Op::RmsNorm(RmsNorm { eps, weight: false }),
        ) => (RmsNorm { eps: *eps, weight: true }.into(), Some(other?)),
        (
            Op::Binary(Binary { function: BinaryFunction::Add }),
            Op::SsmConv(SsmConv { bias: false, silu: false }),
        ) => (SsmConv { bias: true, silu: false }.into(), Some(other?)),
        (Op::Unary(Unary { function: Function::Silu }), Op::SsmConv(SsmConv { bias, silu: false })) => {
            (SsmConv { bias: *bias, silu: true }.into(), None)
        }
        _ => return None,
    };
    let mut inputs = inner.inputs.clone();
    inputs.extend(more);
    Some(Call { op, inputs, results: outer.results.clone() })
}
