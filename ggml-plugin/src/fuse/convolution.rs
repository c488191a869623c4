//! The convolution with its window: concat(window, transposed tokens) → ssm_conv, and the last columns of what was
//! joined, copied back to the window's place. ssm_conv_step reads the tokens where they lie, so nothing is transposed.

use super::{Calls, overlap, range_of};
use crate::tensor::Tensor;
use crate::translate::{Call, Place, Source};
use smallvec::smallvec;
use ssmgraph_ops::{Concat, Cpy, Op, SsmConv, SsmConvStep};

/// Folds the joining and the copy into the convolution.
pub fn fold(calls: &mut Calls<'_, '_>, index: usize) {
    let Some((step, folded)) = found(calls, index) else { return };
    calls.replace(index, step, &folded);
}

fn found<'a>(calls: &Calls<'a, '_>, index: usize) -> Option<(Call<'a>, [usize; 2])> {
    let conv = calls.call(index)?;
    let Op::SsmConv(SsmConv { bias, silu }) = conv.op else { return None };
    let Some(Source::Place(joined)) = conv.inputs.first() else { return None };
    let join = *calls.makers.get(&joined.tensor.pointer()).filter(|&&join| join < index)?;
    let joining = calls.call(join)?;
    let [window, tokens] = joining.inputs[..] else { return None };
    if joining.op != Op::from(Concat { axis: 0 }) || joined.offset_bytes != 0 || joined.tensor.is_output() {
        return None;
    }
    // Read by the convolution and by the view that is copied, and by nobody else.
    if calls.graph.use_count(joined.tensor) != Some(2) {
        return None;
    }
    let [width, channels, ..] = conv.inputs[1].layout().ne;
    let sequences = joined.layout.ne[2];
    let copy = (join + 1..calls.slots.len()).find(|&copy| copies_last(calls, copy, joined, width - 1))?;
    let target = calls.call(copy)?.results[0];
    let state = reshaped(target, &[width - 1, channels, 1, sequences])?;

    let (Source::Place(window), Source::Place(tokens)) = (window, tokens) else { return None };
    let tokens = Place { layout: tokens.layout.permute([1, 0, 2, 3]).ok()?, ..tokens };
    let mut inputs = smallvec![
        Source::Place(reshaped(window, &[width - 1, channels, 1, sequences])?),
        Source::Place(tokens),
        conv.inputs[1],
    ];
    inputs.extend(conv.inputs.get(2).copied());
    inputs.push(Source::Counting(sequences));
    let op = SsmConvStep { bias, silu, snapshots: 1 };
    let step = Call { op: op.into(), inputs, results: smallvec![conv.results[0], state] };

    // Taps and bias may be what the copy has written.
    let in_target = |source: &Source<'_>| matches!(source, Source::Place(place) if overlap(place, &target));
    if overlap(&conv.results[0], &target) || conv.inputs[1..].iter().any(in_target) {
        return None;
    }
    let folded = [join, copy];
    let inputs_are_kept = step.inputs.iter().all(|input| calls.is_kept(input, join + 1..index, &folded));
    // The window is written when the convolution runs: before its copy was due, or after.
    let (first, last) = (copy.min(index), copy.max(index));
    let is_right =
        inputs_are_kept && calls.is_unused(&target, first + 1..last, &folded) && calls.is_computable(&step);
    is_right.then_some((step, folded))
}

/// Whether a call copies the last `count` columns of what was joined, and is the only reader of the view of them.
fn copies_last<'a>(calls: &Calls<'a, '_>, index: usize, joined: &Place<'a>, count: usize) -> bool {
    let Some(Call { op: Op::Cpy(Cpy { to }), inputs, .. }) = calls.call(index) else { return false };
    let Some(Source::Place(last)) = inputs.first() else { return false };
    let [columns, channels, sequences, _] = joined.layout.ne;
    let [bytes, row, sequence, _] = joined.layout.nb;
    let start = range_of(joined).start + (columns - count.min(columns)) * bytes;
    let [c0, c1, c2, _] = last.layout.nb;
    range_of(last).start == start
        && last.layout.ne == [count, channels, sequences, 1]
        && [c0, c1] == [bytes, row]
        && (sequences == 1 || c2 == sequence)
        && to.is_contiguous()
        && to.dtype == last.layout.dtype
        && is_only_view(calls, last.tensor, joined.tensor)
}

/// Whether a tensor is a view of another, through views that nobody else reads.
fn is_only_view<'a>(calls: &Calls<'a, '_>, mut view: Tensor<'a>, whole: Tensor<'a>) -> bool {
    while view.pointer() != whole.pointer() {
        let inner = view.source(0);
        match inner {
            Ok(inner) if calls.is_private_view(view) => view = inner,
            _ => return false,
        }
    }
    true
}

fn reshaped<'a>(place: Place<'a>, ne: &[usize]) -> Option<Place<'a>> {
    Some(Place { layout: place.layout.reshape(ne).ok()?, ..place })
}
