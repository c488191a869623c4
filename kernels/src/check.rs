//! The rules that make a call sound, whatever memory its operands lie in.

use ssmgraph_ops::{Layout, Op, Storage};

/// A tensor's place in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Address of the buffer, which tells it from others.
    pub buffer: u64,
    /// Its size.
    pub buffer_bytes: usize,
    /// Whether it may be written.
    pub writable: bool,
    /// Offset of element 0, in bytes.
    pub offset_bytes: usize,
    /// Where the elements lie from there.
    pub layout: Layout,
}

impl Extent {
    /// One past the last byte, counted from the buffer's start. Only for extents that passed `check_inside`.
    fn end(&self) -> usize {
        self.offset_bytes + self.layout.span_bytes()
    }

    fn overlaps(&self, other: &Extent) -> bool {
        !self.layout.is_empty()
            && !other.layout.is_empty()
            && self.buffer == other.buffer
            && self.offset_bytes < other.end()
            && other.offset_bytes < self.end()
    }

    fn is_same(&self, other: &Extent) -> bool {
        self.buffer == other.buffer && self.offset_bytes == other.offset_bytes && self.layout == other.layout
    }
}

/// Checks that everything lies inside its buffer and aligned, that shapes follow the op's rule, and that
/// results are writable and free of overlap with one another and with operands, except where the op may take
/// an operand's memory over.
///
/// Errors: the first rule that is broken, as a sentence.
pub fn check_call(op: &Op, inputs: &[Extent], results: &[Extent]) -> Result<(), String> {
    check_inside("operand", inputs)?;
    check_inside("result", results)?;
    check_shapes(op, inputs, results)?;
    let storage = op.storage();
    if storage == Storage::Update && !results[0].is_same(&inputs[0]) {
        return Err("result 0 must lie where operand 0 lies, which it updates".into());
    }
    for (index, result) in results.iter().enumerate() {
        if !result.writable {
            return Err(format!("result {index} lies in read-only memory"));
        }
        if result.layout.may_overlap() {
            return Err(format!("result {index} has elements that share bytes"));
        }
        if let Some(other) = results[..index].iter().position(|other| other.overlaps(result)) {
            return Err(format!("results {other} and {index} overlap"));
        }
        for (operand, input) in inputs.iter().enumerate() {
            let taken_over = match storage {
                Storage::Fresh { reuse } => index == 0 && reuse.contains(&operand) && result.is_same(input),
                Storage::Update => index == 0 && operand == 0 && result.is_same(input),
                Storage::View { .. } => false,
            };
            if result.overlaps(input) && !taken_over {
                return Err(format!("result {index} overlaps operand {operand}"));
            }
        }
    }
    Ok(())
}

fn check_inside(kind: &str, extents: &[Extent]) -> Result<(), String> {
    for (index, extent) in extents.iter().enumerate() {
        // The fields of a layout are public: one that was not made by its constructors proves nothing.
        let Layout { dtype, ne, nb } = extent.layout;
        Layout::strided(dtype, ne, nb).map_err(|error| format!("{kind} {index}: {error}"))?;
        let end = extent.offset_bytes.checked_add(extent.layout.span_bytes());
        if end.is_none_or(|end| end > extent.buffer_bytes) {
            return Err(format!("{kind} {index} reaches past the end of its {} bytes", extent.buffer_bytes));
        }
        if !(extent.buffer as usize + extent.offset_bytes).is_multiple_of(extent.layout.align()) {
            return Err(format!("{kind} {index} at byte {} is not aligned", extent.offset_bytes));
        }
    }
    Ok(())
}

/// Kernels rely on the op's shape rule; results may have other strides than it says, not other shapes.
fn check_shapes(op: &Op, inputs: &[Extent], results: &[Extent]) -> Result<(), String> {
    let layouts: Vec<Layout> = inputs.iter().map(|extent| extent.layout).collect();
    let expected = op.infer(&layouts).map_err(|error| error.what)?;
    if results.len() != expected.len() {
        return Err(format!("{} results, expected {}", results.len(), expected.len()));
    }
    for (index, (result, expected)) in results.iter().zip(&expected).enumerate() {
        if (result.layout.dtype, result.layout.ne) != (expected.dtype, expected.ne) {
            return Err(format!("result {index} is {}, expected {expected}", result.layout));
        }
    }
    Ok(())
}
