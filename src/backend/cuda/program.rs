//! Segments on the device: run once launch by launch, captured then, and replayed as one graph from there on.

use super::blas::{Blas, Product};
use super::driver::{CudaError, Function, Pinned, Stream};
use super::memory::{Block, CudaBuffer, lock};
use super::replay::{Replay, Topology};
use super::{Device, backend_error};
use crate::backend::{BackendError, Buffer, Forms, Observer, Program, Slice, Step};
use smallvec::SmallVec;
use ssmgraph_kernels::cuda::{
    CudaCall, CudaKernel, DeviceTensor, FAULT_BYTES, FaultRecord, Guard, Launch, variant_for,
};
use ssmgraph_kernels::{Extent, check_call, cuda_kernel};
use ssmgraph_ops::{Layout, Op};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, MutexGuard};

/// A compiled segment.
pub struct CudaProgram {
    device: Arc<Device>,
    /// Before the stream, which it must not outlive.
    blas: Option<Blas>,
    stream: Stream,
    work: Vec<Work>,
    /// For each step its op and its share of the work.
    steps: Vec<(Op, Range<usize>)>,
    faults: Option<Faults>,
    replay: Replay,
    topology: Topology,
    /// What launches point into, kept alive.
    _scratch: Block,
    buffers: Arc<Buffers>,
}

/// The buffers of a program's steps.
struct Buffers {
    /// Each once, in the order in which they are held during a run.
    writable: Vec<Arc<dyn Buffer>>,
    /// Kept alive.
    _read_only: Vec<Arc<dyn Buffer>>,
}

impl Buffers {
    fn of(steps: &[Step]) -> Buffers {
        let slices = steps.iter().flat_map(|step| step.inputs.iter().chain(&step.results));
        let by_address: BTreeMap<u64, Arc<dyn Buffer>> = slices
            .filter_map(|slice| Some((cuda_buffer(&slice.buffer)?.address(), slice.buffer.clone())))
            .collect();
        let (read_only, writable) = by_address
            .into_values()
            .partition(|buffer| cuda_buffer(buffer).is_some_and(CudaBuffer::is_read_only));
        Buffers { writable, _read_only: read_only }
    }

    fn hold(&self) -> Vec<MutexGuard<'_, ()>> {
        self.writable.iter().filter_map(cuda_buffer).map(CudaBuffer::hold).collect()
    }
}

fn cuda_buffer(buffer: &Arc<dyn Buffer>) -> Option<&CudaBuffer> {
    buffer.as_any().downcast_ref()
}

/// What is queued for a step.
enum Work {
    Kernel(Box<Bound>),
    Product(Product),
}

impl Work {
    fn name(&self) -> &'static str {
        match self {
            Work::Kernel(bound) => bound.launch.entry,
            Work::Product(_) => "cublas",
        }
    }
}

/// A launch with its kernel.
struct Bound {
    function: Function,
    launch: Launch,
    /// The parameter, aligned as a struct of pointers must be.
    parameter: Vec<u64>,
}

/// The guards of a step.
type Guards = SmallVec<[Guard; 2]>;

/// The fault records of a program's guarded steps, on the device and as copied back at the end of a run.
struct Faults {
    memory: Block,
    host: Pinned,
    /// For each record its step and guards.
    guards: Vec<(usize, Guards)>,
}

