//! What a CPU kernel is, and a program of calls.

use crate::check::{Extent, check_call};
use crate::memory::{Memory, OutOfMemory};
use crate::mul_mat::panels::Format;
use crate::numerics::{Forms, Variant};
use crate::shared::call::{Call, In, Out, Shared};
use crate::shared::pool::{KernelPanic, Pool, WORKERS_MAX, Worker};
use once_cell::sync::OnceCell;
use ssmgraph_ops::{DType, Layout, Op, OpError};
use std::sync::{Arc, Mutex, PoisonError};

/// Why a kernel will not run a call; the op then runs elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Declined(pub String);

/// For kernels that compute with plain types and Q8_0 alone.
///
/// Errors: another block format, by name.
pub(crate) fn expect_plain_or_q8_0(inputs: &[Layout]) -> Result<(), Declined> {
    match inputs.iter().find(|input| input.dtype.is_block() && input.dtype != DType::Q8_0) {
        Some(input) => {
            Err(Declined(format!("{} is not computed with, q8_0 alone of the block formats is", input.dtype)))
        }
        None => Ok(()),
    }
}

/// Scratch memory that a call needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scratch {
    /// Bytes that all workers see.
    pub shared_bytes: usize,
    /// `f32` values of each worker's own.
    pub own_floats: usize,
}

impl Scratch {
    /// Room for one row of each operand on each worker; none when the first operand has no elements and so
    /// there is nothing to do.
    pub fn for_rows(inputs: &[Layout]) -> Scratch {
        let floats = || inputs.iter().map(|layout| layout.ne[0]).sum();
        Scratch { shared_bytes: 0, own_floats: if inputs[0].is_empty() { 0 } else { floats() } }
    }
}

/// One op on the CPU. Implemented by the op's attribute struct.
pub trait CpuKernel: Sync {
    /// Whether the kernel computes the right result for operands of these layouts, which the op's shape
    /// rule has accepted.
    ///
    /// Errors: the reason why not.
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined>;

