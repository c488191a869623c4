//! A stream of work on a device: what ggml calls a backend. It keeps plans, so that a graph that comes again is not
//! planned again.

use crate::abi;
use crate::device::{Device, Runtime};
use crate::guard::guarded;
use crate::host::{Level, log};
use crate::memory::{Keeper, tell_of_ends};
use crate::plan::{Buffers, Graph, Plan, PlanError};
use ssmgraph::backend::{BackendError, Buffer};
use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex, PoisonError};

/// Most plans that a stream keeps; a batch of another shape makes another.
const PLANS_MAX: usize = 32;

static GUID: [u8; 16] = *b"ssmgraph-backend";

/// What the context of each of our backends points to.
struct Stream {
    device: &'static Device,
    runtime: Runtime,
    kept: Arc<Mutex<Kept>>,
    counts: abi::Counts,
}

/// What a stream remembers from graph to graph.
#[derive(Default)]
struct Kept {
    buffers: Buffers,
    /// The one used last comes last.
    plans: Vec<Plan>,
}

impl Keeper for Mutex<Kept> {
    fn forget(&self, buffer: &Arc<dyn Buffer>) {
        self.lock().unwrap_or_else(PoisonError::into_inner).plans.retain(|plan| !plan.holds(buffer));
    }
}

/// A stream on a device, for the host to free.
pub fn open(device: &'static Device) -> *mut abi::Backend {
    let kept = Arc::new(Mutex::new(Kept::default()));
    let keeper: Arc<dyn Keeper> = kept.clone();
    tell_of_ends(Arc::downgrade(&keeper));
    let runtime = device.runtime().for_stream(None);
    let stream = Stream { device, runtime, kept, counts: abi::Counts::default() };
    Box::into_raw(Box::new(abi::Backend {
        guid: &GUID,
        table: abi::BackendTable {
            get_name,
            free,
            copies: [None; 6],
            plans: [None; 4],
            graph_compute,
            events: [None; 3],
        },
        device: (&raw const device.entry).cast_mut(),
        context: Box::into_raw(Box::new(stream)).cast(),
    }))
}

impl Stream {
    fn compute(&mut self, graph: Graph<'_>) -> Result<(), PlanError> {
        let Kept { buffers, plans } = &mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut plan = match plans.iter().rposition(|plan| plan.is_of(graph)) {
            Some(index) => plans.remove(index),
            None => {
                self.counts.planned += 1;
                if plans.len() == PLANS_MAX {
                    plans.remove(0);
                    buffers.clear();
                }
                Plan::new(graph, &self.runtime, buffers)?
            }
        };
        plan.adopt(graph);
        let done = plan.run();
        self.counts.nodes += graph.len() as u64;
        self.counts.steps += plan.step_count as u64;
        plans.push(plan);
        Ok(done?)
    }

    /// Takes so many threads from now on. Hosts say so before each batch: what does not change costs nothing.
    fn set_threads(&mut self, threads: usize) {
        if self.runtime.takes_threads(threads) {
            return;
        }
        self.runtime = self.device.runtime().for_stream(Some(threads));
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).plans.clear();
    }
}

/// # Safety
/// `backend` is one of ours, and the host makes one call on it at a time.
unsafe fn stream<'a>(backend: *mut abi::Backend) -> &'a mut Stream {
    // SAFETY: the context of our backends is a stream, until `free`.
    unsafe { &mut *(*backend).context.cast::<Stream>() }
}

unsafe extern "C" fn get_name(backend: *mut abi::Backend) -> *const c_char {
    // SAFETY: ggml calls a backend's table with that backend.
    unsafe { stream(backend) }.device.name().as_ptr()
}

unsafe extern "C" fn free(backend: *mut abi::Backend) {
    guarded("free", (), || {
        // SAFETY: `open` made both boxes; ggml frees a backend once.
        let stream = unsafe {
            let stream = Box::from_raw((*backend).context.cast::<Stream>());
            drop(Box::from_raw(backend));
            stream
        };
        let abi::Counts { nodes, steps, planned } = stream.counts;
        let name = stream.device.name().to_string_lossy();
        let text =
            format!("{name} computed {nodes} nodes of graphs in {steps} steps, planned {planned} graphs");
        let is_wanted = std::env::var("SSMGRAPH_GGML_LOG").as_deref() == Ok("1");
        log(if is_wanted { Level::Info } else { Level::Debug }, &text);
    });
}

unsafe extern "C" fn graph_compute(backend: *mut abi::Backend, graph: *mut abi::Graph) -> c_int {
    guarded("graph_compute", abi::STATUS_FAILED, || {
        // SAFETY: ggml calls a backend's table with that backend, one call at a time, and keeps the graph meanwhile.
        let (stream, graph) = unsafe { (stream(backend), Graph::new(graph)) };
        let Some(graph) = graph else { return abi::STATUS_FAILED };
        let Err(error) = stream.compute(graph) else { return abi::STATUS_SUCCESS };
        log(Level::Error, &format!("{}: {error}", stream.device.name().to_string_lossy()));
        match error {
            PlanError::Backend(BackendError::OutOfMemory { .. }) => abi::STATUS_ALLOC_FAILED,
            _ => abi::STATUS_FAILED,
        }
    })
}

/// `ggml_backend_set_n_threads`, which hosts ask the registry for.
pub unsafe extern "C" fn set_n_threads(backend: *mut abi::Backend, threads: c_int) {
    guarded("set_n_threads", (), || {
        // SAFETY: the host passes a backend of this registry.
        let stream = unsafe { stream(backend) };
        stream.set_threads(usize::try_from(threads).unwrap_or(1).max(1));
    });
}

/// `ssmgraph_counts`, which hosts may ask the registry for: what a backend has done so far.
pub unsafe extern "C" fn counts(backend: *mut abi::Backend, answer: *mut abi::Counts) {
    // SAFETY: the host passes a backend of this registry, and a place for the answer.
    unsafe { answer.write(stream(backend).counts) }
}
