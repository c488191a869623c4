//! Nodes that one of our ops computes at once.
//!
//! A part is folded only if nobody else sees its result: the host says how often each tensor is read. What a part reads
//! is then read later than the host has planned, and the host may have given that memory to another node meanwhile; so
//! each fusion asks whether a call in between writes there ([`Calls::is_kept`]). What a part writes beyond its result may
//! be written earlier or later: nobody in between may read or write there ([`Calls::is_unused`]), and as the results of
//! one call come in no order, they must lie apart.

mod convolution;
mod gate;
mod neighbours;
mod state;

use crate::abi;
use crate::device::Runtime;
use crate::plan::Graph;
use crate::tensor::Tensor;
use crate::translate::{Call, Place, Source, is_view};
use std::collections::HashMap;
use std::ops::Range;

/// Folds calls, each with the node whose result it computes, into one another. What comes of it is right for graphs
/// whose nodes are read as often.
pub fn fuse<'a>(
    graph: Graph<'a>,
    runtime: &Runtime,
    calls: Vec<(Tensor<'a>, Call<'a>)>,
) -> Vec<(Tensor<'a>, Call<'a>)> {
    let mut calls = Calls::new(graph, runtime, calls);
    for fold in [neighbours::fold, gate::fold, convolution::fold, state::fold] {
        for index in 0..calls.slots.len() {
            fold(&mut calls, index);
        }
    }
    calls.slots.into_iter().flatten().collect()
}

/// Calls by their places in the graph's order; folded ones leave an empty place.
struct Calls<'a, 'r> {
    graph: Graph<'a>,
    runtime: &'r Runtime,
    slots: Vec<Option<(Tensor<'a>, Call<'a>)>>,
    /// The place of the call that computes a node.
    makers: HashMap<*const abi::Tensor, usize>,
}

impl<'a, 'r> Calls<'a, 'r> {
    fn new(graph: Graph<'a>, runtime: &'r Runtime, calls: Vec<(Tensor<'a>, Call<'a>)>) -> Calls<'a, 'r> {
        let makers = calls.iter().enumerate().map(|(index, (node, _))| (node.pointer(), index)).collect();
        Calls { graph, runtime, slots: calls.into_iter().map(Some).collect(), makers }
    }

    fn call(&self, index: usize) -> Option<&Call<'a>> {
        self.slots.get(index)?.as_ref().map(|(_, call)| call)
    }

    /// The place of the call whose whole result an operand is, if this operand is the only reader of it. A result in
    /// the bytes of another tensor changes that one too.
    fn private_maker(&self, operand: &Source<'a>) -> Option<usize> {
        let Source::Place(place) = operand else { return None };
        let is_own = place.tensor.view_source().is_none();
        let whole = is_own && place.offset_bytes == 0 && self.graph.is_private(place.tensor);
        let index = whole.then(|| self.makers.get(&place.tensor.pointer()).copied()).flatten()?;
        self.call(index).map(|_| index)
    }

    /// Whether no call in the range, those at `folded` aside, writes where an operand lies.
    fn is_kept(&self, operand: &Source<'a>, range: Range<usize>, folded: &[usize]) -> bool {
        let Source::Place(place) = operand else { return true };
        self.others(range, folded).all(|call| call.results.iter().all(|result| !overlap(result, place)))
    }

    /// Whether no call in the range, those at `folded` aside, reads or writes a place.
    fn is_unused(&self, place: &Place<'a>, range: Range<usize>, folded: &[usize]) -> bool {
        let reads = |source: &Source<'a>| matches!(source, Source::Place(read) if overlap(read, place));
        self.is_kept(&Source::Place(*place), range.clone(), folded)
            && self.others(range, folded).all(|call| !call.inputs.iter().any(reads))
    }

    /// Whether a tensor is a view that is read once. Views of other parts of the whole graph do not count: a plan would
    /// not notice that they have got another reader.
    fn is_private_view(&self, tensor: Tensor<'a>) -> bool {
        is_view(tensor)
            && self.graph.is_private(tensor)
            && self.graph.nodes().any(|node| node.pointer() == tensor.pointer())
    }

    fn others(&self, range: Range<usize>, folded: &[usize]) -> impl Iterator<Item = &Call<'a>> {
        range.filter(|index| !folded.contains(index)).filter_map(|index| self.call(index))
    }

    /// Whether the device computes a call, and whether its results have the shapes that the op gives.
    fn is_computable(&self, call: &Call<'a>) -> bool {
        let layouts = call.input_layouts();
        let fits = call.op.infer(&layouts).is_ok_and(|expected| {
            expected.len() == call.results.len()
                && expected.iter().zip(&call.results).all(|(expected, place)| {
                    (expected.dtype, expected.ne) == (place.layout.dtype, place.layout.ne)
                })
        });
        fits && self.runtime.backend().supports(&call.op, &layouts).is_ok()
    }

    /// Puts a call in the place of one whose node it computes too; the parts at `folded` go.
    fn replace(&mut self, index: usize, call: Call<'a>, folded: &[usize]) {
        folded.iter().for_each(|&part| self.slots[part] = None);
        if let Some((_, before)) = &mut self.slots[index] {
            *before = call;
        }
    }
}

fn range_of(place: &Place<'_>) -> Range<usize> {
    let start = place.tensor.address().saturating_add(place.offset_bytes);
    start..start.saturating_add(place.layout.span_bytes())
}

/// Whether two places share a byte. Addresses of buffers are apart, those of devices too.
fn overlap(a: &Place<'_>, b: &Place<'_>) -> bool {
    let (a, b) = (range_of(a), range_of(b));
    !a.is_empty() && !b.is_empty() && a.start < b.end && b.start < a.end
}