    /// The forms of the kernel, the exact default first; none where there is only one.
    fn variants(&self) -> &'static [Variant] {
        &[]
    }

    /// Whether the form at this place of [`CpuKernel::variants`] computes a call that the kernel supports.
    ///
    /// Errors: the reason why not.
    fn covers(&self, _variant: usize, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    /// Rough cost of a call in element steps (about a nanosecond each on one core); decides whether a call
    /// is worth several workers.
    fn work(&self, inputs: &[Layout], results: &[Layout]) -> usize;

    /// Scratch that a call needs, in whichever form.
    fn scratch(&self, inputs: &[Layout], results: &[Layout]) -> Scratch;

    /// The panels that the kernel reads operand 0 in, where it is a weight that nobody can write; `None` from a kernel
    /// that reads all operands where they lie.
    fn packing(&self, _inputs: &[Layout]) -> Option<Format> {
        None
    }

    /// This worker's share of a call. Every worker of the run calls it; `own` is the worker's own scratch,
    /// undefined at the start.
    ///
    /// Errors: a value the op cannot accept, such as an index outside the table. A worker that returns an
    /// error still meets every barrier of the call.
    fn run(&self, call: &Call, worker: &Worker<'_>, own: &mut [f32]) -> Result<(), OpError>;
}

/// A tensor in memory.
#[derive(Clone, Debug)]
pub struct Place {
    /// The buffer.
    pub memory: Arc<Memory>,
    /// Offset of element 0, in bytes.
    pub offset_bytes: usize,
    /// Where the elements lie from there.
    pub layout: Layout,
}

/// One op with its operands and results in memory.
#[derive(Clone, Debug)]
pub struct Step {
    /// The op.
    pub op: Op,
    /// Operands in the order of the op's table.
    pub inputs: Vec<Place>,
    /// Results in the op's order; those of [`Storage::Update`] lie where operand 0 lies.
    pub results: Vec<Place>,
}

/// Why a program could not be made or run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// A step names memory outside its buffer, or memory that it must not share.
    #[error("step {step} ({op}): {what}")]
    Memory {
        /// Index of the step.
        step: usize,
        /// The op's name.
        op: &'static str,
        /// What is wrong.
        what: String,
    },
    /// There is no CPU kernel for a step, or it declined.
    #[error("{op}: {reason}")]
    Unsupported {
        /// The op's name.
        op: &'static str,
        /// Why.
        reason: Declined,
    },
    /// An op met a value it cannot accept.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The system refused memory.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// A kernel broke a promise.
    #[error(transparent)]
    Panic(#[from] KernelPanic),
}

/// Sees each step of a run, on the calling thread.
pub trait Observer: Sync {
    /// Before the step with this index.
    fn begin(&self, step: usize);
    /// After it.
    fn end(&self, step: usize);
}

/// Calls below this many element steps run on one worker: a barrier costs about as much.
const ALONE_WORK_MAX: usize = 20_000;

/// A list of calls over fixed memory, ready to run many times.
pub struct Program {
    calls: Vec<Bound>,
    /// Every writable buffer once, in address order: the order in which their locks are taken.
    memories: Vec<Arc<Memory>>,
    /// Buffers that nobody writes, kept alive: the calls point into them.
    _read_only: Vec<Arc<Memory>>,
    /// Scratch of each worker's own.
    own: Vec<Mutex<Vec<f32>>>,
    _shared: Arc<Memory>,
}

struct Bound {
    op: Op,
    call: Call,
    alone: bool,
}

impl Program {
    /// Checks every step and binds it to its memory, for runs on `workers` workers (1 to
    /// [`crate::WORKERS_MAX`]), in the forms that `forms` chooses.
    ///
    /// Weights that nobody can write are packed for the kernels that read them, unless they are for an earlier
    /// program.
    ///
    /// Errors: memory outside a buffer, results that overlap what they must not, an op without a kernel for
    /// these layouts, no memory for scratch or for the panels of a weight.
    pub fn new(steps: Vec<Step>, workers: usize, forms: Forms) -> Result<Program, ProgramError> {
        let mut scratch = Scratch::default();
        let mut variants = Vec::with_capacity(steps.len());
        for (index, step) in steps.iter().enumerate() {
            let fault = |what| ProgramError::Memory { step: index, op: step.op.name(), what };
            check_call(&step.op, &extents(&step.inputs), &extents(&step.results)).map_err(fault)?;
            let kernel = kernel_of(&step.op)?;
            let (inputs, results) = (layouts(&step.inputs), layouts(&step.results));
            let variant = variant_for(kernel, forms, &inputs);
            variants
                .push(variant.map_err(|reason| ProgramError::Unsupported { op: step.op.name(), reason })?);
            let needs = kernel.scratch(&inputs, &results);
            scratch.shared_bytes = scratch.shared_bytes.max(needs.shared_bytes);
            scratch.own_floats = scratch.own_floats.max(needs.own_floats);
        }
        let shared = Arc::new(Memory::zeroed(scratch.shared_bytes)?);
        let mut memories: Vec<Arc<Memory>> = steps
            .iter()
            .flat_map(|step| step.inputs.iter().chain(&step.results))
            .map(|p| p.memory.clone())
            .collect();
        memories.push(shared.clone());
        memories.sort_by_key(|memory| memory.start() as usize);
        memories.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let (memories, read_only) = memories.into_iter().partition(|memory| memory.is_writable());
        let calls = steps
            .into_iter()
            .zip(variants)
            .map(|(step, variant)| bind(step, variant, &shared, workers.clamp(1, WORKERS_MAX)))
            .collect::<Result<_, _>>()?;
        Ok(Program {
            calls,
            memories,
            _read_only: read_only,
            own: own_scratch(scratch.own_floats, workers.clamp(1, WORKERS_MAX))?,
            _shared: shared,
        })
    }

    /// Runs every step.
    ///
    /// Errors: the error of the first step that failed; later steps did not run.
    pub fn run(&self, observer: Option<&dyn Observer>) -> Result<(), ProgramError> {
        let _held = Held::all(&self.memories);
        let failure = Failure::default();
        // Others are not woken for a program of small calls.
        let workers = if self.calls.iter().all(|bound| bound.alone) { 1 } else { self.own.len() };
        Pool::global().run(workers, &|worker| {
            let mut own = self.own[worker.index].lock().unwrap_or_else(PoisonError::into_inner);
            self.walk(&worker, &mut own, observer.filter(|_| worker.index == 0), &failure);
        })?;
        match failure.first.into_inner() {
            Some((_, error)) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// One worker's way through the list.
    fn walk(&self, worker: &Worker<'_>, own: &mut [f32], observer: Option<&dyn Observer>, failure: &Failure) {
        let mut previous_alone = true;
        for (index, Bound { op, call, alone }) in self.calls.iter().enumerate() {
            if index > 0 && !(*alone && previous_alone) {
                worker.barrier();
            }
            previous_alone = *alone;
            if failure.is_before(index) && !*alone {
                return;
            }
            if *alone && (worker.index != 0 || failure.is_before(index)) {
                continue;
            }
            if let Some(observer) = observer {
                observer.begin(index);
            }
            let party = if *alone { Worker::ALONE } else { *worker };
            let kernel = crate::cpu(op).expect("checked when the program was made");
            if let Err(error) = kernel.run(call, &party, own) {
                failure.note(index, error);
            }
            if let Some(observer) = observer {
                observer.end(index);
            }
        }
    }
}

/// Keeps copies and other programs away from buffers while it lives; takes no memory of its own.
struct Held<'a>(&'a [Arc<Memory>]);

impl Held<'_> {
    fn all(memories: &[Arc<Memory>]) -> Held<'_> {
        memories.iter().for_each(|memory| memory.lock());
        Held(memories)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|memory| memory.unlock());
    }
}

