//! Operands and results of one kernel call: pointers with layouts.
//!
//! [`In`] and [`Out`] are made by a program, which has checked that the layout lies inside its buffer and
//! that results overlap nothing they must not (see `kernel.rs`). Kernels then index rows; a row is named by
//! its indices on axes 1, 2 and 3.

use half::{bf16, f16};
use ssmgraph_ops::quant::{BLOCK_LEN_MAX, Format, Q8_0_BLOCK};
use ssmgraph_ops::{DType, Layout};
use std::ops::Range;
use std::slice;
use std::sync::Arc;

use super::convert;
use super::pool::Worker;
use crate::mul_mat::panels::Packed;

/// Indices on axes 1, 2 and 3.
pub type Row = [usize; 3];

/// An operand.
///
/// The bytes may also be written during the call: when a result takes over the operand's memory (an op whose
/// storage lists the operand under `reuse`, or updates it). Kernels of such ops read through [`In::load`]
/// only, which copies, and write an element after they read it.
#[derive(Clone, Copy, Debug)]
pub struct In {
    start: *const u8,
    layout: Layout,
}

/// A result.
#[derive(Clone, Copy, Debug)]
pub struct Out {
    start: *mut u8,
    layout: Layout,
}

/// Scratch memory that all workers of a call see; its contents are undefined at the start.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    start: *mut u8,
    bytes: usize,
}

/// One call of a kernel.
#[derive(Clone, Debug)]
pub struct Call {
    /// Operands in the order of the op's table.
    pub inputs: Vec<In>,
    /// Results in the op's order.
    pub results: Vec<Out>,
    /// Scratch as large as the kernel asked for.
    pub shared: Shared,
    /// The form that runs it: a place among the kernel's variants, 0 for a kernel of one form.
    pub variant: usize,
    /// The panels of operand 0, of a kernel that asked for them and a weight that nobody can write.
    pub packed: Option<Arc<Packed>>,
}

// SAFETY: the pointers reach memory whose locks the running program holds; workers write disjoint parts,
// which is the contract of the unsafe methods below.
unsafe impl Send for Call {}
// SAFETY: as above.
unsafe impl Sync for Call {}

impl In {
    /// An operand at `start`.
    ///
    /// # Safety
    /// `layout.span_bytes()` bytes from `start` stay readable while the call lives, and `start` is aligned
    /// for the element type.
    pub unsafe fn new(start: *const u8, layout: Layout) -> In {
        In { start, layout }
    }

    /// Where the elements lie.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Element counts, innermost axis first.
    pub fn ne(&self) -> [usize; 4] {
        self.layout.ne
    }

    /// The same elements with axis `i` called `axes[i]`. Plain types only.
    ///
    /// Panics when `axes` is no permutation.
    pub fn permuted(&self, axes: [usize; 4]) -> In {
        // The same bytes stay within reach, so the promise of `new` still holds.
        In { start: self.start, layout: self.layout.permute(axes).expect("a permutation of a plain type") }
    }

    #[inline]
    fn at(&self, first: usize, row: Row) -> *const u8 {
        let index = [first, row[0], row[1], row[2]];
        assert!((1..4).all(|axis| index[axis] < self.layout.ne[axis]), "row {row:?} outside {}", self.layout);
        // SAFETY: an index inside the shape lies inside the span, which is readable.
        unsafe { self.start.add(self.layout.offset(index)) }
    }

    /// The same elements as one row, when they follow each other in index order.
    pub fn flat(&self) -> Option<In> {
        Some(In { start: self.start, layout: flat_layout(&self.layout)? })
    }

    /// A row whose elements are packed `f32`; `None` for other types and spread elements. Not for operands
    /// whose memory a result takes over.
    #[inline]
    pub fn f32_row(&self, row: Row) -> Option<&[f32]> {
        self.packed_row(DType::F32, row)
    }

    /// Some elements of a row of packed `f32`, also for operands whose memory a result takes over: an element is read
    /// before it is written. `None` for other types and spread elements.
    pub fn f32_pointer(&self, row: Row, elements: Range<usize>) -> Option<*const f32> {
        assert!(elements.start < elements.end && elements.end <= self.layout.ne[0], "outside the row");
        let packed = self.layout.dtype == DType::F32 && self.layout.rows_packed();
        packed.then(|| self.at(elements.start, row).cast())
    }