impl Faults {
    /// Empty records for the guarded steps; `None` when there are none.
    fn new(device: &Arc<Device>, stream: &Stream, steps: &[Placed<'_>]) -> Result<Option<Faults>, CudaError> {
        let guards = steps.iter().enumerate().filter_map(|(index, step)| Some((index, step.guards()?)));
        let guards: Vec<(usize, Guards)> = guards.collect();
        if guards.is_empty() {
            return Ok(None);
        }
        let bytes = guards.len() * FAULT_BYTES;
        let (memory, host) = (Block::new(device, bytes)?, Pinned::new(&device.context, bytes)?);
        let faults = Faults { memory, host, guards };
        // The block may be one of a dropped buffer whose upload is still queued.
        lock(&device.copies).let_wait(stream)?;
        faults.clear(stream)?;
        Ok(Some(faults))
    }

    fn bytes(&self) -> usize {
        self.guards.len() * FAULT_BYTES
    }

    /// Address of a step's record; 0 when the step is not guarded.
    fn record_of(&self, step: usize) -> u64 {
        let index = self.guards.iter().position(|(guarded, _)| *guarded == step);
        index.map_or(0, |index| self.memory.address() + (index * FAULT_BYTES) as u64)
    }

    /// Queues the copy to the host.
    fn download(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both sides are this long; the program that owns them waits before it reads or drops them.
        unsafe { stream.download(self.memory.address(), &self.host, self.bytes()) }
    }

    /// Makes all records empty.
    fn clear(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: the memory is this long and waited for.
        unsafe { stream.zero(self.memory.address(), self.bytes())? };
        stream.synchronize()
    }

    /// The first step that met an id outside its table, in the records as last copied.
    fn first(&self) -> Option<(FaultRecord, usize, Guard)> {
        let records = self.host.bytes().chunks_exact(FAULT_BYTES).map(FaultRecord::read);
        records.zip(&self.guards).find_map(|(record, (step, guards))| {
            let record = record?;
            Some((record, *step, *guards.get(record.guard)?))
        })
    }
}

/// A step with its addresses.
struct Placed<'a> {
    op: &'a Op,
    kernel: &'a dyn CudaKernel,
    variant: usize,
    inputs: Vec<DeviceTensor>,
    results: Vec<DeviceTensor>,
}

impl Placed<'_> {
    fn launches(&self, scratch: u64, fault: u64) -> Vec<Launch> {
        let call =
            CudaCall { inputs: &self.inputs, results: &self.results, scratch, fault, variant: self.variant };
        self.kernel.launches(&call)
    }

    fn guards(&self) -> Option<Guards> {
        self.launches(0, 0).into_iter().map(|launch| launch.guards).find(|guards| !guards.is_empty())
    }

    fn scratch_bytes(&self) -> usize {
        let layouts = |tensors: &[DeviceTensor]| tensors.iter().map(|t| t.layout).collect::<Vec<Layout>>();
        self.kernel.scratch_bytes(&layouts(&self.inputs), &layouts(&self.results))
    }
}

impl CudaProgram {
    /// Prepares steps: everything is allocated and loaded here, so that runs do neither.
    ///
    /// Errors: a step that is not sound or has no kernel, memory that is refused, the driver's.
    pub fn new(device: &Arc<Device>, steps: &[Step], forms: Forms) -> Result<CudaProgram, BackendError> {
        let placed =
            steps.iter().map(|step| place(device, step, forms)).collect::<Result<Vec<_>, BackendError>>()?;
        let cuda = |error| backend_error(&device.name, error, 0);
        device.context.enter().map_err(cuda)?;
        let scratch_bytes = placed.iter().map(Placed::scratch_bytes).max().unwrap_or(0);
        let scratch = Block::new(device, scratch_bytes)
            .map_err(|error| backend_error(&device.name, error, scratch_bytes))?;
        let stream = Stream::new(&device.context).map_err(cuda)?;
        let faults = Faults::new(device, &stream, &placed).map_err(cuda)?;
        let blas = if forms.is_fast() { Blas::new(device, &stream).map_err(cuda)? } else { None };
        let (mut work, mut ranges) = (Vec::new(), Vec::new());
        for (index, step) in placed.iter().enumerate() {
            let start = work.len();
            let fault = faults.as_ref().map_or(0, |faults| faults.record_of(index));
            match blas.as_ref().and_then(|_| Product::of(step.op, &step.inputs, &step.results)) {
                Some(product) => work.push(Work::Product(product)),
                None => {
                    for launch in step.launches(scratch.address(), fault) {
                        work.push(Work::Kernel(Box::new(Bound::new(device, launch).map_err(cuda)?)));
                    }
                }
            }
            ranges.push((step.op.clone(), start..work.len()));
        }
        Ok(CudaProgram {
            device: device.clone(),
            blas,
            stream,
            topology: Topology { entries: work.iter().map(Work::name).collect(), faults: faults.is_some() },
            work,
            steps: ranges,
            faults,
            replay: Replay::Cold,
            _scratch: scratch,
            buffers: Arc::new(Buffers::of(steps)),
        })
    }

