//! The emulator in a test's own process.

use crate::driver::Counts;
use crate::engine::Mode;
use libloading::Library;
use std::ffi::{CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Fault {
    /// An allocation of device or pinned memory: `CUDA_ERROR_OUT_OF_MEMORY`.
    Alloc = 0,
    /// A kernel's launch: `CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES`; the context lives on.
    Launch = 1,
    /// A copy or fill: `CUDA_ERROR_INVALID_VALUE`; the context lives on.
    Copy = 2,
    /// A capture's beginning or end: `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`; the stream does not capture
    /// afterwards.
    Capture = 3,
    /// A module's load: `CUDA_ERROR_INVALID_PTX`.
    Module = 4,
    /// A graph's instantiation, update, change of a node or launch: `CUDA_ERROR_OUT_OF_MEMORY`.
    Graph = 5,
    /// A wait for a stream, an event or the device: `CUDA_ERROR_LAUNCH_FAILED`, as when a kernel failed, and
    /// from then on every call, until the last context ends.
    Sync = 6,
    /// Any call, and every one after it: `CUDA_ERROR_DEVICE_UNAVAILABLE`.
    Lost = 7,
}

/// Why there is no emulator in this process.
#[derive(Clone, Debug, thiserror::Error)]
pub enum InstallError {
    /// The library is not where cargo puts it.
    #[error("no libcuda.so beside {}: build the package ssmgraph-emulator first", .0.display())]
    Missing(PathBuf),
    /// The library cannot be loaded, or is not the emulator.
    #[error("{}: {message}", .path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What the loader said.
        message: String,
    },
}

/// The emulator in this process. All its state is the process's: tests that set faults or modes, or that count,
/// must not run beside others that use it.
#[derive(Debug)]
pub struct Emulator {
    path: PathBuf,
    calls: Calls,
}

type Set<T> = extern "C" fn(T) -> c_int;

#[derive(Debug)]
struct Calls {
    set_fault: extern "C" fn(u32, u64) -> c_int,
    planned: extern "C" fn(u32) -> u64,
    set_seed: Set<u32>,
    set_async: Set<c_int>,
    set_mode: Set<c_int>,
    set_memory_bytes: Set<usize>,
    add_kernels: Set<*const c_char>,
    counts: Set<*mut Counts>,
    reset_counts: extern "C" fn() -> c_int,
    reset_device: Set<c_int>,
    last_problem: extern "C" fn(*mut c_char, usize) -> usize,
}

/// Loads the emulator, so that what later looks for `libcuda.so` gets it. To be called before anything of CUDA is.
///
/// The library lies where cargo built it: beside the running executable or one folder above. It stays loaded.
///
/// Errors: it is not there, or cannot be loaded.
pub fn install() -> Result<&'static Emulator, InstallError> {
    static INSTALLED: OnceLock<Result<Emulator, InstallError>> = OnceLock::new();
    INSTALLED.get_or_init(load).as_ref().map_err(InstallError::clone)
}

fn load() -> Result<Emulator, InstallError> {
    let executable = std::env::current_exe().unwrap_or_default();
    let folders = executable.ancestors().skip(1).take(3);
    let path = folders
        .flat_map(|folder| [folder.join("deps/libcuda.so"), folder.join("libcuda.so")])
        .find(|path| path.exists())
        .ok_or_else(|| InstallError::Missing(executable.clone()))?;
    let broken =
        |error: libloading::Error| InstallError::Broken { path: path.clone(), message: error.to_string() };
    // SAFETY: the library is this crate's own; loading it runs no code but Rust's.
    let library = unsafe { Library::new(&path) }.map_err(broken)?;
    let calls = Calls::find(&library).map_err(broken)?;
    // The dynamic linker answers a later search for the bare name with a library of that name in the process.
    std::mem::forget(library);
    Ok(Emulator { path, calls })
}

impl Calls {
    fn find(library: &Library) -> Result<Calls, libloading::Error> {
        // SAFETY: the signatures are those of `driver/api/control.rs`, whose names nobody else uses.
        unsafe {
            Ok(Calls {
                set_fault: *library.get(b"ssmgraph_emulator_set_fault\0")?,
                planned: *library.get(b"ssmgraph_emulator_planned\0")?,
                set_seed: *library.get(b"ssmgraph_emulator_set_seed\0")?,
                set_async: *library.get(b"ssmgraph_emulator_set_async\0")?,
                set_mode: *library.get(b"ssmgraph_emulator_set_mode\0")?,
                set_memory_bytes: *library.get(b"ssmgraph_emulator_set_memory_bytes\0")?,
                add_kernels: *library.get(b"ssmgraph_emulator_add_kernels\0")?,
                counts: *library.get(b"ssmgraph_emulator_counts\0")?,
                reset_counts: *library.get(b"ssmgraph_emulator_reset_counts\0")?,
                reset_device: *library.get(b"ssmgraph_emulator_reset_device\0")?,
                last_problem: *library.get(b"ssmgraph_emulator_last_problem\0")?,
            })
        }
    }
}

impl Emulator {
    /// The library's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the n-th call of a kind from now on fail, counted from 1; 0 makes none fail. One failure per kind is
    /// planned at a time.
    pub fn set_fault(&self, fault: Fault, n: u64) {
        (self.calls.set_fault)(fault as u32, n);
    }

    /// Calls until the planned failure of a kind; 0 when it has come, or none is planned.
    pub fn planned(&self, fault: Fault) -> u64 {
        (self.calls.planned)(fault as u32)
    }

    /// 0 for threads, blocks, and graph nodes in order, else a seed for another order.
    pub fn set_seed(&self, seed: u32) {
        (self.calls.set_seed)(seed);
    }

    /// Whether work runs as late as allowed (as it does from the start) or when it is submitted.
    pub fn set_lazy(&self, lazy: bool) {
        (self.calls.set_async)(c_int::from(lazy));
    }

    /// The library of kernels that modules loaded from now on use.
    pub fn set_mode(&self, mode: Mode) {
        (self.calls.set_mode)(c_int::from(mode == Mode::Check));
    }

    /// Size of device memory.
    pub fn set_memory_bytes(&self, bytes: usize) {
        (self.calls.set_memory_bytes)(bytes);
    }

    /// Takes a further library of kernels, which is searched before the project's own.
    pub fn add_kernels(&self, path: &Path) {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
        (self.calls.add_kernels)(path.as_ptr());
    }

    /// How often the driver was called.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        (self.calls.counts)(&mut counts);
        counts
    }

    /// Counts from zero.
    pub fn reset_counts(&self) {
        (self.calls.reset_counts)();
    }

    /// Makes the device as a new process would find it: no memory, no error, no planned failure. False when a
    /// context is alive and `force` is not set; with it, handles that a program still holds are invalid from
    /// then on, and dropping them harmless.
    pub fn reset_device(&self, force: bool) -> bool {
        (self.calls.reset_device)(c_int::from(force)) == 0
    }

    /// The last thing that the emulator found wrong; empty when there was none since the device was reset.
    pub fn last_problem(&self) -> String {
        let mut text = vec![0u8; 4096];
        let length = (self.calls.last_problem)(text.as_mut_ptr().cast(), text.len());
        String::from_utf8_lossy(&text[..length.min(text.len())]).into_owned()
    }
}