    #[inline]
    fn packed_row<T>(&self, dtype: DType, row: Row) -> Option<&[T]> {
        if self.layout.dtype != dtype || !self.layout.rows_packed() {
            return None;
        }
        if self.layout.ne[0] == 0 {
            return Some(&[]);
        }
        // SAFETY: the row is inside the span, packed, and of this type; layouts keep rows aligned. Nobody
        // writes it during the call, by the rule on `In`.
        Some(unsafe { slice::from_raw_parts(self.at(0, row).cast(), self.layout.ne[0]) })
    }

    /// `count` rows of packed `f32` that follow each other along axis 1 without gaps, as one slice; `None` for
    /// others. Not for operands whose memory a result takes over.
    pub fn f32_rows(&self, first: Row, count: usize) -> Option<&[f32]> {
        let size = self.layout.ne[0];
        let packed = self.layout.dtype == DType::F32 && self.layout.rows_packed();
        if !packed || (count > 1 && self.layout.nb[1] != size * size_of::<f32>()) {
            return None;
        }
        if size == 0 || count == 0 {
            return Some(&[]);
        }
        assert!(count <= self.layout.ne[1] && first[0] <= self.layout.ne[1] - count, "outside the tensor");
        // SAFETY: the rows are inside the span, packed and without gaps; layouts keep them aligned. Nobody writes
        // them during the call, by the rule on `In`.
        Some(unsafe { slice::from_raw_parts(self.at(0, first).cast(), count * size) })
    }

    /// The bytes of a row whose blocks (elements of plain types) are packed. Not for operands whose memory a
    /// result takes over.
    pub fn row_bytes(&self, row: Row) -> Option<&[u8]> {
        if !self.layout.rows_packed() {
            return None;
        }
        if self.layout.ne[0] == 0 {
            return Some(&[]);
        }
        // SAFETY: as in `packed_row`, without a type.
        Some(unsafe { slice::from_raw_parts(self.at(0, row), self.layout.row_bytes()) })
    }

    /// Copies elements `first..first + target.len()` of a row into `target` as `f32`, whatever the type and
    /// the stride; blocks are expanded. Types without arithmetic are refused by the kernels' support checks.
    #[inline]
    pub fn load(&self, row: Row, first: usize, target: &mut [f32]) {
        assert!(first + target.len() <= self.layout.ne[0], "elements outside the row");
        if target.is_empty() {
            return;
        }
        let start = self.at(0, row);
        let stride = self.layout.nb[0];
        // SAFETY: elements first..first + len of the row lie inside the span and are aligned.
        unsafe {
            match self.layout.dtype {
                DType::F32 if self.layout.rows_packed() => {
                    target.as_mut_ptr().copy_from_nonoverlapping(start.cast::<f32>().add(first), target.len())
                }
                DType::F32 => gather(start, first, stride, target, |v: f32| v),
                DType::F16 if self.layout.rows_packed() => {
                    let source = slice::from_raw_parts(start.cast::<f16>().add(first), target.len());
                    convert::f16_to_f32(source, target)
                }
                DType::F16 => gather(start, first, stride, target, f16::to_f32),
                DType::BF16 if self.layout.rows_packed() => {
                    let source = slice::from_raw_parts(start.cast::<bf16>().add(first), target.len());
                    convert::bf16_to_f32(source, target)
                }
                DType::BF16 => gather(start, first, stride, target, bf16::to_f32),
                DType::I32 => gather(start, first, stride, target, |v: i32| v as f32),
                DType::I64 => gather(start, first, stride, target, |v: i64| v as f32),
                DType::Q8_0 => {
                    let mut done = 0;
                    while done < target.len() {
                        let (block, inner) = ((first + done) / Q8_0_BLOCK, (first + done) % Q8_0_BLOCK);
                        let count = (Q8_0_BLOCK - inner).min(target.len() - done);
                        let block = start.add(block * stride);
                        let scale = f16::from_le_bytes(block.cast::<[u8; 2]>().read()).to_f32();
                        let quants = slice::from_raw_parts(block.add(2 + inner).cast::<i8>(), count);
                        for (value, &quant) in target[done..done + count].iter_mut().zip(quants) {
                            *value = scale * quant as f32;
                        }
                        done += count;
                    }
                }
                other => {
                    let format = Format::of(other)
                        .unwrap_or_else(|| panic!("{other} has no arithmetic; the support check refuses it"));
                    expand(format, start, first, stride, target);
                }
            }
        }
    }

    /// One element of an I32 or I64 operand.
    pub fn int(&self, first: usize, row: Row) -> i64 {
        assert!(first < self.layout.ne[0], "element {first} outside the row");
        let element = self.at(first, row);
        // SAFETY: the element lies inside the span and is aligned.
        unsafe {
            match self.layout.dtype {
                DType::I32 => element.cast::<i32>().read() as i64,
                DType::I64 => element.cast::<i64>().read(),
                other => panic!("{other} is no integer type; the support check refuses it"),
            }
        }
    }

