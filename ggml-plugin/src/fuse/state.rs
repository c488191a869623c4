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
    if !is_read_alone(calls, whole, shown, from) {
        return None;
    }
    let target = Place { layout: target.layout.reshape(&call.results[state].layout.ne).ok()?, ..*target };
    let is_free = calls.is_unused(&target, maker..index, &[]);
    is_free.then_some((maker, state, target))
}

/// Whether what `from` shows of a whole, by a view of it, is shown by nobody else.
fn is_read_alone<'a>(calls: &Calls<'a, '_>, whole: Tensor<'a>, shown: Tensor<'a>, from: &Place<'a>) -> bool {
    let reads = |node: &Tensor<'a>| node.sources().any(|read| read.pointer() == whole.pointer());
    let readers = || calls.graph.nodes().filter(reads);
    let are_in_sight = calls.graph.use_count(whole) == i32::try_from(readers().count()).ok();
    let shows_another =
        |reader: Tensor<'a>| is_view(reader) && Place::of(reader).is_ok_and(|place| !overlap(&place, from));
    // A view of a view may show more than the view does.
    let is_of_whole =
        |node: &Tensor<'a>| node.view_source().is_some_and(|source| source.pointer() == whole.pointer());
    let mut views = calls.graph.nodes().filter(is_of_whole);
    !whole.is_output()
        && are_in_sight
        && readers().all(|reader| reader.pointer() == shown.pointer() || shows_another(reader))
        && views.all(|view| is_in(view, from.tensor) || shows_another(view))
}

/// What a chain of views, each read once, shows, and the innermost of them.
fn source_of_views<'a>(calls: &Calls<'a, '_>, tensor: Tensor<'a>) -> Option<(Tensor<'a>, Tensor<'a>)> {
    let (mut whole, mut shown) = (tensor, tensor);
    while is_view(whole) {
        if !calls.is_private_view(whole) {
            return None;
        }
        (whole, shown) = (whole.source(0).ok()?, whole);
    }
    Some((whole, shown))
}

/// Whether a view is another, or one of those that this one is a view of.
fn is_in<'a>(view: Tensor<'a>, mut other: Tensor<'a>) -> bool {
    while is_view(other) {
        match other.source(0) {
            _ if other.pointer() == view.pointer() => return true,
            Ok(inner) => other = inner,
            Err(_) => return false,
        }
    }
    false
}