/// The first error of a run and the step it came from.
#[derive(Default)]
struct Failure {
    first: OnceCell<(usize, OpError)>,
}

impl Failure {
    fn note(&self, step: usize, error: OpError) {
        // Only one step can fail, since none runs after it; which of its workers is heard does not matter.
        let _ = self.first.set((step, error));
    }

    /// Whether a step before this one failed. The same on all workers that have met before this step: an
    /// error of the step itself, which a faster worker may have noted already, does not count. If it did, the
    /// slower one would leave while the faster one waits for it at the next barrier.
    fn is_before(&self, step: usize) -> bool {
        self.first.get().is_some_and(|&(failed, _)| failed < step)
    }
}

/// One piece of scratch per worker.
fn own_scratch(floats: usize, workers: usize) -> Result<Vec<Mutex<Vec<f32>>>, OutOfMemory> {
    let one = |_| {
        let mut own = Vec::new();
        let refused = |_| OutOfMemory { bytes: floats.saturating_mul(size_of::<f32>()) };
        own.try_reserve_exact(floats).map_err(refused)?;
        own.resize(floats, 0.0);
        Ok(Mutex::new(own))
    };
    (0..workers).map(one).collect()
}

fn kernel_of(op: &Op) -> Result<&dyn CpuKernel, ProgramError> {
    crate::cpu(op).ok_or_else(|| ProgramError::Unsupported {
        op: op.name(),
        reason: Declined("there is no CPU kernel for this op".into()),
    })
}

/// The form in which a kernel runs operands of these layouts: its place among [`CpuKernel::variants`].
///
/// Errors: the kernel or the form declines.
pub fn variant_for(kernel: &dyn CpuKernel, forms: Forms, inputs: &[Layout]) -> Result<usize, Declined> {
    kernel.supports(inputs)?;
    forms.choose(kernel.variants(), |variant| kernel.covers(variant, inputs))
}

fn layouts(places: &[Place]) -> Vec<Layout> {
    places.iter().map(|place| place.layout).collect()
}

/// Where places lie, for the checks of a call.
fn extents(places: &[Place]) -> Vec<Extent> {
    let extent = |place: &Place| Extent {
        buffer: place.memory.start() as u64,
        buffer_bytes: place.memory.len(),
        writable: place.memory.is_writable(),
        offset_bytes: place.offset_bytes,
        layout: place.layout,
    };
    places.iter().map(extent).collect()
}

fn bind(step: Step, variant: usize, shared: &Arc<Memory>, workers: usize) -> Result<Bound, ProgramError> {
    let (inputs, results) = (layouts(&step.inputs), layouts(&step.results));
    let kernel = kernel_of(&step.op)?;
    let work = kernel.work(&inputs, &results);
    // SAFETY: `check_call` found the span of each place inside its buffer and aligned, results writable and
    // without overlap; the program keeps the buffers alive and holds their locks while it runs.
    let mut call = unsafe {
        Call {
            inputs: step
                .inputs
                .iter()
                .map(|p| In::new(p.memory.start().add(p.offset_bytes), p.layout))
                .collect(),
            results: step
                .results
                .iter()
                .map(|p| Out::new(p.memory.start().add(p.offset_bytes), p.layout))
                .collect(),
            shared: Shared::new(shared.start(), shared.len()),
            variant,
            packed: None,
        }
    };
    if let (Some(format), false) = (kernel.packing(&inputs), call.results[0].layout().is_empty()) {
        let Place { memory, offset_bytes, .. } = &step.inputs[0];
        call.packed = memory.panels(*offset_bytes, &call.inputs[0], format, workers)?;
    }
    Ok(Bound { op: step.op, call, alone: work < ALONE_WORK_MAX })
}