    /// A pointer to one block (one element of plain types), readable for the type's block size.
    pub fn block(&self, block: usize, row: Row) -> *const u8 {
        assert!(block < self.layout.row_blocks(), "block {block} outside the row");
        self.at(block, row)
    }
}

/// Elements of blocks, `stride` bytes apart, from number `first` on.
///
/// # Safety
/// The blocks of these elements are readable.
unsafe fn expand(format: &Format, start: *const u8, first: usize, stride: usize, target: &mut [f32]) {
    let len = format.block_len();
    // SAFETY: a block with one of the elements, by the function's contract.
    let block = |index| unsafe { slice::from_raw_parts(start.add(index * stride), format.block_bytes()) };
    let mut values = [0.0; BLOCK_LEN_MAX];
    let mut done = 0;
    while done < target.len() {
        let (index, inner) = ((first + done) / len, (first + done) % len);
        let count = (len - inner).min(target.len() - done);
        let part = &mut target[done..done + count];
        if count == len {
            format.decode(block(index), part);
        } else {
            format.decode(block(index), &mut values[..len]);
            part.copy_from_slice(&values[inner..inner + count]);
        }
        done += count;
    }
}

/// # Safety
/// `target.len()` elements of type `T`, `stride` bytes apart and starting at number `first`, are readable.
#[inline(always)]
unsafe fn gather<T: Copy>(
    start: *const u8,
    first: usize,
    stride: usize,
    target: &mut [f32],
    convert: impl Fn(T) -> f32,
) {
    if stride == size_of::<T>() {
        for (i, value) in target.iter_mut().enumerate() {
            // SAFETY: by the function's contract.
            *value = convert(unsafe { start.cast::<T>().add(first + i).read() });
        }
    } else {
        for (i, value) in target.iter_mut().enumerate() {
            // SAFETY: by the function's contract.
            *value = convert(unsafe { start.add((first + i) * stride).cast::<T>().read() });
        }
    }
}

impl Out {
    /// A result at `start`.
    ///
    /// # Safety
    /// `layout.span_bytes()` bytes from `start` stay writable while the call lives, `start` is aligned for
    /// the element type, and no two elements of `layout` share a byte.
    pub unsafe fn new(start: *mut u8, layout: Layout) -> Out {
        Out { start, layout }
    }

    /// Where the elements lie.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Element counts, innermost axis first.
    pub fn ne(&self) -> [usize; 4] {
        self.layout.ne
    }

    /// The same elements with axis `i` called `axes[i]`. Plain types only.
    ///
    /// Panics when `axes` is no permutation.
    pub fn permuted(&self, axes: [usize; 4]) -> Out {
        // The same bytes stay within reach, so the promise of `new` still holds.
        Out { start: self.start, layout: self.layout.permute(axes).expect("a permutation of a plain type") }
    }

    /// The same elements as one row, when they follow each other in index order.
    pub fn flat(&self) -> Option<Out> {
        Some(Out { start: self.start, layout: flat_layout(&self.layout)? })
    }

    #[inline]
    fn at(&self, first: usize, row: Row) -> *mut u8 {
        let index = [first, row[0], row[1], row[2]];
        assert!((1..4).all(|axis| index[axis] < self.layout.ne[axis]), "row {row:?} outside {}", self.layout);
        // SAFETY: an index inside the shape lies inside the span, which is writable.
        unsafe { self.start.add(self.layout.offset(index)) }
    }

    /// A row of packed `f32`. Results that an op computes are packed `f32` unless its shape rule says
    /// otherwise.
    ///
    /// # Safety
    /// No other worker touches these elements until the next barrier, and this worker holds no other
    /// reference to them.
    #[expect(clippy::mut_from_ref, reason = "workers share a result and write disjoint parts of it")]
    pub unsafe fn f32_row(&self, row: Row, elements: Range<usize>) -> &mut [f32] {
        assert!(
            self.layout.dtype == DType::F32 && self.layout.rows_packed(),
            "{} is not packed f32",
            self.layout
        );
        assert!(elements.start <= elements.end && elements.end <= self.layout.ne[0], "outside the row");
        if elements.is_empty() {
            return &mut [];
        }
        // SAFETY: inside the span, aligned, and unshared by the function's contract.
        unsafe { slice::from_raw_parts_mut(self.at(elements.start, row).cast(), elements.len()) }
    }

