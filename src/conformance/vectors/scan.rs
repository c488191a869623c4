//! Scan vectors: snapshots, resets, and runs in pieces.

use super::program::{Builder, text};
use crate::graph::Tensor;
use ssmgraph_ops::HostTensor;
use ssmgraph_ops::gated_delta_net::Grouping;

/// Builds `SSM_SCAN`, with `reset` slots starting from zero and `splits` carrying the state from piece to
/// piece. Results: `y`, `state`, and `snapshot_k`, the state k tokens before the last.
pub(super) fn build(b: &mut Builder<'_>) -> Result<(), String> {
    let pool = b.input("s")?;
    let [x, dt, decay, input, output] =
        [b.input("x")?, b.input("dt")?, b.input("A")?, b.input("B")?, b.input("C")?];
    let ids = start_rows(b)?;
    let [_, _, tokens, sequences] = b.graph.ne(x).map_err(text)?;
    let pieces = pieces(b.vector.params.splits.as_deref(), tokens)?;
    let snapshots = b.vector.params.snapshots.unwrap_or(1);
    let (mut state, mut rows) = (pool, ids);
    let (mut outputs, mut states) = (Vec::new(), Vec::new());
    for (index, (first, count)) in pieces.iter().copied().enumerate() {
        let whole = pieces.len() == 1;
        let mut cut = |tensor: Tensor, axis: usize| match whole {
            true => Ok(tensor),
            false => b.graph.slice(tensor, axis, first, count).map_err(text),
        };
        let [x, dt, input, output] = [cut(x, 2)?, cut(dt, 1)?, cut(input, 2)?, cut(output, 2)?];
        let operands = [state, x, dt, decay, input, output, rows];
        let scan = b.graph.ssm_scan(operands, snapshots).map_err(text)?;
        outputs.push(scan.y);
        state = scan.states[0];
        // A piece without tokens repeats the state it began with.
        if count > 0 || states.is_empty() {
            states.splice(0..0, scan.states);
        }
        if index == 0 && !whole {
            let own: Vec<i32> = (0..sequences as i32).collect();
            let own = HostTensor::from_i32(&[sequences], &own).map_err(|error| error.to_string())?;
            rows = b.constant("rows of the carried state", own)?;
        }
    }
    b.result("y", 2, outputs);
    b.result("state", 0, vec![states[0]]);
    for (back, state) in states.into_iter().take(snapshots).enumerate() {
        b.result(&format!("snapshot_{back}"), 0, vec![state]);
    }
    Ok(())
}

/// Builds `GATED_DELTA_NET`, whose sequences start from the rows with their own numbers. Results as those of
/// the scan.
pub(super) fn build_delta_net(b: &mut Builder<'_>) -> Result<(), String> {
    let grouping = match b.vector.params.bcast.as_deref() {
        Some("tiled") => Grouping::Tiled,
        Some("interleaved") => Grouping::Interleaved,
        other => {
            let what = "expected \"tiled\" or \"interleaved\"";
            return Err(format!("GATED_DELTA_NET: bcast = {other:?}, {what}"));
        }
    };
    let snapshots = b.vector.params.snapshots.unwrap_or(1);
    let [state, q, k] = [b.input("state")?, b.input("q")?, b.input("k")?];
    let [v, g, beta] = [b.input("v")?, b.input("g")?, b.input("beta")?];
    let sequences = b.graph.ne(v).map_err(text)?[3];
    let own: Vec<i32> = (0..sequences as i32).collect();
    let own = HostTensor::from_i32(&[sequences], &own).map_err(|error| error.to_string())?;
    let ids = b.constant("ids", own)?;
    let operands = [state, q, k, v, g, beta, ids];
    let delta = b.graph.gated_delta_net(operands, grouping, snapshots).map_err(text)?;
    b.result("y", 2, vec![delta.y]);
    b.result("state", 0, vec![delta.states[0]]);
    for (back, state) in delta.states.into_iter().enumerate() {
        b.result(&format!("snapshot_{back}"), 0, vec![state]);
    }
    Ok(())
}

/// The ids of the vector; −1, a start from zero, for slots that are marked as new.
fn start_rows(b: &mut Builder<'_>) -> Result<Tensor, String> {
    let Some(reset) = &b.vector.params.reset else { return b.input("ids") };
    let stored = b.vector.inputs.get("ids").ok_or("there is no input `ids`")?;
    let ids = stored.storage.to_f64();
    let rows: Vec<i32> = ids
        .iter()
        .map(|&id| match reset.get(id as usize) {
            Some(&new) if id >= 0.0 && new != 0 => -1,
            _ => id as i32,
        })
        .collect();
    let rows = HostTensor::from_i32(&[rows.len()], &rows).map_err(|error| error.to_string())?;
    b.constant("ids", rows)
}

/// First token and number of tokens of each piece.
fn pieces(splits: Option<&[usize]>, tokens: usize) -> Result<Vec<(usize, usize)>, String> {
    let Some(splits) = splits.filter(|splits| !splits.is_empty()) else { return Ok(vec![(0, tokens)]) };
    let mut first = 0;
    let mut pieces = Vec::new();
    for &count in splits {
        pieces.push((first, count));
        first += count;
    }
    if first != tokens {
        return Err(format!("splits {splits:?} add up to {first}, expected the {tokens} tokens of x"));
    }
    Ok(pieces)
}
