//! The CUDA backend: kernels of `ssmgraph-kernels` on an NVIDIA device.
//!
//! The driver is found at run time; nothing here needs CUDA to build. A program runs launch by launch once, is
//! captured into a graph at its second run and replayed from then on. A run waits for its end, so that an
//! error belongs to the run that caused it and memory may be dropped after it.

mod blas;
pub mod cache;
pub mod compile;
mod driver;
pub mod hash;
mod memory;
mod modules;
mod program;
mod replay;

pub use driver::{CudaError, DeviceInfo};

use super::{
    Backend, BackendError, Buffer, Declined, Forms, Numerics, Program, SharedBytes, Step, Variant,
    check_range,
};
use driver::{Context, DeviceMemory};
use memory::{Copies, CudaBuffer, Pool, lock};
use modules::Modules;
use program::CudaProgram;
use replay::Executables;
use ssmgraph_kernels::cuda::variant_for;
use ssmgraph_kernels::cuda_kernel;
use ssmgraph_ops::{Layout, Op};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// The lowest compute capability that the embedded kernels are built for.
const CAPABILITY_MIN: (u32, u32) = (7, 0);

/// Runs ops with the CUDA kernels of one device.
#[derive(Clone)]
pub struct CudaBackend {
    device: Arc<Device>,
    forms: Forms,
}

/// A device with everything that its programs share.
struct Device {
    name: String,
    info: DeviceInfo,
    context: Arc<Context>,
    copies: Mutex<Copies>,
    pool: Mutex<Pool>,
    /// Before the modules, whose kernels they launch.
    executables: Mutex<Executables>,
    modules: Mutex<Modules>,
}

impl CudaBackend {
    /// The backend of the device with this number.
    ///
    /// Errors: no driver, one before CUDA 12.0, no such device, one below compute capability 7.0.
    pub fn new(ordinal: usize) -> Result<CudaBackend, CudaError> {
        driver::start()?;
        let count = driver::device_count()?;
        if ordinal >= count {
            let what = format!("there is no device {ordinal}, the driver has {count}");
            return Err(CudaError::before("cuDeviceGet", what));
        }
        let context = Context::new(ordinal)?;
        context.enter()?;
        let info = context.info()?;
        if info.capability < CAPABILITY_MIN {
            let (major, minor) = info.capability;
            let what = format!("{} has compute capability {major}.{minor}, expected 7.0", info.name);
            return Err(CudaError::before("cuDeviceGetAttribute", what));
        }
        let name = if ordinal == 0 { "cuda".to_owned() } else { format!("cuda:{ordinal}") };
        let copies = Copies::new(&context)?;
        let device = Device {
            name,
            modules: Mutex::new(Modules::new(info.capability)),
            info,
            context,
            copies: Mutex::new(copies),
            pool: Mutex::default(),
            executables: Mutex::default(),
        };
        Ok(CudaBackend { device: Arc::new(device), forms: Forms::default() })
    }

    /// How many devices this machine has; 0 without a driver. Opens none of them.
    ///
    /// Errors: a driver that is there but does not work, one before CUDA 12.0.
    pub fn count() -> Result<usize, CudaError> {
        if !driver::is_present() {
            return Ok(0);
        }
        match driver::start() {
            Err(error) if error.is_no_device() => Ok(0),
            started => started.and_then(|()| driver::device_count()),
        }
    }

    /// The devices of this machine; none without a driver.
    ///
    /// Errors: as [`CudaBackend::count`] and, for each device, as [`CudaBackend::new`].
    pub fn all() -> Result<Vec<CudaBackend>, CudaError> {
        (0..CudaBackend::count()?).map(CudaBackend::new).collect()
    }

    /// The same device with other numerics. `Fast` runs the fast form of each kernel that has one, and takes
    /// matrix products of `f32` weights with many tokens to cuBLAS where that is installed.
    pub fn with_numerics(self, numerics: Numerics) -> CudaBackend {
        CudaBackend { forms: Forms::Of(numerics), ..self }
    }

    /// The same device, running each kernel of several forms in the one with this name. Ops whose kernel lacks
    /// it, or calls that it does not cover, are declined.
    pub fn with_variant(self, name: &'static str) -> CudaBackend {
        CudaBackend { forms: Forms::Named(name), ..self }
    }

    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        &self.device.info
    }
}

impl Device {
    /// Gives memory back to the driver, once copies that may still use it are done.
    fn release(&self, memory: Vec<DeviceMemory>) -> Result<(), CudaError> {
        if memory.is_empty() {
            return Ok(());
        }
        self.context.enter()?;
        lock(&self.copies).synchronize()
    }

    fn other(&self, what: impl Into<String>) -> BackendError {
        BackendError::Other { backend: self.name.clone(), what: what.into() }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Queued copies use memory that goes with the pool.
        let _ = self.context.enter();
        let _ = lock(&self.copies).synchronize();
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &str {
        &self.device.name
    }

    fn supports(&self, op: &Op, inputs: &[Layout]) -> Result<(), Declined> {
        let kernel = cuda_kernel(op).ok_or_else(|| Declined("there is no CUDA kernel for this op".into()))?;
        variant_for(kernel, self.forms, inputs).map(|_| ())
    }

    fn variant(&self, op: &Op, inputs: &[Layout]) -> Option<&'static Variant> {
        let kernel = cuda_kernel(op)?;
        kernel.variants().get(variant_for(kernel, self.forms, inputs).ok()?)
    }

    fn variants(&self, op: &Op) -> &'static [Variant] {
        cuda_kernel(op).map_or(&[], |kernel| kernel.variants())
    }

    fn in_variant(&self, name: &'static str) -> Option<Arc<dyn Backend>> {
        Some(Arc::new(self.clone().with_variant(name)))
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Buffer>, BackendError> {
        let buffer = CudaBuffer::zeroed(&self.device, bytes);
        Ok(Arc::new(buffer.map_err(|error| backend_error(self.name(), error, bytes))?))
    }

    fn adopt(
        &self,
        bytes: &SharedBytes,
        range: Range<usize>,
    ) -> Result<(Arc<dyn Buffer>, usize), BackendError> {
        let all = (**bytes).as_ref();
        check_range(self.name(), range.start, range.len(), all.len())?;
        let buffer = CudaBuffer::holding(&self.device, &all[range.clone()]);
        Ok((Arc::new(buffer.map_err(|error| backend_error(self.name(), error, range.len()))?), 0))
    }

    fn compile(&self, steps: Vec<Step>) -> Result<Box<dyn Program>, BackendError> {
        Ok(Box::new(CudaProgram::new(&self.device, &steps, self.forms)?))
    }
}

/// A failed call as the backend's error; `bytes` is the size that was asked for, or 0 when none was.
fn backend_error(backend: &str, error: CudaError, bytes: usize) -> BackendError {
    match error.is_out_of_memory() && bytes > 0 {
        true => BackendError::OutOfMemory { backend: backend.to_owned(), bytes },
        false => BackendError::Other { backend: backend.to_owned(), what: error.to_string() },
    }
}
