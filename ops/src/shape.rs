//! Checks that shape rules share, each with the same form of error:
//! `op: operand has ne[1] = 8, expected 16 (the heads of v)`.

use crate::{DType, Layout, OpError, Operand};

/// Compares the number of operands with the table.
///
/// Errors: too few or too many operands.
pub fn check_arity(op: &'static str, table: &[Operand], got: usize) -> Result<(), OpError> {
    let open = table.last().is_some_and(|operand| operand.repeats);
    if got == table.len() || (open && got > table.len()) {
        return Ok(());
    }
    let names: Vec<&str> = table.iter().map(|operand| operand.name).collect();
    let least = if open { "at least " } else { "" };
    Err(OpError::new(op, format!("{got} operands, expected {least}{} ({})", table.len(), names.join(", "))))
}

/// Requires `layout.ne[axis] == want`; `why` says where the expectation comes from.
///
/// Errors: another count.
pub fn expect_ne(
    op: &'static str,
    operand: &str,
    layout: &Layout,
    axis: usize,
    want: usize,
    why: &str,
) -> Result<(), OpError> {
    let got = layout.ne[axis];
    if got == want {
        return Ok(());
    }
    Err(OpError::new(op, format!("{operand} has ne[{axis}] = {got}, expected {want} ({why})")))
}

/// Requires all four counts.
///
/// Errors: the first axis that differs.
pub fn expect_shape(
    op: &'static str,
    operand: &str,
    layout: &Layout,
    want: [usize; 4],
    why: &str,
) -> Result<(), OpError> {
    (0..4).try_for_each(|axis| expect_ne(op, operand, layout, axis, want[axis], why))
}

/// Requires one of the given element types.
///
/// Errors: another type.
pub fn expect_dtype(op: &'static str, operand: &str, layout: &Layout, want: &[DType]) -> Result<(), OpError> {
    if want.contains(&layout.dtype) {
        return Ok(());
    }
    let names: Vec<&str> = want.iter().map(|dtype| dtype.name()).collect();
    Err(OpError::new(op, format!("{operand} has type {}, expected {}", layout.dtype, names.join(" or "))))
}

/// Requires that `layout` can be repeated along whole axes to cover `to`, ggml's broadcast rule.
///
/// Errors: the first axis whose count does not divide the target's.
pub fn expect_repeats(
    op: &'static str,
    operand: &str,
    layout: &Layout,
    to: &Layout,
    of: &str,
) -> Result<(), OpError> {
    if layout.repeats_into(to) {
        return Ok(());
    }
    let axis = (0..4)
        .find(|&axis| layout.ne[axis] == 0 || !to.ne[axis].is_multiple_of(layout.ne[axis]))
        .unwrap_or(0);
    Err(OpError::new(
        op,
        format!(
            "{operand} has ne[{axis}] = {}, which does not divide {} (ne[{axis}] of {of})",
            layout.ne[axis], to.ne[axis]
        ),
    ))
}

/// The index in an operand of shape `ne`, repeated along whole axes, that an index of the larger shape reads.
pub fn repeated_index(ne: [usize; 4], index: [usize; 4]) -> [usize; 4] {
    std::array::from_fn(|axis| index[axis] % ne[axis])
}

/// Requires an eps that keeps a norm's divisor real: finite and not negative.
///
/// Errors: any other value.
pub fn expect_eps(op: &'static str, eps: f32) -> Result<(), OpError> {
    if eps.is_finite() && eps >= 0.0 {
        return Ok(());
    }
    Err(OpError::new(op, format!("eps = {eps}, expected a finite number of at least 0")))
}

/// Requires the same type as an earlier operand.
///
/// Errors: another type.
pub fn expect_same_dtype(
    op: &'static str,
    operand: &str,
    layout: &Layout,
    like: &Layout,
    of: &str,
) -> Result<(), OpError> {
    if layout.dtype == like.dtype {
        return Ok(());
    }
    Err(OpError::new(
        op,
        format!("{operand} has type {}, expected {} (the type of {of})", layout.dtype, like.dtype),
    ))
}

/// The row that an index selects: `None` for −1, which stands for no row. `at` is the index's place.
///
/// Errors: an index outside `0..rows` that is not −1.
pub fn checked_row(
    op: &'static str,
    operand: &str,
    at: [usize; 3],
    id: i64,
    rows: usize,
) -> Result<Option<usize>, OpError> {
    match usize::try_from(id) {
        Ok(row) if row < rows => Ok(Some(row)),
        _ if id == -1 => Ok(None),
        _ => Err(OpError::new(op, format!("{operand}{at:?} = {id}, expected −1 or a row below {rows}"))),
    }
}

/// The index that an operand holds at `at`; `why` says where the limit comes from.
///
/// Errors: an index outside `0..limit`.
pub fn checked_below(
    op: &'static str,
    operand: &str,
    at: [usize; 3],
    index: i64,
    limit: usize,
    why: &str,
) -> Result<usize, OpError> {
    usize::try_from(index).ok().filter(|&index| index < limit).ok_or_else(|| {
        let what = format!("{operand}{at:?} = {index}, expected at least 0 and below {limit} ({why})");
        OpError::new(op, what)
    })
}

/// A packed result layout.
///
/// Errors: a size that cannot be addressed.
pub fn packed(op: &'static str, result: &str, dtype: DType, ne: &[usize]) -> Result<Layout, OpError> {
    Layout::contiguous(dtype, ne).map_err(|error| error.of(op, result))
}

/// The real types the arithmetic ops read.
pub const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::BF16];
