//! Tensors in host memory for the reference functions: read and written one element at a time, as `f64`.
//! Slow and obvious on purpose.

use crate::quant::Format;
use crate::{DType, Layout, LayoutError, layout::AXES};
use half::{bf16, f16};

/// A readable tensor over borrowed bytes; the first byte belongs to element 0.
#[derive(Clone, Copy)]
pub struct View<'a> {
    layout: Layout,
    bytes: &'a [u8],
}

/// A writable tensor over borrowed bytes; the first byte belongs to element 0.
pub struct ViewMut<'a> {
    layout: Layout,
    bytes: &'a mut [u8],
}

/// A tensor that owns its bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    layout: Layout,
    bytes: Vec<u8>,
}

fn check_span(layout: &Layout, bytes: usize) -> Result<(), LayoutError> {
    if layout.span_bytes() > bytes {
        return Err(LayoutError(format!(
            "{layout} spans {} bytes, but {bytes} are there",
            layout.span_bytes()
        )));
    }
    Ok(())
}

/// Every index of a shape, innermost axis fastest.
pub fn indices(ne: [usize; AXES]) -> impl Iterator<Item = [usize; AXES]> {
    let total: usize = ne.iter().product();
    (0..total).map(move |i| {
        [i % ne[0], i / ne[0] % ne[1], i / (ne[0] * ne[1]) % ne[2], i / (ne[0] * ne[1] * ne[2])]
    })
}

/// The indices on axes 1, 2 and 3 of every row of a shape, axis 1 fastest; none when the rows have no
/// elements.
pub fn rows(ne: [usize; AXES]) -> impl Iterator<Item = [usize; 3]> {
    indices([ne[0].min(1), ne[1], ne[2], ne[3]]).map(|[_, i1, i2, i3]| [i1, i2, i3])
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("N bytes")
}

fn read(layout: &Layout, bytes: &[u8], index: [usize; AXES]) -> f64 {
    let [i0, i1, i2, i3] = index;
    let block = i0 / layout.dtype.block_len();
    let at = layout.offset([block, i1, i2, i3]);
    match layout.dtype {
        DType::F32 => f32::from_le_bytes(array(bytes, at)) as f64,
        DType::F16 => f16::from_le_bytes(array(bytes, at)).to_f64(),
        DType::BF16 => bf16::from_le_bytes(array(bytes, at)).to_f64(),
        DType::F64 => f64::from_le_bytes(array(bytes, at)),
        DType::I32 => i32::from_le_bytes(array(bytes, at)) as f64,
        DType::I64 => i64::from_le_bytes(array(bytes, at)) as f64,
        other => {
            let format = Format::of(other)
                .unwrap_or_else(|| panic!("{other} has a layout but no arithmetic; shape rules refuse it"));
            format.element(&bytes[at..at + format.block_bytes()], i0 % format.block_len())
        }
    }
}

/// The `f32` next to `value` towards zero, with its last bit set when it is not exact. Rounding that once
/// more to a 16-bit type gives the same as rounding `value` directly; going through the nearest `f32`, or
/// cutting the low bits off, would not.
fn round_to_odd(value: f64) -> f32 {
    let near = value as f32;
    if near.is_nan() || near.is_infinite() || near as f64 == value {
        return near;
    }
    let beyond = (near as f64).abs() > value.abs();
    f32::from_bits((near.to_bits() - u32::from(beyond)) | 1)
}

/// Reading shared by borrowed and owned tensors.
macro_rules! readable {
    () => {
        /// Where the elements lie.
        pub fn layout(&self) -> &Layout {
            &self.layout
        }

        /// Element counts, innermost axis first.
        pub fn ne(&self) -> [usize; AXES] {
            self.layout.ne
        }

        /// One element as a real number; blocks are expanded exactly.
        ///
        /// Panics when the index lies outside the shape, or when the type has no arithmetic, which the
        /// shape rules exclude.
        pub fn get(&self, index: [usize; AXES]) -> f64 {
            read(&self.layout, &self.bytes, index)
        }

        /// One element of an I32 or I64 tensor.
        ///
        /// Panics when the index lies outside the shape, or when the type is no integer.
        pub fn get_int(&self, index: [usize; AXES]) -> i64 {
            let at = self.layout.offset(index);
            match self.layout.dtype {
                DType::I32 => i32::from_le_bytes(array(&self.bytes, at)) as i64,
                DType::I64 => i64::from_le_bytes(array(&self.bytes, at)),
                other => panic!("{other} is no integer type; shape rules refuse it"),
            }
        }

        /// All elements in index order.
        pub fn to_f64(&self) -> Vec<f64> {
            indices(self.layout.ne).map(|index| self.get(index)).collect()
        }
    };
}

