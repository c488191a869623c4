//! Where the elements of a tensor lie: ggml's `ne` (element counts) and `nb` (byte strides).
//!
//! Element `(i0, i1, i2, i3)` lies `Σ i·nb` bytes after the first. For block formats `nb[0]` is the size
//! of a block and `i0` counts blocks. Views, permutations, broadcasts (stride 0) and size-1 axes with
//! odd strides are all layouts. Every product and sum is checked: a layout that exists fits `usize`.

use crate::{DType, LayoutError};
use std::fmt;

/// Number of axes of every tensor; unused axes have one element.
pub const AXES: usize = 4;

/// Element type, element counts and byte strides of a tensor, innermost axis first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Element type.
    pub dtype: DType,
    /// Element counts, innermost axis first. Zero is legal.
    pub ne: [usize; AXES],
    /// Byte strides, innermost axis first.
    pub nb: [usize; AXES],
}

/// Fills a list of up to four counts with ones.
///
/// Errors: more than four axes.
pub fn full_shape(ne: &[usize]) -> Result<[usize; AXES], LayoutError> {
    if ne.len() > AXES {
        return Err(LayoutError(format!("{} axes, at most {AXES} are possible", ne.len())));
    }
    let mut full = [1; AXES];
    full[..ne.len()].copy_from_slice(ne);
    Ok(full)
}

impl Layout {
    /// A packed layout: each axis directly follows the one inside it. `ne` has one to four counts.
    ///
    /// Errors: too many axes, a row that does not fill whole blocks, a size past `isize::MAX` bytes.
    pub fn contiguous(dtype: DType, ne: &[usize]) -> Result<Layout, LayoutError> {
        let ne = full_shape(ne)?;
        let blocks = blocks_of(dtype, ne[0])?;
        let mut nb = [dtype.block_bytes(); AXES];
        nb[1] = mul(dtype, ne, dtype.block_bytes(), blocks)?;
        nb[2] = mul(dtype, ne, nb[1], ne[1])?;
        nb[3] = mul(dtype, ne, nb[2], ne[2])?;
        let layout = Layout { dtype, ne, nb };
        layout.check()?;
        Ok(layout)
    }

    /// A layout with the given strides in bytes.
    ///
    /// Errors: a row that does not fill whole blocks, a block format whose `nb[0]` is not the block size,
    /// strides that are not a multiple of the element's size, a size past `isize::MAX` bytes, here or packed.
    pub fn strided(dtype: DType, ne: [usize; AXES], nb: [usize; AXES]) -> Result<Layout, LayoutError> {
        let layout = Layout { dtype, ne, nb };
        layout.check()?;
        Ok(layout)
    }

    fn check(&self) -> Result<(), LayoutError> {
        blocks_of(self.dtype, self.ne[0])?;
        if self.dtype.is_block() && self.nb[0] != self.dtype.block_bytes() {
            return Err(LayoutError(format!(
                "{self}: nb[0] = {}, but {} blocks have {} bytes and cannot be spread",
                self.nb[0],
                self.dtype,
                self.dtype.block_bytes()
            )));
        }
        let align = self.align();
        if let Some(axis) = (0..AXES).find(|&axis| !self.nb[axis].is_multiple_of(align)) {
            return Err(LayoutError(format!(
                "{self}: nb[{axis}] = {} is not a multiple of {align}, the alignment of {}",
                self.nb[axis], self.dtype
            )));
        }
        // A packed copy must be addressable, also of a broadcast; so must counts beside a zero, whose products are row
        // counts.
        let mut packed = self.dtype.block_bytes().max(self.dtype.block_len());
        for (axis, &count) in self.ne.iter().enumerate() {
            let count = if axis == 0 { count / self.dtype.block_len() } else { count };
            packed = packed.checked_mul(count.max(1)).ok_or_else(|| too_large(self.dtype, self.ne))?;
        }
        let span = self.checked_span().ok_or_else(|| too_large(self.dtype, self.ne))?;
        if packed.max(span) > isize::MAX as usize {
            return Err(too_large(self.dtype, self.ne));
        }
        Ok(())
    }

    fn checked_span(&self) -> Option<usize> {
        if self.ne.contains(&0) {
            return Some(0);
        }
        let blocks = self.ne[0] / self.dtype.block_len();
        let mut last = (blocks - 1).checked_mul(self.nb[0])?;
        for axis in 1..AXES {
            last = last.checked_add((self.ne[axis] - 1).checked_mul(self.nb[axis])?)?;
        }
        last.checked_add(self.dtype.block_bytes())
    }

