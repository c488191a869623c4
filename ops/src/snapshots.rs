//! What ops with a state share: results y, `state` and `state_k`, and start rows from a pool.
//!
//! An op with K snapshots and T tokens gives y, then the state after the last token, one token back, and so on:
//! min(K, T) of them, and at least one, which is a copy of the start when T = 0.

use crate::shape::{checked_row, packed};
use crate::{DType, Layout, Layouts, OpError, View};

/// Most states that one op gives: with y, as many results as an index of 16 bits can tell apart.
pub const SNAPSHOTS_MAX: usize = u16::MAX as usize;

/// Checks that at least one state is asked for, and no more than can be told apart.
pub(crate) fn check(op: &'static str, snapshots: usize) -> Result<(), OpError> {
    match snapshots {
        0 => Err(OpError::new(op, "snapshots = 0, expected at least 1 (the final state)")),
        1..=SNAPSHOTS_MAX => Ok(()),
        _ => Err(OpError::new(op, format!("snapshots = {snapshots}, expected at most {SNAPSHOTS_MAX}"))),
    }
}

/// The name of a result.
pub(crate) fn result_name(index: usize) -> String {
    match index {
        0 => "y".into(),
        1 => "state".into(),
        _ => format!("state_{}", index - 1),
    }
}

/// Layouts of y and of the states after `tokens` tokens, all packed f32.
pub(crate) fn results(
    op: &'static str,
    y: &Layout,
    state: [usize; 4],
    snapshots: usize,
    tokens: usize,
) -> Result<Layouts, OpError> {
    let mut results = Layouts::new();
    results.push(packed(op, "y", DType::F32, &y.ne)?);
    for _ in 0..snapshots.min(tokens).max(1) {
        results.push(packed(op, "state", DType::F32, &state)?);
    }
    Ok(results)
}

/// The row of a pool of `rows` states that a sequence starts from; `None` for zeros.
pub(crate) fn start_row(
    op: &'static str,
    ids: &View<'_>,
    sequence: usize,
    rows: usize,
) -> Result<Option<usize>, OpError> {
    checked_row(op, "ids", [sequence, 0, 0], ids.get_int([sequence, 0, 0, 0]), rows)
}
