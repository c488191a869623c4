//! A state that an op leaves in its packed result and that is then copied to its place: the op writes it there.

use super::{Calls, overlap, range_of};
use crate::tensor::Tensor;
use crate::translate::{Call, Place, Source, is_view};
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
    let (whole, shown) = source_of_views(calls, from.tensor)?;
    let maker = *calls.makers.get(&whole.pointer()).filter(|&&maker| maker < index)?;
    let call = calls.call(maker)?;
    let state = (1..call.results.len()).find(|&state| range_of(&call.results[state]) == range_of(from))?;
    // Whoever reads the packed result must be in sight, and show another part of it.
    let readers = || {
        let reads = |node: &Tensor<'a>| node.sources().any(|read| read.pointer() == whole.pointer());
        calls.graph.nodes().filter(reads)
    };
    if whole.is_output() || calls.graph.use_count(whole) != i32::try_from(readers().count()).ok() {
        return None;
    }
    let shows_another =
        |reader: Tensor<'a>| is_view(reader) && Place::of(reader).is_ok_and(|place| !overlap(&place, from));
    if !readers().all(|reader| reader.pointer() == shown.pointer() || shows_another(reader)) {
        return None;
    }
    let target = Place { layout: target.layout.reshape(&call.results[state].layout.ne).ok()?, ..*target };
    let is_free = calls.is_unused(&target, maker..index, &[]);
    is_free.then_some((maker, state, target))
}

/// What a chain of views, each read once, shows, and the innermost of them.
fn source_of_views<'a>(calls: &Calls<'a, '_>, tensor: Tensor<'a>) -> Option<(Tensor<'a>, Tensor<'a>)> {
    let (mut whole, mut shown) = (tensor, tensor);
    while is_view(whole) {
        if !calls.graph.is_private(whole) {
            return None;
        }
        (whole, shown) = (whole.source(0).ok()?, whole);
    }
    Some((whole, shown))
}
