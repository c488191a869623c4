//! The CPU backend: kernels of `ssmgraph-kernels` over host memory.

use super::{
    Backend, BackendError, Buffer, Declined, Observer, Program, SharedBytes, Slice, Step, check_range,
};
use ssmgraph_kernels::{self as kernels, Forms, Memory, Numerics, Place, Pool, ProgramError, Variant};
use ssmgraph_ops::{Layout, Op};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

const CPU: &str = "cpu";

/// Runs ops with the CPU kernels, on several threads of the process's pool.
#[derive(Clone, Copy, Debug)]
pub struct CpuBackend {
    threads: usize,
    forms: Forms,
}

impl CpuBackend {
    /// A backend on `threads` threads; by default as many as the process may use cores. Results do not
    /// depend on the number.
    pub fn new(threads: Option<usize>) -> CpuBackend {
        let threads = threads.unwrap_or_else(Pool::default_workers);
        CpuBackend { threads: threads.clamp(1, kernels::WORKERS_MAX), forms: Forms::default() }
    }

    /// The same threads with other numerics. `Fast` runs the fast form of each kernel that has one.
    pub fn with_numerics(self, numerics: Numerics) -> CpuBackend {
        CpuBackend { forms: Forms::Of(numerics), ..self }
    }

    /// The same threads, running each kernel of several forms in the one with this name. Ops whose kernel lacks
    /// it, or calls that it does not cover, are declined.
    pub fn with_variant(self, name: &'static str) -> CpuBackend {
        CpuBackend { forms: Forms::Named(name), ..self }
    }

    /// Host memory as a buffer of this backend.
    pub fn buffer(memory: Arc<Memory>) -> Arc<dyn Buffer> {
        Arc::new(CpuBuffer(memory))
    }

    /// How many threads take part in a run.
    pub fn threads(&self) -> usize {
        self.threads
    }
}

struct CpuBuffer(Arc<Memory>);

impl Buffer for CpuBuffer {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn write(&self, offset: usize, source: &[u8]) -> Result<(), BackendError> {
        check_range(CPU, offset, source.len(), self.len())?;
        if !self.0.is_writable() {
            return Err(other("the bytes of a mapped file are read-only"));
        }
        self.0.write(offset, source);
        Ok(())
    }

    fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), BackendError> {
        check_range(CPU, offset, target.len(), self.len())?;
        self.0.read(offset, target);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &str {
        CPU
    }

    fn supports(&self, op: &Op, inputs: &[Layout]) -> Result<(), Declined> {
        let kernel = kernels::cpu(op).ok_or_else(|| Declined("there is no CPU kernel for this op".into()))?;
        kernels::kernel::variant_for(kernel, self.forms, inputs).map(|_| ())
    }

    fn variant(&self, op: &Op, inputs: &[Layout]) -> Option<&'static Variant> {
        let kernel = kernels::cpu(op)?;
        kernel.variants().get(kernels::kernel::variant_for(kernel, self.forms, inputs).ok()?)
    }

    fn variants(&self, op: &Op) -> &'static [Variant] {
        kernels::cpu(op).map_or(&[], |kernel| kernel.variants())
    }

    fn in_variant(&self, name: &'static str) -> Option<Arc<dyn Backend>> {
        Some(Arc::new(self.with_variant(name)))
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Buffer>, BackendError> {
        Ok(Arc::new(CpuBuffer(Arc::new(zeroed(bytes)?))))
    }

    fn adopt(
        &self,
        bytes: &SharedBytes,
        range: Range<usize>,
    ) -> Result<(Arc<dyn Buffer>, usize), BackendError> {
        let all = (**bytes).as_ref();
        check_range(CPU, range.start, range.len(), all.len())?;
        // Kernels read elements of up to 8 bytes in place; a file with a smaller alignment is copied.
        if (all.as_ptr() as usize + range.start).is_multiple_of(8) {
            return Ok((Arc::new(CpuBuffer(Arc::new(Memory::shared(bytes.clone())))), range.start));
        }
        let copy = zeroed(range.len())?;
        copy.write(0, &all[range]);
        Ok((Arc::new(CpuBuffer(Arc::new(copy.freeze()))), 0))
    }

    fn compile(&self, steps: Vec<Step>) -> Result<Box<dyn Program>, BackendError> {
        let steps = steps.into_iter().map(host_step).collect::<Result<Vec<_>, _>>()?;
        let program = kernels::Program::new(steps, self.threads, self.forms).map_err(error)?;
        Ok(Box::new(CpuProgram(program)))
    }
}

struct CpuProgram(kernels::Program);

impl Program for CpuProgram {
    fn run(&mut self, observer: Option<&dyn Observer>) -> Result<(), BackendError> {
        self.0.run(observer).map_err(error)
    }
}

fn zeroed(bytes: usize) -> Result<Memory, BackendError> {
    let refused = |refused: kernels::OutOfMemory| BackendError::OutOfMemory {
        backend: CPU.into(),
        bytes: refused.bytes,
    };
    Memory::zeroed(bytes).map_err(refused)
}

fn host_step(step: Step) -> Result<kernels::Step, BackendError> {
    let places = |slices: Vec<Slice>| slices.iter().map(place).collect::<Result<Vec<_>, _>>();
    Ok(kernels::Step { op: step.op, inputs: places(step.inputs)?, results: places(step.results)? })
}

fn place(slice: &Slice) -> Result<Place, BackendError> {
    let buffer = slice.buffer.as_any().downcast_ref::<CpuBuffer>();
    let buffer = buffer.ok_or_else(|| other("a step names a buffer of another backend"))?;
    Ok(Place { memory: buffer.0.clone(), offset_bytes: slice.offset_bytes, layout: slice.layout })
}

fn error(error: ProgramError) -> BackendError {
    match error {
        ProgramError::Op(error) => BackendError::Op(error),
        ProgramError::OutOfMemory(refused) => {
            BackendError::OutOfMemory { backend: CPU.into(), bytes: refused.bytes }
        }
        error => other(error.to_string()),
    }
}

fn other(what: impl Into<String>) -> BackendError {
    BackendError::Other { backend: CPU.into(), what: what.into() }
}
