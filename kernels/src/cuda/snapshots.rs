//! Recurrences whose last states are results: the launches that write them, a few states each, so that their
//! addresses fit into parameters.

use super::{CudaCall, DeviceTensor, Params};
use std::ops::Range;

/// States that one launch can write.
pub(crate) const SNAPSHOTS: usize = 8;

/// The tokens of one launch and those among them after which the state is a result. Without tokens, the
/// state as it starts is the result of token 0.
pub(crate) struct Part {
    pub tokens: Range<usize>,
    pub kept: Range<usize>,
}

impl Part {
    /// The last token whose state the launch writes.
    pub fn last(&self) -> usize {
        self.kept.end - 1
    }
}

/// Cuts a call so that each launch writes at most [`SNAPSHOTS`] of the last `states` states. A launch goes on
/// from the last state that the one before wrote.
pub(crate) fn parts(tokens: usize, states: usize) -> Vec<Part> {
    if tokens == 0 {
        return vec![Part { tokens: 0..0, kept: 0..1 }];
    }
    let (mut parts, mut start, mut kept) = (Vec::new(), 0, tokens - states);
    while kept < tokens {
        let end = tokens.min(kept + SNAPSHOTS);
        parts.push(Part { tokens: start..end, kept: kept..end });
        (start, kept) = (end, end);
    }
    parts
}

/// The result that holds the state after a token of a call with `tokens` of them: result 0 is y, result 1 the
/// state after the last token, and so on backwards.
pub(crate) fn state_after<'a>(call: &CudaCall<'a>, tokens: usize, token: usize) -> &'a DeviceTensor {
    &call.results[tokens.max(1) - token]
}

/// Appends the addresses of the states that a launch writes, and null for those it does not.
pub(crate) fn append_snapshots(params: Params, call: &CudaCall<'_>, tokens: usize, part: &Part) -> Params {
    (part.kept.start..part.kept.start + SNAPSHOTS).fold(params, |params, token| {
        let kept = part.kept.contains(&token);
        params.address(if kept { state_after(call, tokens, token).address } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_go_on_from_one_another() {
        let cut = |tokens, states| -> Vec<(Range<usize>, Range<usize>)> {
            parts(tokens, states).into_iter().map(|part| (part.tokens, part.kept)).collect()
        };
        assert_eq!(cut(0, 1), [(0..0, 0..1)]);
        assert_eq!(cut(5, 1), [(0..5, 4..5)]);
        assert_eq!(cut(20, 8), [(0..20, 12..20)]);
        assert_eq!(cut(20, 17), [(0..11, 3..11), (11..19, 11..19), (19..20, 19..20)]);
    }
}
