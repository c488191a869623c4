//! Backends: where ops run.
//!
//! A backend answers what it supports, owns buffers, and turns a list of steps into a program. Writing one
//! is an afternoon's work; `EagerBackend` makes it less where every op is a function on host tensors.
//! `graph-tests` checks any backend with the project's conformance suite.

mod cpu;
pub mod cuda;
mod eager;

pub use cpu::CpuBackend;
pub use cuda::CudaBackend;
pub use eager::{Eager, EagerBackend, Reference};
pub use ssmgraph_kernels::{Declined, Forms, Memory, Numerics, Observer, Variant};

use ssmgraph_ops::{Layout, Op, OpError};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// Bytes owned by somebody else, shared without a copy: a mapped file.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Why a backend failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// An op met a value it cannot accept.
    #[error(transparent)]
    Op(#[from] OpError),
    /// Memory was refused.
    #[error("{backend}: out of memory, {bytes} bytes were refused")]
    OutOfMemory {
        /// Name of the backend.
        backend: String,
        /// Size of the request.
        bytes: usize,
    },
    /// Anything else, as a sentence.
    #[error("{backend}: {what}")]
    Other {
        /// Name of the backend.
        backend: String,
        /// What happened.
        what: String,
    },
}

/// Memory of a backend.
pub trait Buffer: Send + Sync {
    /// Size in bytes.
    fn len(&self) -> usize;
    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Copies bytes in, starting at `offset`.
    ///
    /// Errors: a range outside, read-only memory, a failed copy.
    fn write(&self, offset: usize, source: &[u8]) -> Result<(), BackendError>;
    /// Copies bytes out, starting at `offset`.
    ///
    /// Errors: a range outside, a failed copy.
    fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), BackendError>;
    /// The buffer itself, for its backend.
    fn as_any(&self) -> &dyn Any;
}

/// A tensor in a buffer.
#[derive(Clone)]
pub struct Slice {
    /// The buffer.
    pub buffer: Arc<dyn Buffer>,
    /// Offset of element 0, in bytes.
    pub offset_bytes: usize,
    /// Where the elements lie from there.
    pub layout: Layout,
}

/// One op of a segment.
#[derive(Clone)]
pub struct Step {
    /// The op.
    pub op: Op,
    /// Operands in the order of the op's table.
    pub inputs: Vec<Slice>,
    /// Results in the op's order; the result of an update lies where operand 0 lies.
    pub results: Vec<Slice>,
}

/// A compiled list of steps.
pub trait Program: Send {
    /// Runs all steps in order.
    ///
    /// Errors: the first step's that fails.
    fn run(&mut self, observer: Option<&dyn Observer>) -> Result<(), BackendError>;

    /// What the session's report should say about how the program runs, one sentence each; nothing when it
    /// runs as it should.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A place where ops run.
pub trait Backend: Send + Sync {
    /// Name in reports, such as `cpu`.
    fn name(&self) -> &str;

    /// Whether the backend computes `op` rightly for operands of these layouts, which the op's shape rule
    /// has accepted. The answer must be the truth: the conformance suite runs every "yes".
    ///
    /// Errors: the reason why not.
    fn supports(&self, op: &Op, inputs: &[Layout]) -> Result<(), Declined>;

    /// The named forms in which the backend can run an op, the exact default first; none where there is only
    /// one.
    fn variants(&self, _op: &Op) -> &'static [Variant] {
        &[]
    }

    /// The form in which the backend would run an op on operands of these layouts, where it has several.
    fn variant(&self, _op: &Op, _inputs: &[Layout]) -> Option<&'static Variant> {
        None
    }

    /// The same device, running each op that has several forms in the one with this name and declining what that
    /// form does not cover; `None` from a backend without named forms.
    fn in_variant(&self, _name: &'static str) -> Option<Arc<dyn Backend>> {
        None
    }

    /// New memory, all zero. `bytes` may be 0.
    ///
    /// Errors: memory was refused.
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Buffer>, BackendError>;

    /// Read-only memory with the contents of a range of host bytes, and the offset where they start in it;
    /// without a copy where the backend can. The offset is a multiple of 16 unless the bytes are shared.
    ///
    /// Errors: memory was refused, a failed copy.
    fn adopt(
        &self,
        bytes: &SharedBytes,
        range: Range<usize>,
    ) -> Result<(Arc<dyn Buffer>, usize), BackendError>;

    /// Prepares steps, each of which the backend has said it supports, over buffers it has made.
    ///
    /// Errors: a step that cannot be prepared.
    fn compile(&self, steps: Vec<Step>) -> Result<Box<dyn Program>, BackendError>;
}

/// Backends in order of preference. A node runs on the first that supports it.
#[derive(Clone)]
pub struct Devices {
    backends: Vec<Arc<dyn Backend>>,
}

impl Devices {
    /// The CPU, with the reference backend behind it for ops that have no kernel.
    pub fn cpu(threads: Option<usize>) -> Devices {
        Devices::new(vec![Arc::new(CpuBackend::new(threads))])
    }

    /// The reference backend alone.
    pub fn reference() -> Devices {
        Devices { backends: vec![Arc::new(Eager::new(Reference))] }
    }

    /// The given backends, in order of preference, with the reference backend behind them: no op is without
    /// a place to run. [`crate::Session::report`] tells what ran where and why.
    pub fn new(mut backends: Vec<Arc<dyn Backend>>) -> Devices {
        if !backends.iter().any(|backend| backend.name() == eager::REFERENCE) {
            backends.push(Arc::new(Eager::new(Reference)));
        }
        Devices { backends }
    }

    /// The backends.
    pub fn backends(&self) -> &[Arc<dyn Backend>] {
        &self.backends
    }
}

/// A range check that every buffer needs.
pub(crate) fn check_range(
    backend: &str,
    offset: usize,
    bytes: usize,
    len: usize,
) -> Result<(), BackendError> {
    if offset.checked_add(bytes).is_some_and(|end| end <= len) {
        return Ok(());
    }
    Err(BackendError::Other {
        backend: backend.to_owned(),
        what: format!("bytes {offset}..+{bytes} lie outside a buffer of {len}"),
    })
}