impl<'a> View<'a> {
    /// A tensor over `bytes`.
    ///
    /// Errors: the layout reaches past the end of `bytes`.
    pub fn new(layout: Layout, bytes: &'a [u8]) -> Result<View<'a>, LayoutError> {
        check_span(&layout, bytes.len())?;
        Ok(View { layout, bytes })
    }

    /// The bytes, the first belonging to element 0.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes of one block (one element for plain types).
    ///
    /// Panics when the index lies outside the shape.
    pub fn block(&self, index: [usize; AXES]) -> &'a [u8] {
        let at = self.layout.offset(index);
        &self.bytes[at..at + self.layout.dtype.block_bytes()]
    }

    /// The elements of a row, named by its indices on axes 1, 2 and 3, as real numbers; blocks are expanded exactly.
    ///
    /// Panics as [`View::get`] does.
    pub fn row(&self, [i1, i2, i3]: [usize; 3]) -> Vec<f64> {
        let Some(format) = Format::of(self.layout.dtype) else {
            return (0..self.layout.ne[0]).map(|i0| self.get([i0, i1, i2, i3])).collect();
        };
        if self.layout.rows_packed() && self.layout.ne[0] > 0 {
            let at = self.layout.offset([0, i1, i2, i3]);
            return format.exact(&self.bytes[at..at + self.layout.row_bytes()]);
        }
        let blocks = 0..self.layout.row_blocks();
        blocks.flat_map(|block| format.exact(self.block([block, i1, i2, i3]))).collect()
    }

    /// The same bytes under another layout, whose element 0 lies `offset_bytes` after the present one.
    ///
    /// Errors: the layout reaches past the end of the bytes.
    pub fn window(&self, layout: Layout, offset_bytes: usize) -> Result<View<'a>, LayoutError> {
        let bytes = self.bytes.get(offset_bytes..).ok_or_else(|| {
            LayoutError(format!("offset {offset_bytes}, but {} bytes are there", self.bytes.len()))
        })?;
        View::new(layout, bytes)
    }

    readable!();
}

impl<'a> ViewMut<'a> {
    /// A writable tensor over `bytes`.
    ///
    /// Errors: the layout reaches past the end of `bytes`, or two elements share a byte.
    pub fn new(layout: Layout, bytes: &'a mut [u8]) -> Result<ViewMut<'a>, LayoutError> {
        check_span(&layout, bytes.len())?;
        if layout.may_overlap() {
            return Err(LayoutError(format!("{layout} has elements that share bytes and cannot be written")));
        }
        Ok(ViewMut { layout, bytes })
    }

    readable!();

    /// Writes one element, rounded to the tensor's type (to nearest, ties to even; integers truncate).
    ///
    /// Panics when the index lies outside the shape, or when the type cannot be written one element at a
    /// time, which the shape rules exclude.
    pub fn set(&mut self, index: [usize; AXES], value: f64) {
        let at = self.layout.offset(index);
        let bytes = &mut *self.bytes;
        let mut put = |source: &[u8]| bytes[at..at + source.len()].copy_from_slice(source);
        match self.layout.dtype {
            DType::F32 => put(&(value as f32).to_le_bytes()),
            DType::F16 => put(&f16::from_f32(round_to_odd(value)).to_le_bytes()),
            DType::BF16 => put(&bf16::from_f32(round_to_odd(value)).to_le_bytes()),
            DType::F64 => put(&value.to_le_bytes()),
            DType::I32 => put(&(value as i32).to_le_bytes()),
            DType::I64 => put(&(value as i64).to_le_bytes()),
            other => panic!("{other} cannot be written element by element; shape rules refuse it"),
        }
    }

    /// Writes one element of an I32 or I64 tensor.
    ///
    /// Panics as [`ViewMut::set`] does.
    pub fn set_int(&mut self, index: [usize; AXES], value: i64) {
        let at = self.layout.offset(index);
        match self.layout.dtype {
            DType::I32 => self.bytes[at..at + 4].copy_from_slice(&(value as i32).to_le_bytes()),
            DType::I64 => self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes()),
            other => panic!("{other} is no integer type; shape rules refuse it"),
        }
    }