    /// Some elements of a row of packed `f32`; `None` for other types and spread elements.
    pub fn f32_pointer(&self, row: Row, elements: Range<usize>) -> Option<*mut f32> {
        assert!(elements.start < elements.end && elements.end <= self.layout.ne[0], "outside the row");
        let packed = self.layout.dtype == DType::F32 && self.layout.rows_packed();
        packed.then(|| self.at(elements.start, row).cast())
    }

    /// `count` rows of packed `f32` that follow each other along axis 1 without gaps, as one slice.
    ///
    /// # Safety
    /// As [`Out::f32_row`].
    #[expect(clippy::mut_from_ref, reason = "workers share a result and write disjoint parts of it")]
    pub unsafe fn f32_rows(&self, first: Row, count: usize) -> Option<&mut [f32]> {
        let size = self.layout.ne[0];
        let packed = self.layout.dtype == DType::F32 && self.layout.rows_packed();
        if !packed || (count > 1 && self.layout.nb[1] != size * size_of::<f32>()) {
            return None;
        }
        if size == 0 || count == 0 {
            return Some(&mut []);
        }
        assert!(count <= self.layout.ne[1] && first[0] <= self.layout.ne[1] - count, "outside the tensor");
        // SAFETY: inside the span, aligned and without gaps; unshared by the function's contract.
        Some(unsafe { slice::from_raw_parts_mut(self.at(0, first).cast(), count * size) })
    }

    /// The bytes of blocks (elements of plain types) of a packed row.
    ///
    /// # Safety
    /// As [`Out::f32_row`].
    #[expect(clippy::mut_from_ref, reason = "workers share a result and write disjoint parts of it")]
    pub unsafe fn row_bytes(&self, row: Row, blocks: Range<usize>) -> &mut [u8] {
        assert!(self.layout.rows_packed(), "{} has no packed rows", self.layout);
        assert!(blocks.start <= blocks.end && blocks.end <= self.layout.row_blocks(), "outside the row");
        if blocks.is_empty() {
            return &mut [];
        }
        let bytes = blocks.len() * self.layout.dtype.block_bytes();
        // SAFETY: inside the span, and unshared by the function's contract.
        unsafe { slice::from_raw_parts_mut(self.at(blocks.start, row), bytes) }
    }

    /// Writes `values` to elements `first..` of a row, rounded to the result's float type, whatever the
    /// stride.
    ///
    /// # Safety
    /// No other worker touches these elements until the next barrier.
    #[inline]
    pub unsafe fn store(&self, row: Row, first: usize, values: &[f32]) {
        assert!(first + values.len() <= self.layout.ne[0], "elements outside the row");
        if values.is_empty() {
            return;
        }
        let start = self.at(0, row);
        let stride = self.layout.nb[0];
        // SAFETY: the elements lie inside the span, aligned; unshared by the function's contract.
        unsafe {
            match self.layout.dtype {
                DType::F32 if self.layout.rows_packed() => {
                    start.cast::<f32>().add(first).copy_from_nonoverlapping(values.as_ptr(), values.len())
                }
                DType::F32 => scatter(start, first, stride, values, |v| v),
                DType::F16 if self.layout.rows_packed() => {
                    let target = slice::from_raw_parts_mut(start.cast::<f16>().add(first), values.len());
                    convert::f32_to_f16(values, target)
                }
                DType::F16 => scatter(start, first, stride, values, f16::from_f32),
                DType::BF16 => scatter(start, first, stride, values, bf16::from_f32),
                other => panic!("{other} is no float result; the support check refuses it"),
            }
        }
    }

    /// Writes one element of an I32 or I64 result.
    ///
    /// # Safety
    /// No other worker touches this element until the next barrier.
    pub unsafe fn set_int(&self, first: usize, row: Row, value: i64) {
        assert!(first < self.layout.ne[0], "element {first} outside the row");
        let element = self.at(first, row);
        // SAFETY: inside the span, aligned; unshared by the function's contract.
        unsafe {
            match self.layout.dtype {
                DType::I32 => element.cast::<i32>().write(value as i32),
                DType::I64 => element.cast::<i64>().write(value),
                other => panic!("{other} is no integer result; the support check refuses it"),
            }
        }
    }

    /// A pointer to one block (one element of plain types), writable for the type's block size.
    pub fn block(&self, block: usize, row: Row) -> *mut u8 {
        assert!(block < self.layout.row_blocks(), "block {block} outside the row");
        self.at(block, row)
    }
}

