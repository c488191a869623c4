//! A node of the host's graph, read safely.

use crate::abi::{self, AXES, FLAG_COMPUTE, FLAG_OUTPUT, PARAMS, SOURCES};
use ssmgraph::backend::Declined;
use ssmgraph_ops::{DType, Layout, LayoutError};

/// A tensor of the host, which keeps it while a call of the host is answered.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a>(&'a abi::Tensor);

impl<'a> Tensor<'a> {
    /// # Safety
    /// `pointer` is null or points to a tensor that lives and is not written for `'a`, and so do its operands.
    pub unsafe fn new(pointer: *const abi::Tensor) -> Option<Tensor<'a>> {
        // SAFETY: the caller's promise.
        unsafe { pointer.as_ref() }.map(Tensor)
    }

    /// What computes it.
    pub fn op(self) -> i32 {
        self.0.op
    }

    /// Whether the host wants it computed.
    pub fn is_wanted(self) -> bool {
        self.0.flags & FLAG_COMPUTE != 0
    }

    /// Whether somebody outside the graph reads it.
    pub fn is_output(self) -> bool {
        self.0.flags & FLAG_OUTPUT != 0
    }

    /// Its address in the host, which tells it from others.
    pub fn pointer(self) -> *const abi::Tensor {
        self.0
    }

    /// An operand that the op cannot do without.
    ///
    /// Errors: it is absent.
    pub fn source(self, index: usize) -> Result<Tensor<'a>, Declined> {
        self.optional(index).ok_or_else(|| Declined(format!("operand {index} is absent")))
    }

    /// An operand that may be absent.
    pub fn optional(self, index: usize) -> Option<Tensor<'a>> {
        // SAFETY: operands live as long as the node, as `new` was promised.
        self.0.sources.get(index).and_then(|&pointer| unsafe { Tensor::new(pointer) })
    }

    /// The tensor in whose bytes it lies, unless it has bytes of its own.
    pub fn view_source(self) -> Option<Tensor<'a>> {
        // SAFETY: it lives as long as the view, as `new` was promised of operands, of which ggml makes it one.
        unsafe { Tensor::new(self.0.view_source) }
    }

    /// Every operand that is there.
    pub fn sources(self) -> impl Iterator<Item = Tensor<'a>> {
        (0..SOURCES).filter_map(move |index| self.optional(index))
    }

    /// Which operands are there, one bit for each.
    pub fn present(self) -> u16 {
        const { assert!(SOURCES <= u16::BITS as usize) };
        let bits =
            self.0.sources.iter().enumerate().map(|(index, source)| u16::from(!source.is_null()) << index);
        bits.sum()
    }

    /// All parameters.
    pub fn params(self) -> &'a [i32; PARAMS] {
        &self.0.params
    }

    /// A parameter that is an integer.
    pub fn int(self, index: usize) -> i32 {
        self.0.params[index]
    }

    /// A parameter that is a float.
    pub fn float(self, index: usize) -> f32 {
        f32::from_bits(self.0.params[index] as u32)
    }

    /// The number of its element type.
    pub fn type_number(self) -> i32 {
        self.0.dtype
    }

    /// Its counts, as the host has them.
    pub fn counts(self) -> [i64; AXES] {
        self.0.ne
    }

    /// Its strides, as the host has them.
    pub fn strides(self) -> [usize; AXES] {
        self.0.nb
    }

    /// Its buffer; null before allocation.
    pub fn buffer(self) -> *mut abi::Buffer {
        self.0.buffer
    }

    /// Address of element 0; 0 before allocation.
    pub fn address(self) -> usize {
        self.0.data as usize
    }

    /// Its name.
    pub fn name(self) -> String {
        let bytes = self.0.name.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0);
        String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
    }

    /// Its layout. Axes of one element take the stride of a packed tensor, so that layouts that mean the same are the
    /// same.
    ///
    /// Errors: an element type that the library does not know, sizes that overflow.
    pub fn layout(self) -> Result<Layout, Declined> {
        let number = self.0.dtype;
        let dtype = u32::try_from(number).ok().and_then(DType::from_gguf_id);
        let dtype = dtype.ok_or_else(|| Declined(format!("element type {number} is unknown")))?;
        let mut ne = [0; AXES];
        for (count, &given) in ne.iter_mut().zip(&self.0.ne) {
            *count = usize::try_from(given).map_err(|_| Declined(format!("{given} elements on an axis")))?;
        }
        // What could not exist without its strides of zero is no tensor either: sizes below are products of counts.
        let refused = |error: LayoutError| Declined(error.0);
        Layout::contiguous(dtype, &ne).map_err(refused)?;
        let mut nb = self.0.nb;
        let mut packed = dtype.block_bytes();
        for axis in 0..AXES {
            if ne[axis] == 1 && axis > 0 {
                nb[axis] = packed;
            }
            let blocks = if axis == 0 { ne[0] / dtype.block_len() } else { ne[axis] };
            packed = nb[axis].saturating_mul(blocks);
        }
        Layout::strided(dtype, ne, nb).map_err(refused)
    }
}
