//! Tensors of a case as inputs of a graph, laid out in memory as the case says.

use crate::graph::{Graph, GraphError, Tensor};
use crate::session::{Session, SessionError};
use ssmgraph_ops::{DType, HostTensor, Layout, LayoutError};

/// An operand inside a buffer.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    /// All bytes of the buffer, as a flat tensor.
    pub storage: HostTensor,
    /// Offset of element 0, in bytes.
    pub offset_bytes: usize,
    /// Where the elements lie from there.
    pub layout: Layout,
}

/// An input leaf and what it is to be set to.
pub(super) type Bound = (Tensor, HostTensor);

/// A flat tensor over bytes, whole blocks of which there must be.
///
/// Errors: as [`Layout::contiguous`].
pub(super) fn flat(dtype: DType, bytes: Vec<u8>) -> Result<HostTensor, LayoutError> {
    let elements = bytes.len() / dtype.block_bytes() * dtype.block_len();
    HostTensor::from_bytes(Layout::contiguous(dtype, &[elements])?, bytes)
}

impl Stored {
    /// A tensor with the bytes around its elements.
    pub(super) fn of(tensor: &HostTensor) -> Result<Stored, LayoutError> {
        let layout = *tensor.layout();
        let bytes = tensor.bytes()[..layout.span_bytes()].to_vec();
        Ok(Stored { storage: flat(layout.dtype, bytes)?, offset_bytes: 0, layout })
    }

    /// Adds the operand to a graph: a packed one as an input, any other as a view of an input that holds the
    /// whole buffer.
    ///
    /// Errors: strides that reach past the buffer.
    pub(super) fn bind(
        &self,
        graph: &mut Graph,
        name: &str,
        bound: &mut Vec<Bound>,
    ) -> Result<Tensor, GraphError> {
        let dtype = self.layout.dtype;
        let packed =
            Layout::contiguous(dtype, &self.layout.ne).map_err(|error| GraphError::leaf(name, error))?;
        let whole = self.storage.bytes().len() == packed.span_bytes();
        if self.layout == packed && self.offset_bytes == 0 && whole {
            let leaf = graph.input(name, dtype, &self.layout.ne)?;
            let values = HostTensor::from_bytes(packed, self.storage.bytes().to_vec());
            bound.push((leaf, values.map_err(|error| GraphError::leaf(name, error))?));
            return Ok(leaf);
        }
        let leaf = graph.input(name, dtype, &self.storage.ne()[..1])?;
        bound.push((leaf, self.storage.clone()));
        graph.view(leaf, self.layout.ne, self.layout.nb, self.offset_bytes)
    }
}

/// Sets what was bound.
///
/// Errors: as [`Session::set_tensor`].
pub(super) fn set_all(session: &mut Session, bound: &[Bound]) -> Result<(), SessionError> {
    bound.iter().try_for_each(|(leaf, values)| session.set_tensor(*leaf, values))
}
