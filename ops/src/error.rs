//! The error of a call that an op cannot accept: which op, which operand, what came, what was wanted.

/// Why an op refused its operands or attributes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op}: {what}")]
pub struct OpError {
    /// Name of the op, as in the `ops!` list.
    pub op: &'static str,
    /// The operand, the dimension, what came and what was wanted.
    pub what: String,
}

impl OpError {
    /// An error of `op` with a finished sentence.
    pub fn new(op: &'static str, what: impl Into<String>) -> OpError {
        OpError { op, what: what.into() }
    }
}

/// Why a layout cannot exist: sizes that overflow, rows that do not fill blocks, views past the end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LayoutError(pub String);

impl LayoutError {
    /// The same refusal as an error of `op`, about `operand`.
    pub fn of(self, op: &'static str, operand: &str) -> OpError {
        OpError::new(op, format!("{operand}: {}", self.0))
    }
}