    /// Queues some of the work.
    fn queue(&self, range: Range<usize>) -> Result<(), CudaError> {
        for work in &self.work[range] {
            // SAFETY: `check_call` found the places of the step inside buffers that the program keeps alive,
            // as it does the scratch and the fault records; `run` holds the buffers and waits for the end. The
            // length of a kernel's parameter was compared with what the kernel takes.
            let queued = unsafe {
                match (work, &self.blas) {
                    (Work::Kernel(bound), _) => {
                        let Launch { grid, block, shared_bytes, .. } = bound.launch;
                        self.stream.launch(bound.function, grid, block, shared_bytes, &bound.parameter)
                    }
                    (Work::Product(product), Some(blas)) => blas.multiply(product),
                    (Work::Product(_), None) => unreachable!("products are made only with a handle"),
                }
            };
            queued.map_err(|mut error| {
                error.reason = format!("{}: {}", work.name(), error.reason);
                error
            })?;
        }
        Ok(())
    }

    /// Queues everything, and the copy of the fault records to the host.
    fn queue_all(&self) -> Result<(), CudaError> {
        self.queue(0..self.work.len())?;
        self.faults.as_ref().map_or(Ok(()), |faults| faults.download(&self.stream))
    }

    /// Queues a run in the way that is due.
    fn queue_run(&mut self) -> Result<(), CudaError> {
        if matches!(self.replay, Replay::Warm) {
            let graph = self.stream.capture(|| self.queue_all());
            let executable =
                graph.and_then(|graph| lock(&self.device.executables).make(&self.topology, &graph));
            self.replay = match executable {
                Ok(executable) => Replay::Ready(executable),
                Err(error) => Replay::Eager(error.to_string()),
            };
        }
        if let Replay::Ready(executable) = &self.replay {
            // SAFETY: as in `queue`, of which the graph is a recording.
            return unsafe { self.stream.replay(executable) };
        }
        self.queue_all()?;
        if matches!(self.replay, Replay::Cold) {
            self.replay = Replay::Warm;
        }
        Ok(())
    }

    /// Queues and waits step by step, telling the observer.
    fn queue_observed(&self, observer: &dyn Observer) -> Result<(), CudaError> {
        for (index, (_, work)) in self.steps.iter().enumerate() {
            observer.begin(index);
            self.queue(work.clone())?;
            self.stream.synchronize()?;
            observer.end(index);
        }
        self.faults.as_ref().map_or(Ok(()), |faults| faults.download(&self.stream))
    }

    /// Clears the records after a run that failed otherwise: the next one must not answer for its ids.
    fn forget_faults(&self) {
        if let Some(faults) = &self.faults {
            // Fails only where the next run fails as well.
            let _ = faults.clear(&self.stream);
        }
    }

    /// The error of the first step that met an id outside its table, if one did.
    fn check_faults(&self) -> Result<(), BackendError> {
        let Some(faults) = &self.faults else { return Ok(()) };
        let Some((record, step, guard)) = faults.first() else { return Ok(()) };
        faults.clear(&self.stream).map_err(|error| backend_error(&self.device.name, error, 0))?;
        let op = &self.steps[step].0;
        match guard.check(op.name(), &record) {
            Err(error) => Err(BackendError::Op(error)),
            Ok(_) => Err(self.device.other(format!("{}: a kernel refused id {}", op.name(), record.id))),
        }
    }
}