    /// Alignment in bytes that every element of this type needs.
    pub fn align(&self) -> usize {
        match self.dtype {
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 | DType::I16 => 2,
            DType::I64 | DType::F64 => 8,
            _ => 1,
        }
    }

    /// Number of elements.
    #[inline]
    pub fn elements(&self) -> usize {
        self.ne.iter().product()
    }

    /// Number of rows: elements of all axes but the innermost.
    #[inline]
    pub fn rows(&self) -> usize {
        self.ne[1] * self.ne[2] * self.ne[3]
    }

    /// Whether there is no element at all.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ne.contains(&0)
    }

    /// Blocks in one row; elements for plain types.
    #[inline]
    pub fn row_blocks(&self) -> usize {
        self.ne[0] / self.dtype.block_len()
    }

    /// The shape counted in blocks: `ne` for plain types.
    pub fn blocks(&self) -> [usize; AXES] {
        [self.row_blocks(), self.ne[1], self.ne[2], self.ne[3]]
    }

    /// Bytes of one row when its elements are packed.
    pub fn row_bytes(&self) -> usize {
        self.row_blocks() * self.dtype.block_bytes()
    }

    /// Bytes from the first byte of the first element to the last byte of the last one; 0 when empty.
    pub fn span_bytes(&self) -> usize {
        self.checked_span().expect("checked when the layout was made")
    }

    /// Byte offset of an element; for block formats `index[0]` counts blocks.
    #[inline]
    pub fn offset(&self, index: [usize; AXES]) -> usize {
        index.iter().zip(&self.nb).map(|(i, stride)| i * stride).sum()
    }

    /// Byte offset of the row with this running number, rows counted with axis 1 fastest.
    #[inline]
    pub fn row_offset(&self, row: usize) -> usize {
        let [i1, i2, i3] = self.row_index(row);
        i1 * self.nb[1] + i2 * self.nb[2] + i3 * self.nb[3]
    }

    /// Indices on axes 1, 2 and 3 of the row with this running number.
    #[inline]
    pub fn row_index(&self, row: usize) -> [usize; 3] {
        [row % self.ne[1], row / self.ne[1] % self.ne[2], row / (self.ne[1] * self.ne[2])]
    }

    /// Whether elements of a row follow each other without gaps. A row of one element always does.
    #[inline]
    pub fn rows_packed(&self) -> bool {
        self.nb[0] == self.dtype.block_bytes() || self.row_blocks() <= 1
    }

    /// Whether all elements follow each other in index order; strides of size-1 axes do not count.
    pub fn is_contiguous(&self) -> bool {
        if self.is_empty() {
            return true;
        }
        let mut packed = self.dtype.block_bytes();
        for axis in 0..AXES {
            let count = if axis == 0 { self.row_blocks() } else { self.ne[axis] };
            if count != 1 && self.nb[axis] != packed {
                return false;
            }
            packed *= count;
        }
        true
    }

    /// Whether two different indices may share a byte, as in a broadcast. Such a layout cannot be written.
    /// May answer true for exotic layouts that do not overlap, never the other way round.
    pub fn may_overlap(&self) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut axes: Vec<(usize, usize)> = (0..AXES)
            .map(|axis| (self.nb[axis], if axis == 0 { self.row_blocks() } else { self.ne[axis] }))
            .filter(|&(_, count)| count > 1)
            .collect();
        axes.sort_unstable();
        let mut covered = self.dtype.block_bytes();
        for (stride, count) in axes {
            if stride < covered {
                return true;
            }
            covered += stride * (count - 1);
        }
        false
    }

    /// The packed layout with the same type and shape.
    pub fn to_contiguous(&self) -> Layout {
        Layout::contiguous(self.dtype, &self.ne).expect("`check` has found that the packed size fits")
    }

    /// The packed layout with the same shape and another type.
    ///
    /// Errors: as [`Layout::contiguous`].
    pub fn to_dtype(&self, dtype: DType) -> Result<Layout, LayoutError> {
        Layout::contiguous(dtype, &self.ne)
    }

    /// Axis `i` of this layout becomes axis `axes[i]` of the result.
    ///
    /// Errors: `axes` that is no permutation, a block format whose innermost axis would move.
    pub fn permute(&self, axes: [usize; AXES]) -> Result<Layout, LayoutError> {
        let mut seen = [false; AXES];
        for &axis in &axes {
            if axis >= AXES || std::mem::replace(&mut seen[axis], true) {
                return Err(LayoutError(format!("axes {axes:?} are no permutation of 0, 1, 2, 3")));
            }
        }
        if self.dtype.is_block() && axes[0] != 0 {
            return Err(LayoutError(format!(
                "axis 0 of {} holds whole blocks and cannot become axis {}",
                self.dtype, axes[0]
            )));
        }
        let (mut ne, mut nb) = ([0; AXES], [0; AXES]);
        for (from, &to) in axes.iter().enumerate() {
            (ne[to], nb[to]) = (self.ne[from], self.nb[from]);
        }
        Layout::strided(self.dtype, ne, nb)
    }

    /// The same elements, in index order, under another shape; strides stay valid without a copy.
    ///
    /// Errors: another number of elements; axes that would have to be merged but are not packed.
    pub fn reshape(&self, ne: &[usize]) -> Result<Layout, LayoutError> {
        let target = Layout::contiguous(self.dtype, ne)?;
        if target.elements() != self.elements() {
            return Err(LayoutError(format!(
                "{} elements cannot take the shape {:?} of {}",
                self.elements(),
                target.ne,
                target.elements()
            )));
        }
        if self.is_contiguous() {
            return Ok(target);
        }
        let strides = self.merged_strides(&target).ok_or_else(|| {
            LayoutError(format!(
                "{self} is not packed enough for the shape {:?}; take cont() of it first",
                target.ne
            ))
        })?;
        Layout::strided(self.dtype, target.ne, strides)
    }

    /// Strides that give `target`'s shape over this layout's elements, if such strides exist: axes are
    /// taken in groups with equal products, and each group of ours must be packed within itself.
    fn merged_strides(&self, target: &Layout) -> Option<[usize; AXES]> {
        let block = self.dtype.block_len();
        let count = |ne: &[usize; AXES], axis: usize| if axis == 0 { ne[0] / block } else { ne[axis] };
        let ours: Vec<(usize, usize)> =
            (0..AXES).map(|a| (count(&self.ne, a), self.nb[a])).filter(|&(n, _)| n != 1).collect();
        let mut strides = target.nb;
        let (mut our_next, mut axis) = (0, 0);
        while axis < AXES {
            if count(&target.ne, axis) == 1 {
                axis += 1;
                continue;
            }
            let (mut have, stride) = *ours.get(our_next)?;
            our_next += 1;
            let (mut want, mut step) = (count(&target.ne, axis), stride);
            strides[axis] = step;
            step *= want;
            axis += 1;
            while have != want {
                if have < want {
                    let &(more, next_stride) = ours.get(our_next)?;
                    if next_stride != stride * have {
                        return None;
                    }
                    have *= more;
                    our_next += 1;
                } else {
                    if axis == AXES {
                        return None;
                    }
                    strides[axis] = step;
                    want *= count(&target.ne, axis);
                    step *= count(&target.ne, axis);
                    axis += 1;
                }
            }
        }
        Some(strides)
    }

    /// Whether this shape can be stretched to `to` by repeating whole axes: ggml's `can_repeat`.
    pub fn repeats_into(&self, to: &Layout) -> bool {
        if self.is_empty() {
            return to.is_empty();
        }
        (0..AXES).all(|axis| to.ne[axis].is_multiple_of(self.ne[axis]))
    }
}

