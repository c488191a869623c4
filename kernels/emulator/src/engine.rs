//! Runs grids: the Rust side of the engine in `engine/`, which executes a block's threads as fibers.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;

/// Which library of kernels is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Optimised.
    Fast,
    /// With a check of each access: bounds, uninitialised shared memory, races.
    Check,
}

impl Mode {
    /// The library of the project's kernels in this mode.
    pub fn library(self) -> &'static Path {
        Path::new(match self {
            Mode::Fast => env!("EMULATOR_KERNELS_FAST"),
            Mode::Check => env!("EMULATOR_KERNELS_CHECK"),
        })
    }
}

/// A kernel as the library registers it (`EmuKernel` in `cuda_emu.h`).
#[repr(C)]
struct RawKernel {
    name: *const c_char,
    call: *const c_void,
    parameter_count: u32,
    parameter_bytes: *const u32,
    next: *const RawKernel,
}

/// Finds the device allocation that holds an address: 1 and its bounds, or 0.
pub type Lookup = extern "C" fn(address: usize, low: *mut usize, high: *mut usize) -> c_int;

/// A launch (`EmuLaunch` in `cuda_emu.h`).
#[repr(C)]
struct RawLaunch {
    kernel: *const RawKernel,
    arguments: *mut *mut c_void,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    threads: u32,
    seed: u32,
    lookup: Lookup,
}

type Run = unsafe extern "C" fn(*const RawLaunch, *mut c_char, usize) -> c_int;

/// What a kernel did wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} (CUDA error {code})")]
pub struct KernelError {
    /// The CUresult that a driver would give.
    pub code: i32,
    /// What happened, and where.
    pub message: String,
}

/// Shape of a launch and how it is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    /// 0 for lanes, warps and blocks in order, else a seed for another order.
    pub seed: u32,
}

/// A loaded library of kernels.
pub struct Engine {
    kernels: HashMap<String, *const RawKernel>,
    run: Run,
}

// SAFETY: the kernel records are constants of the library, which is never unloaded; it runs one grid at a time
// behind its own lock.
unsafe impl Send for Engine {}
// SAFETY: as above.
unsafe impl Sync for Engine {}

impl Engine {
    /// Loads a library that `build.rs` made. It stays loaded: its threads and its handlers of signals do.
    ///
    /// Errors: a file that cannot be loaded or is no library of kernels.
    pub fn load(path: &Path) -> Result<Engine, libloading::Error> {
        // SAFETY: the library is built from this crate's engine; its initialisers only register kernels.
        unsafe {
            let library = libloading::Library::new(path)?;
            let list: extern "C" fn() -> *const RawKernel = *library.get(b"emu_kernels\0")?;
            let run: Run = *library.get(b"emu_run\0")?;
            let mut kernels = HashMap::new();
            let mut next = list();
            while let Some(kernel) = next.as_ref() {
                kernels.insert(CStr::from_ptr(kernel.name).to_string_lossy().into_owned(), next);
                next = kernel.next;
            }
            std::mem::forget(library);
            Ok(Engine { kernels, run })
        }
    }

    /// Sizes in bytes of a kernel's parameters; `None` when there is no such kernel.
    pub fn parameter_bytes(&self, entry: &str) -> Option<&[u32]> {
        // SAFETY: the record and the array it points at are constants of the library.
        self.kernels.get(entry).map(|&kernel| unsafe {
            std::slice::from_raw_parts((*kernel).parameter_bytes, (*kernel).parameter_count as usize)
        })
    }

    /// Runs a grid to its end.
    ///
    /// Errors: what a kernel did wrong; an unknown kernel or parameters of other sizes.
    ///
    /// # Safety
    /// Pointers among the parameters must reach memory that the kernel may use as it does.
    pub unsafe fn run(
        &self,
        entry: &str,
        geometry: Geometry,
        parameters: &[&[u8]],
        lookup: Lookup,
    ) -> Result<(), KernelError> {
        let sizes = self
            .parameter_bytes(entry)
            .ok_or_else(|| KernelError { code: 500, message: format!("there is no kernel `{entry}`") })?;
        if !parameters.iter().map(|bytes| bytes.len()).eq(sizes.iter().map(|&size| size as usize)) {
            let given: Vec<usize> = parameters.iter().map(|bytes| bytes.len()).collect();
            let message = format!("{entry}: parameters of {given:?} bytes, expected {sizes:?}");
            return Err(KernelError { code: 1, message });
        }
        // Kernels may load whole vectors from their parameters: 16-byte alignment, as CUDA gives.
        let mut copies: Vec<Vec<u128>> = parameters.iter().map(|bytes| aligned(bytes)).collect();
        let mut arguments: Vec<*mut c_void> =
            copies.iter_mut().map(|copy| copy.as_mut_ptr().cast()).collect();
        let launch = RawLaunch {
            kernel: self.kernels[entry],
            arguments: arguments.as_mut_ptr(),
            grid: geometry.grid,
            block: geometry.block,
            shared_bytes: geometry.shared_bytes,
            threads: 0,
            seed: geometry.seed,
            lookup,
        };
        let mut text = [0u8; 2048];
        // SAFETY: the record is the library's own, arguments have the sizes it names, and the caller answers
        // for the pointers inside them.
        let code = unsafe { (self.run)(&launch, text.as_mut_ptr().cast(), text.len()) };
        if code == 0 {
            return Ok(());
        }
        let message = CStr::from_bytes_until_nul(&text).map(|text| text.to_string_lossy().into_owned());
        Err(KernelError { code, message: message.unwrap_or_default() })
    }
}

fn aligned(bytes: &[u8]) -> Vec<u128> {
    let mut words = vec![0u128; bytes.len().div_ceil(16)];
    for (word, piece) in words.iter_mut().zip(bytes.chunks(16)) {
        let mut whole = [0; 16];
        whole[..piece.len()].copy_from_slice(piece);
        *word = u128::from_le_bytes(whole);
    }
    words
}