impl Program for CudaProgram {
    fn run(&mut self, observer: Option<&dyn Observer>) -> Result<(), BackendError> {
        if self.work.is_empty() && observer.is_none() {
            return Ok(());
        }
        let (device, buffers) = (self.device.clone(), self.buffers.clone());
        let _held = buffers.hold();
        let cuda = |error| backend_error(&device.name, error, 0);
        device.context.enter().map_err(cuda)?;
        lock(&device.copies).let_wait(&self.stream).map_err(cuda)?;
        let queued = match observer {
            Some(observer) => self.queue_observed(observer),
            None => self.queue_run(),
        };
        // Waited for whatever happened: queued work uses memory that the caller may drop after an error.
        let done = self.stream.synchronize();
        queued.and(done).map_err(|error| {
            self.forget_faults();
            cuda(error)
        })?;
        self.check_faults()
    }

    fn notes(&self) -> Vec<String> {
        match &self.replay {
            Replay::Eager(why) => vec![format!("{}: runs launch by launch, since {why}", self.device.name)],
            Replay::Cold | Replay::Warm | Replay::Ready(_) => Vec::new(),
        }
    }
}

impl Drop for CudaProgram {
    fn drop(&mut self) {
        let _ = self.device.context.enter();
        let topology = Topology { entries: std::mem::take(&mut self.topology.entries), ..self.topology };
        if let Replay::Ready(executable) = std::mem::replace(&mut self.replay, Replay::Cold) {
            lock(&self.device.executables).keep(topology, executable);
        }
    }
}

/// A step with its addresses, checked.
fn place<'a>(device: &Arc<Device>, step: &'a Step, forms: Forms) -> Result<Placed<'a>, BackendError> {
    let refused = |what: String| device.other(format!("{}: {what}", step.op.name()));
    let located =
        |slices: &[Slice]| slices.iter().map(|slice| locate(device, slice)).collect::<Result<Vec<_>, _>>();
    let (inputs, results) = (located(&step.inputs)?, located(&step.results)?);
    check_call(&step.op, &inputs, &results).map_err(refused)?;
    let kernel =
        cuda_kernel(&step.op).ok_or_else(|| refused("there is no CUDA kernel for this op".into()))?;
    let layouts: Vec<Layout> = inputs.iter().map(|extent| extent.layout).collect();
    let variant = variant_for(kernel, forms, &layouts).map_err(|reason| refused(reason.to_string()))?;
    // Some kernels write results packed as the op's shape rule lays them out.
    let expected = step.op.infer(&layouts).map_err(BackendError::Op)?;
    if results.iter().zip(&expected).any(|(result, expected)| result.layout != *expected) {
        return Err(refused("a result has other strides than the op gives it".into()));
    }
    let tensors = |extents: Vec<Extent>| {
        let tensor = |extent: Extent| DeviceTensor {
            address: extent.buffer + extent.offset_bytes as u64,
            layout: extent.layout,
        };
        extents.into_iter().map(tensor).collect()
    };
    Ok(Placed { op: &step.op, kernel, variant, inputs: tensors(inputs), results: tensors(results) })
}

/// Where a slice lies on the device.
fn locate(device: &Arc<Device>, slice: &Slice) -> Result<Extent, BackendError> {
    let buffer = cuda_buffer(&slice.buffer).filter(|buffer| buffer.is_on(device));
    let buffer = buffer.ok_or_else(|| device.other("a step names a buffer of another backend"))?;
    Ok(Extent {
        buffer: buffer.address(),
        buffer_bytes: buffer.len(),
        writable: !buffer.is_read_only(),
        offset_bytes: slice.offset_bytes,
        layout: slice.layout,
    })
}

impl Bound {
    fn new(device: &Device, launch: Launch) -> Result<Bound, CudaError> {
        let function = lock(&device.modules).function(&device.context, &launch)?;
        let words = launch.params.bytes();
        let parameter = words
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")))
            .collect();
        Ok(Bound { function, launch, parameter })
    }
}