    /// The bytes of one block (one element for plain types), for copies between equal types.
    pub fn block_mut(&mut self, index: [usize; AXES]) -> &mut [u8] {
        let at = self.layout.offset(index);
        &mut self.bytes[at..at + self.layout.dtype.block_bytes()]
    }

    /// Copies every element of a tensor of the same type and shape, bit for bit.
    pub fn copy_from(&mut self, source: &View<'_>) {
        for index in indices(self.layout.blocks()) {
            self.block_mut(index).copy_from_slice(source.block(index));
        }
    }
}

impl HostTensor {
    /// A tensor whose bytes are all zero.
    pub fn zeros(layout: Layout) -> HostTensor {
        HostTensor { layout, bytes: vec![0; layout.span_bytes()] }
    }

    /// A tensor whose bytes, gaps between elements included, are all `byte`.
    pub fn filled(layout: Layout, byte: u8) -> HostTensor {
        HostTensor { layout, bytes: vec![byte; layout.span_bytes()] }
    }

    /// A tensor over bytes that already lie as `layout` says.
    ///
    /// Errors: the layout reaches past the end of `bytes`.
    pub fn from_bytes(layout: Layout, bytes: Vec<u8>) -> Result<HostTensor, LayoutError> {
        check_span(&layout, bytes.len())?;
        Ok(HostTensor { layout, bytes })
    }

    /// A packed F32 tensor.
    ///
    /// Errors: a shape that does not fit, or whose element count is not `values.len()`.
    pub fn from_f32(ne: &[usize], values: &[f32]) -> Result<HostTensor, LayoutError> {
        let layout = Layout::contiguous(DType::F32, ne)?;
        check_count(&layout, values.len())?;
        HostTensor::from_bytes(layout, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// A packed I32 tensor.
    ///
    /// Errors: a shape that does not fit, or whose element count is not `values.len()`.
    pub fn from_i32(ne: &[usize], values: &[i32]) -> Result<HostTensor, LayoutError> {
        let layout = Layout::contiguous(DType::I32, ne)?;
        check_count(&layout, values.len())?;
        HostTensor::from_bytes(layout, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    readable!();

    /// The bytes, gaps included; the first belongs to element 0.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The tensor for reading.
    pub fn view(&self) -> View<'_> {
        View { layout: self.layout, bytes: &self.bytes }
    }

    /// The tensor for writing.
    ///
    /// Errors: two elements share a byte.
    pub fn view_mut(&mut self) -> Result<ViewMut<'_>, LayoutError> {
        ViewMut::new(self.layout, &mut self.bytes)
    }
}

fn check_count(layout: &Layout, values: usize) -> Result<(), LayoutError> {
    if layout.elements() != values {
        return Err(LayoutError(format!("{layout} has {} elements, {values} were given", layout.elements())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bit_types_round_once() {
        let layout = Layout::contiguous(DType::F16, &[1]).unwrap();
        let mut tensor = HostTensor::zeros(layout);
        let mut set = |value: f64| {
            tensor.view_mut().unwrap().set([0; 4], value);
            tensor.get([0; 4])
        };
        // 1 + 2^-11 lies in the middle between 1 and the next f16, 1 + 2^-10: the tie goes to the even 1.
        let middle = 1.0 + 2f64.powi(-11);
        assert_eq!(set(middle), 1.0);
        // A little more must go up, even where an f32 cannot tell it from the middle.
        assert_eq!(set(middle + 2f64.powi(-40)), 1.0 + 2f64.powi(-10));
        assert_eq!(set(-middle - 2f64.powi(-23)), -1.0 - 2f64.powi(-10));
        assert_eq!(set(middle - 2f64.powi(-40)), 1.0);
        assert_eq!(set(65519.99), 65504.0);
        assert_eq!(set(65520.0), f64::INFINITY);
        assert!(set(f64::NAN).is_nan());
    }
}