fn blocks_of(dtype: DType, count: usize) -> Result<usize, LayoutError> {
    if !count.is_multiple_of(dtype.block_len()) {
        return Err(LayoutError(format!(
            "ne[0] = {count} is not a multiple of {}, the block length of {dtype}",
            dtype.block_len()
        )));
    }
    Ok(count / dtype.block_len())
}

fn mul(dtype: DType, ne: [usize; AXES], a: usize, b: usize) -> Result<usize, LayoutError> {
    a.checked_mul(b).ok_or_else(|| too_large(dtype, ne))
}

fn too_large(dtype: DType, ne: [usize; AXES]) -> LayoutError {
    LayoutError(format!("{dtype} {ne:?} has more bytes than can be addressed"))
}

/// `f32[64, 7]` for packed layouts, `f32[64, 7]:nb[4, 512, 3584, 3584]` for others. Outer axes of one
/// element are left out of the shape.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes = self.ne.iter().rposition(|&n| n != 1).map_or(1, |last| last + 1);
        write!(f, "{}{:?}", self.dtype, &self.ne[..axes])?;
        if self.dtype.block_len() == 0
            || !self.ne[0].is_multiple_of(self.dtype.block_len())
            || !self.is_contiguous()
        {
            write!(f, ":nb{:?}", self.nb)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32_layout(ne: &[usize]) -> Layout {
        Layout::contiguous(DType::F32, ne).unwrap()
    }

    #[test]
    fn a_broadcast_without_a_packed_copy_is_refused() {
        let error = Layout::strided(DType::F32, [1 << 31, 1 << 31, 1, 1], [0; AXES]).unwrap_err();
        assert!(error.0.contains("more bytes than can be addressed"), "{error}");
    }

    #[test]
    fn contiguous_strides_count_bytes() {
        let layout = f32_layout(&[3, 5, 2]);
        assert_eq!(layout.nb, [4, 12, 60, 120]);
        assert_eq!(layout.span_bytes(), 120);
        let blocks = Layout::contiguous(DType::Q8_0, &[64, 3]).unwrap();
        assert_eq!(blocks.nb, [34, 68, 204, 204]);
    }

    #[test]
    fn sizes_that_do_not_fit_are_errors() {
        assert!(Layout::contiguous(DType::F32, &[1 << 62, 4]).is_err());
        assert!(Layout::contiguous(DType::F32, &[1 << 61]).is_err());
        assert!(Layout::contiguous(DType::Q8_0, &[33]).is_err());
        assert!(Layout::strided(DType::F32, [2, 2, 1, 1], [4, usize::MAX - 3, 8, 8]).is_err());
        // An empty tensor may carry any strides, but its counts must still be addressable.
        assert!(Layout::strided(DType::F32, [0, 1 << 40, 1 << 20, 1], [4, 0, 0, 0]).is_ok());
        assert!(Layout::strided(DType::F32, [0, 1 << 40, 1 << 40, 1], [4, 0, 0, 0]).is_err());
    }

    #[test]
    fn large_views_keep_64_bit_offsets() {
        let gib = 1usize << 30;
        let layout = Layout::strided(DType::F32, [4, 3, 1, 1], [4, 8 * gib, 24 * gib, 24 * gib]).unwrap();
        assert_eq!(layout.offset([3, 2, 0, 0]), 16 * gib + 12);
        assert_eq!(f32_layout(&[1 << 20, 1 << 12]).elements(), 1 << 32);
        assert_eq!(f32_layout(&[1 << 20, 1 << 12]).span_bytes(), 1 << 34);
    }

    #[test]
    fn reshape_merges_only_packed_axes() {
        let layout = f32_layout(&[4, 6, 5]);
        assert_eq!(layout.reshape(&[24, 5]).unwrap().nb, [4, 96, 480, 480]);
        let swapped = layout.permute([0, 2, 1, 3]).unwrap();
        assert!(swapped.reshape(&[20, 6]).is_err());
        assert_eq!(swapped.reshape(&[2, 2, 5, 6]).unwrap().nb, [4, 8, 96, 16]);
        let gapped = Layout::strided(DType::F32, [4, 6, 1, 1], [4, 32, 192, 192]).unwrap();
        assert_eq!(gapped.reshape(&[4, 2, 3]).unwrap().nb[..3], [4, 32, 64]);
        assert!(gapped.reshape(&[24]).is_err());
    }

    #[test]
    fn overlap_is_seen() {
        assert!(Layout::strided(DType::F32, [4, 3, 1, 1], [4, 0, 0, 0]).unwrap().may_overlap());
        assert!(Layout::strided(DType::F32, [4, 3, 1, 1], [4, 8, 0, 0]).unwrap().may_overlap());
        assert!(!Layout::strided(DType::F32, [4, 3, 1, 1], [12, 4, 0, 0]).unwrap().may_overlap());
        assert!(!f32_layout(&[4, 3]).may_overlap());
    }

    #[test]
    fn permute_sends_axis_to_position() {
        let layout = f32_layout(&[2, 3, 5, 7]).permute([1, 2, 0, 3]).unwrap();
        assert_eq!(layout.ne, [5, 2, 3, 7]);
        assert!(f32_layout(&[2]).permute([0, 0, 1, 2]).is_err());
        // One block per row and as many rows as elements: the swapped layout would look like a valid one.
        assert!(Layout::contiguous(DType::Q8_0, &[32, 32]).unwrap().permute([1, 0, 2, 3]).is_err());
    }
}
