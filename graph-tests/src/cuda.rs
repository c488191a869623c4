//! The CUDA backend on the emulated driver.

use emulator::{Emulator, install};
use ssmgraph::backend::{Backend, CpuBackend, CudaBackend, Devices};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The emulator in this process, loaded before anything of CUDA is.
///
/// Panics when it was not built: a test without it would prove nothing.
pub fn emulator() -> &'static Emulator {
    install().unwrap_or_else(|error| panic!("{error}"))
}

/// A new backend on the emulated device.
///
/// Panics when the driver refuses.
pub fn backend() -> CudaBackend {
    emulator();
    CudaBackend::new(0).unwrap_or_else(|error| panic!("{error}"))
}

/// A backend that the tests of one binary share, with the CPU behind it.
pub fn devices() -> Devices {
    static SHARED: Mutex<Option<CudaBackend>> = Mutex::new(None);
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let backend = shared.get_or_insert_with(backend).clone();
    with_cpu(backend)
}

/// A backend with the CPU behind it, as the command line arranges them.
pub fn with_cpu(backend: CudaBackend) -> Devices {
    let cpu: Arc<dyn Backend> = Arc::new(CpuBackend::new(Some(2)));
    Devices::new(vec![Arc::new(backend), cpu])
}

/// Held by tests that count driver calls or plan faults, which belong to the process. Loads the emulator, before
/// anything else can find another copy of it.
///
/// Panics when it was not built.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    emulator();
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