/// # Safety
/// `values.len()` elements of type `T`, `stride` bytes apart and starting at number `first`, are writable.
#[inline(always)]
unsafe fn scatter<T>(
    start: *mut u8,
    first: usize,
    stride: usize,
    values: &[f32],
    convert: impl Fn(f32) -> T,
) {
    for (i, &value) in values.iter().enumerate() {
        // SAFETY: by the function's contract.
        unsafe { start.add((first + i) * stride).cast::<T>().write(convert(value)) }
    }
}

impl Shared {
    /// Scratch at `start`.
    ///
    /// # Safety
    /// `bytes` bytes from `start` stay writable while the call lives, aligned to 64.
    pub unsafe fn new(start: *mut u8, bytes: usize) -> Shared {
        Shared { start, bytes }
    }

    /// Bytes `range` for reading.
    ///
    /// # Safety
    /// They were written, and nobody writes them until the next barrier.
    pub unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.bytes, "outside the scratch");
        // SAFETY: inside the scratch; the rest by the function's contract.
        unsafe { slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    /// The `f64` numbers with these places, as [`Shared::set_f64`] wrote them.
    ///
    /// # Safety
    /// As [`Shared::bytes`].
    pub unsafe fn f64s(&self, places: Range<usize>) -> impl Iterator<Item = f64> {
        // SAFETY: by the function's contract.
        let bytes = unsafe { self.bytes(places.start * 8..places.end * 8) };
        bytes.as_chunks().0.iter().map(|&number| f64::from_le_bytes(number))
    }

    /// Writes one `f64`; `place` counts numbers.
    ///
    /// # Safety
    /// As [`Shared::bytes_mut`].
    pub unsafe fn set_f64(&self, place: usize, number: f64) {
        // SAFETY: by the function's contract.
        unsafe { self.bytes_mut(place * 8..place * 8 + 8) }.copy_from_slice(&number.to_le_bytes());
    }

    /// Bytes `range` for writing.
    ///
    /// # Safety
    /// Nobody else touches them until the next barrier, and this worker holds no other reference to them.
    #[expect(clippy::mut_from_ref, reason = "workers share a result and write disjoint parts of it")]
    pub unsafe fn bytes_mut(&self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.bytes, "outside the scratch");
        // SAFETY: inside the scratch; the rest by the function's contract.
        unsafe { slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

fn flat_layout(layout: &Layout) -> Option<Layout> {
    if !layout.is_contiguous() {
        return None;
    }
    Layout::contiguous(layout.dtype, &[layout.elements()]).ok()
}

/// Number of rows that have elements: rows without are no work, and their number may be past counting.
pub fn row_count(layout: &Layout) -> usize {
    if layout.is_empty() { 0 } else { layout.rows() }
}

/// This worker's pieces of the rows of `layout`, each of up to `piece` elements: the row, the first element
/// and how many. Long rows are shared out too.
pub fn pieces_of(
    layout: &Layout,
    piece: usize,
    worker: &Worker<'_>,
) -> impl Iterator<Item = (Row, usize, usize)> {
    let layout = *layout;
    let per_row = layout.ne[0].div_ceil(piece);
    worker.share(row_count(&layout) * per_row).map(move |unit| {
        let first = unit % per_row * piece;
        (layout.row_index(unit / per_row), first, piece.min(layout.ne[0] - first))
    })
}

/// The rows of `layout` that belong to `worker`, as indices on axes 1, 2 and 3.
pub fn rows_of(layout: &Layout, worker: &Worker<'_>) -> impl Iterator<Item = Row> {
    let layout = *layout;
    worker.share(row_count(&layout)).map(move |row| layout.row_index(row))
}

/// Changes each of the worker's rows of operand 0 in scratch, and stores it as the same row of result 0: one pass over
/// memory, whatever the type and stride, and safe where the result takes the operand's memory over. `change` gets the
/// row's indices, its values, and the scratch behind them.
pub fn change_rows(
    call: &Call,
    worker: &Worker<'_>,
    own: &mut [f32],
    mut change: impl FnMut(Row, &mut [f32], &mut [f32]),
) {
    let (x, y) = (&call.inputs[0], &call.results[0]);
    if x.layout().is_empty() {
        return;
    }
    let (values, rest) = own.split_at_mut(x.ne()[0]);
    for row in rows_of(x.layout(), worker) {
        x.load(row, 0, values);
        change(row, values, rest);
        // SAFETY: rows are shared out among the workers, each to one.
        unsafe { y.store(row, 0, values) }
    }
}

/// The indices in a source that is repeated along whole axes to cover a row of a larger tensor.
pub fn repeat_row(row: Row, ne: [usize; 4]) -> Row {
    [row[0] % ne[1], row[1] % ne[2], row[2] % ne[3]]
}
