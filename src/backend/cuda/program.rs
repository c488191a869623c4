//! Segments on the device: run once launch by launch, captured then, and replayed as one graph from there on.

use super::driver::{CudaError, Function, Pinned, Stream};
use super::memory::{Block, CudaBuffer, lock};
use super::replay::{Replay, Topology};
use super::{Device, backend_error};
use crate::backend::{BackendError, Observer, Program, Slice, Step};
use ssmgraph_kernels::cuda::{CudaCall, DeviceTensor, FAULT_BYTES, FaultRecord, Launch};
use ssmgraph_kernels::{Place, check_places};
use ssmgraph_ops::shape::checked_row;
use ssmgraph_ops::{Layout, Op};
use std::sync::Arc;

/// A compiled segment.
pub struct CudaProgram {
    device: Arc<Device>,
    stream: Stream,
    launches: Vec<Bound>,
    /// For each step, the launches that it took.
    steps: Vec<std::ops::Range<usize>>,
    ops: Vec<Op>,
    faults: Option<Faults>,
    replay: Replay,
    _scratch: Block,
    /// The buffers that launches point into, kept alive.
    _buffers: Vec<Arc<dyn crate::backend::Buffer>>,
}

/// A launch with its kernel.
struct Bound {
    function: Function,
    launch: Launch,
    /// The parameter, aligned as a struct of pointers must be.
    parameter: Vec<u64>,
    step: usize,
}

/// The record that kernels fill when they meet an id outside a table, and its copy on the host.
struct Faults {
    memory: Block,
    host: Pinned,
}
