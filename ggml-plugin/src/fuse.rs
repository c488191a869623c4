//! Neighbouring nodes that one of our ops computes at once.

use crate::device::Runtime;
use crate::plan::Graph;
use crate::tensor::Tensor;
use crate::translate::{Call, Source};
use ssmgraph_ops::Op;
use ssmgraph_ops::binary::{Binary, BinaryFunction};
use ssmgraph_ops::unary::{Function, Unary};
use ssmgraph_ops::{RmsNorm, SsmConv};

/// Calls of one graph, each with the node whose result it computes.
type Calls<'a> = Vec<(Tensor<'a>, Call<'a>)>;

/// Folds a call into the next one that reads its result, where an op does both and nobody else reads that result.
pub fn fuse<'a>(graph: Graph<'a>, runtime: &Runtime, calls: Calls<'a>) -> Calls<'a> {
    let mut fused: Calls<'a> = Vec::with_capacity(calls.len());
    for (node, call) in calls {
        let both = fused.last().and_then(|(before, inner)| {
            let both = if graph.is_private(*before) { joined(*before, inner, &call) } else { None }?;
            runtime.backend().supports(&both.op, &both.input_layouts()).is_ok().then_some(both)
        });
        match both {
            Some(both) => *fused.last_mut().expect("there was one") = (node, both),
            None => fused.push((node, call)),
        }
    }
    fused
}

/// Both calls as one, if `outer` takes the whole result of `inner` and there is an op for it.
fn joined<'a>(before: Tensor<'a>, inner: &Call<'a>, outer: &Call<'a>) -> Option<Call<'a>> {
    let reads = |index: usize| match outer.inputs.get(index) {
        // A view of the result counts as a reader of its own; the result itself has its address and its shape.
        Some(Source::Place(place)) => place.tensor.pointer() == before.pointer() && place.offset_bytes == 0,
        _ => false,
    };
    let (first, second) = (reads(0), reads(1));
    if first == second {
        return None;
    }
    let other = outer.inputs.get(usize::from(first)).copied();
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
    let both = Call { op, inputs, results: outer.results.clone() };
    let expected = both.op.infer(&both.input_layouts()).ok()?;
    let fits = expected.len() == 1
        && (expected[0].dtype, expected[0].ne) == (both.results[0].layout.dtype, both.results[0].layout.ne);
    fits.then_some(both)
}
