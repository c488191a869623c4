//! The recurrent nodes. Their results are packed into one tensor: y, then the states, newest first.

use super::{Call, Place, Source, operands};
use crate::tensor::Tensor;
use smallvec::{SmallVec, smallvec};
use ssmgraph::backend::Declined;
use ssmgraph_ops::gated_delta_net::{GatedDeltaNet, Grouping};
use ssmgraph_ops::{Op, SsmConv, SsmScan};

/// SSM_CONV.
pub fn ssm_conv(node: Tensor<'_>) -> Result<Call<'_>, Declined> {
    Ok(Call::of(SsmConv { bias: false, silu: false }, operands::<2>(node)?, [Place::of(node)?]))
}

/// SSM_SCAN.
pub fn ssm_scan(node: Tensor<'_>) -> Result<Call<'_>, Declined> {
    let operands = operands::<7>(node)?;
    let op = SsmScan { snapshots: snapshots(node)? }.into();
    packed(node, op, operands.map(Source::Place).into_iter().collect())
}

/// GATED_DELTA_NET: one state for each sequence, in order.
pub fn gated_delta_net(node: Tensor<'_>) -> Result<Call<'_>, Declined> {
    let [q, k, v, g, beta, state] = operands(node)?;
    // Some graphs give the state as one row for each sequence.
    let [size, heads, _, sequences] = v.layout.ne;
    if i32::try_from(sequences).is_err() {
        return Err(Declined(format!("{sequences} sequences, more than their numbers can tell apart")));
    }
    let state = state.reshaped(&[size, size, heads, sequences])?;
    let op = GatedDeltaNet { grouping: Grouping::Tiled, snapshots: snapshots(node)? };
    let inputs = [state, q, k, v, g, beta].map(Source::Place);
    packed(node, op.into(), inputs.into_iter().chain([Source::Counting(sequences)]).collect())
}

/// How many states the node keeps.
fn snapshots(node: Tensor<'_>) -> Result<usize, Declined> {
    // Graphs made before there was a choice have 0 there.
    usize::try_from(node.int(0)).map(|count| count.max(1)).map_err(|_| Declined("K is negative".into()))
}

/// The call with its results one behind the other in the node's bytes.
fn packed<'a>(node: Tensor<'a>, op: Op, inputs: SmallVec<[Source<'a>; 4]>) -> Result<Call<'a>, Declined> {
    let whole = node.layout()?;
    if !whole.is_contiguous() {
        return Err(Declined("the result has gaps".into()));
    }
    let mut call = Call { op, inputs, results: smallvec![] };
    let layouts = call.op.infer(&call.input_layouts()).map_err(|error| Declined(error.what))?;
    let mut offset_bytes = 0usize;
    let too_large = || Declined("the results overflow".into());
    for layout in layouts {
        let layout = layout.to_contiguous();
        call.results.push(Place { tensor: node, offset_bytes, layout });
        offset_bytes = offset_bytes.checked_add(layout.span_bytes()).ok_or_else(too_large)?;
    }
    // With fewer tokens than K the last states stay as they are.
    if offset_bytes > whole.span_bytes() {
        return Err(Declined(format!(
            "the result has {} bytes, the op gives {offset_bytes}",
            whole.span_bytes()
        )));
    }
    Ok(call)
}
