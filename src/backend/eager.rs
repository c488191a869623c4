//! Backends whose ops are plain functions on host tensors, one op after another.

use super::{
    Backend, BackendError, Buffer, Declined, Observer, Program, SharedBytes, Slice, Step, check_range,
};
use ssmgraph_ops::{HostTensor, Layout, Op, OpError, ViewMut};
use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

pub(super) const REFERENCE: &str = "reference";

/// From which ratio of bytes spanned to bytes used on a layout is packed before an op sees it.
const SPARSE_SHARE: usize = 1024;

/// A backend that computes each op from owned operands to owned results. Wrap it in [`Eager`].
pub trait EagerBackend: Send + Sync + 'static {
    /// Name in reports.
    fn name(&self) -> &str;

    /// Whether [`EagerBackend::compute`] is right for operands of these layouts.
    ///
    /// Errors: the reason why not.
    fn supports(&self, op: &Op, inputs: &[Layout]) -> Result<(), Declined>;

    /// The results of an op, each with the shape and type that the op's shape rule gives.
    ///
    /// Errors: a value the op cannot accept.
    fn compute(&self, op: &Op, inputs: &[HostTensor]) -> Result<Vec<HostTensor>, OpError>;
}

/// The definitions themselves: the reference functions of `ssmgraph-ops`. Slow and obvious.
#[derive(Clone, Copy, Debug)]
pub struct Reference;

impl EagerBackend for Reference {
    fn name(&self) -> &str {
        REFERENCE
    }

    fn supports(&self, _op: &Op, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn compute(&self, op: &Op, inputs: &[HostTensor]) -> Result<Vec<HostTensor>, OpError> {
        op.evaluate(inputs)
    }
}

/// Makes a [`Backend`] of an [`EagerBackend`].
pub struct Eager<T>(Arc<T>);

impl<T: EagerBackend> Eager<T> {
    /// The backend around `inner`.
    pub fn new(inner: T) -> Eager<T> {
        Eager(Arc::new(inner))
    }
}

/// Host bytes behind a lock, or shared with their owner.
enum HostBuffer {
    Owned(Mutex<Vec<u8>>),
    Shared(SharedBytes),
}

impl HostBuffer {
    fn with<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            HostBuffer::Owned(bytes) => f(&bytes.lock().unwrap_or_else(PoisonError::into_inner)),
            HostBuffer::Shared(bytes) => f((**bytes).as_ref()),
        }
    }
}

impl Buffer for HostBuffer {
    fn len(&self) -> usize {
        self.with(|bytes| bytes.len())
    }

    fn write(&self, offset: usize, source: &[u8]) -> Result<(), BackendError> {
        check_range("host", offset, source.len(), self.len())?;
        let HostBuffer::Owned(bytes) = self else {
            return Err(BackendError::Other {
                backend: "host".into(),
                what: "shared bytes are read-only".into(),
            });
        };
        let mut bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
        bytes[offset..offset + source.len()].copy_from_slice(source);
        Ok(())
    }

    fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), BackendError> {
        check_range("host", offset, target.len(), self.len())?;
        self.with(|bytes| target.copy_from_slice(&bytes[offset..offset + target.len()]));
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl<T: EagerBackend> Backend for Eager<T> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn supports(&self, op: &Op, inputs: &[Layout]) -> Result<(), Declined> {
        self.0.supports(op, inputs)
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Buffer>, BackendError> {
        let mut owned = Vec::new();
        owned
            .try_reserve_exact(bytes)
            .map_err(|_| BackendError::OutOfMemory { backend: self.0.name().into(), bytes })?;
        owned.resize(bytes, 0);
        Ok(Arc::new(HostBuffer::Owned(Mutex::new(owned))))
    }

    fn adopt(
        &self,
        bytes: &SharedBytes,
        range: Range<usize>,
    ) -> Result<(Arc<dyn Buffer>, usize), BackendError> {
        check_range(self.0.name(), range.start, range.len(), (**bytes).as_ref().len())?;
        Ok((Arc::new(HostBuffer::Shared(bytes.clone())), range.start))
    }

    fn compile(&self, steps: Vec<Step>) -> Result<Box<dyn Program>, BackendError> {
        Ok(Box::new(EagerProgram { inner: self.0.clone(), steps }))
    }
}

struct EagerProgram<T> {
    inner: Arc<T>,
    steps: Vec<Step>,
}

impl<T: EagerBackend> Program for EagerProgram<T> {
    fn run(&mut self, observer: Option<&dyn Observer>) -> Result<(), BackendError> {
        for (index, step) in self.steps.iter().enumerate() {
            if let Some(observer) = observer {
                observer.begin(index);
            }
            let inputs = step.inputs.iter().map(fetch).collect::<Result<Vec<_>, _>>()?;
            let results = self.inner.compute(&step.op, &inputs)?;
            for (slice, result) in step.results.iter().zip(&results) {
                store(self.inner.name(), &step.op, slice, result)?;
            }
            if let Some(observer) = observer {
                observer.end(index);
            }
        }
        Ok(())
    }
}

/// Copies a tensor out of a buffer. A layout that spans far more bytes than it has elements is packed on the
/// way, row by row, so that a few rows of a huge buffer cost a few rows.
fn fetch(slice: &Slice) -> Result<HostTensor, BackendError> {
    let other = |error: ssmgraph_ops::LayoutError| BackendError::Other {
        backend: "host".into(),
        what: error.to_string(),
    };
    let packed = slice.layout.to_contiguous();
    let sparse = slice.layout.span_bytes() / SPARSE_SHARE > packed.span_bytes();
    if sparse && slice.layout.rows_packed() {
        let mut bytes = vec![0; packed.span_bytes()];
        for (row, target) in bytes.chunks_exact_mut(packed.row_bytes().max(1)).enumerate() {
            slice.buffer.read(slice.offset_bytes + slice.layout.row_offset(row), target)?;
        }
        return HostTensor::from_bytes(packed, bytes).map_err(other);
    }
    let mut bytes = vec![0; slice.layout.span_bytes()];
    slice.buffer.read(slice.offset_bytes, &mut bytes)?;
    HostTensor::from_bytes(slice.layout, bytes).map_err(other)
}

/// Writes a result element by element, so that bytes between the elements of a strided result stay.
fn store(backend: &str, op: &Op, slice: &Slice, result: &HostTensor) -> Result<(), BackendError> {
    let other = |what: String| BackendError::Other { backend: backend.to_owned(), what };
    if result.ne() != slice.layout.ne || result.layout().dtype != slice.layout.dtype {
        return Err(other(format!("{} gave {}, expected {}", op.name(), result.layout(), slice.layout)));
    }
    let mut bytes = vec![0; slice.layout.span_bytes()];
    slice.buffer.read(slice.offset_bytes, &mut bytes)?;
    ViewMut::new(slice.layout, &mut bytes)
        .map_err(|error| other(error.to_string()))?
        .copy_from(&result.view());
    slice.buffer.write(slice.offset_bytes, &bytes)
}
