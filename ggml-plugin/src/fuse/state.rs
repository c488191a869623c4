//! A state that an op leaves in its packed result and that is then copied to its place: the op writes it there.

use super::{Calls, overlap, range_of};
use crate::tensor::Tensor;
use crate::translate::{Call, Place, Source};
use ssmgraph_ops::{Cpy, Op};

/// Folds a copy into the call whose state it copies.
pub fn fold(calls: &mut Calls<'_, '_>, index: usize) {
    let Some((maker, state, target)) = found(calls, index) else { return };
    let Some(mut call) = calls.call(maker).cloned() else { return };
    call.results[state] = target;
    if calls.is_computable(&call) {
        calls.replace(maker, call, &[index]);
    }
}

/// The maker of what a call copies, which of its results that is, and where it goes.
fn found<'a>(calls: &Calls<'a, '_>, index: usize) -> Option<(usize, usize, Place<'a>)> {
    let Call { op: Op::Cpy(Cpy { to }), inputs, results } = calls.call(index)? else { return None };
    let (Some(Source::Place(from)), Some(target)) = (inputs.first(), results.first()) else { return None };
    if !from.layout.is_contiguous() || !to.is_contiguous() || from.layout.dtype != to.dtype {
        return None;
    }
    let whole = source_of_views(calls, from.tensor)?;
    let maker = *calls.makers.get(&whole.pointer()).filter(|&&maker| maker < index)?;
    let call = calls.call(maker)?;
    let state = (1..call.results.len()).find(|&state| range_of(&call.results[state]) == range_of(from))?;
    // Whoever reads the whole result must be in sight, so that this copy is known to be the state's only reader.
    let readers =
        calls.graph.nodes().flat_map(Tensor::sources).filter(|read| read.pointer() == whole.pointer());
    if whole.is_output() || calls.graph.use_count(whole) != i32::try_from(readers.count()).ok() {
        return None;
    }
    let is_read = |call: &Call<'_>| {
        call.inputs.iter().any(|input| matches!(input, Source::Place(read) if overlap(read, from)))
    };
    if calls.others(0..calls.slots.len(), &[index]).any(is_read) {
        return None;
    }
    let target = Place { layout: target.layout.reshape(&call.results[state].layout.ne).ok()?, ..*target };
    let is_free = calls.is_unused(&target, maker..index, &[]);
    is_free.then_some((maker, state, target))
}

/// What a chain of views, each read once, shows.
fn source_of_views<'a>(calls: &Calls<'a, '_>, mut tensor: Tensor<'a>) -> Option<Tensor<'a>> {
    while crate::translate::is_view(tensor) {
        if !calls.graph.is_private(tensor) {
            return None;
        }
        tensor = tensor.source(0).ok()?;
    }
    Some(tensor)
}
