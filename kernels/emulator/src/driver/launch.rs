//! Launches: checked when they are asked for, run when their turn comes.

use super::device::{SHARED_BYTES_DEFAULT, SHARED_BYTES_MAX};
use super::memory;
use super::ptx::Entry;
use super::report::problem;
use super::settings::settings;
use super::state::{Driver, Handle};
use super::status::{Outcome, Status};
use crate::engine::{Engine, Geometry, KernelError};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A kernel of a loaded module.
pub struct Function {
    /// What its PTX says.
    pub entry: Entry,
    engine: Arc<Engine>,
    shared_bytes_max: AtomicU32,
    /// Whether its module is gone.
    pub unloaded: AtomicBool,
}

impl Function {
    /// A kernel of a library.
    pub fn new(entry: Entry, engine: Arc<Engine>) -> Function {
        let shared_bytes_max = AtomicU32::new(SHARED_BYTES_DEFAULT);
        Function { entry, engine, shared_bytes_max, unloaded: AtomicBool::new(false) }
    }

    /// Dynamic shared memory that a launch may ask for.
    pub fn shared_bytes_max(&self) -> u32 {
        self.shared_bytes_max.load(Ordering::Relaxed)
    }

    /// Allows more dynamic shared memory.
    pub fn allow_shared_bytes(&self, bytes: u32) -> Outcome {
        if bytes > SHARED_BYTES_MAX {
            return Err(Status::INVALID_VALUE);
        }
        self.shared_bytes_max.store(bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// Where a launch's arguments are: one pointer per parameter of the kernel, as the C caller passes them.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Arguments(pub *const *const c_void);

/// Shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared_bytes: u32,
}

/// A launch with its arguments, which were copied when it was asked for.
pub struct Launch {
    /// The function's handle.
    pub handle: Handle,
    /// The shape.
    pub shape: Shape,
    function: Arc<Function>,
    arguments: Vec<Box<[u8]>>,
}

impl Driver {
    /// Checks a launch and copies its arguments.
    ///
    /// Errors: a shape that the device or the kernel's launch bounds do not allow; a missing argument.
    pub fn prepare_launch(&self, handle: Handle, shape: Shape, arguments: Arguments) -> Outcome<Launch> {
        let function = self.function(handle)?.clone();
        shape.check(&function)?;
        let arguments = copy_arguments(&function, arguments)?;
        Ok(Launch { handle, shape, function, arguments })
    }
}

impl Shape {
    fn check(&self, function: &Function) -> Outcome {
        let Shape { grid, block, shared_bytes } = *self;
        let name = &function.entry.name;
        let threads = block.iter().map(|&side| u64::from(side)).product::<u64>();
        let grid_fits = grid[0] <= i32::MAX as u32 && grid[1] <= 65_535 && grid[2] <= 65_535;
        if grid.contains(&0) || !grid_fits || threads == 0 || threads > 1024 || block[2] > 64 {
            problem(&format!("kernel {name}: a launch of {grid:?} blocks of {block:?} threads"));
            return Err(Status::INVALID_VALUE);
        }
        if threads > u64::from(function.entry.threads_max) {
            let bound = function.entry.threads_max;
            problem(&format!("kernel {name}: {threads} threads, but its launch bounds say {bound}"));
            return Err(Status::OUT_OF_RESOURCES);
        }
        if shared_bytes > function.shared_bytes_max() {
            let bound = function.shared_bytes_max();
            problem(&format!("kernel {name}: {shared_bytes} bytes of shared memory, {bound} are allowed"));
            return Err(Status::INVALID_VALUE);
        }
        Ok(())
    }
}

fn copy_arguments(function: &Function, arguments: Arguments) -> Outcome<Vec<Box<[u8]>>> {
    let sizes = &function.entry.parameter_bytes;
    if arguments.0.is_null() && !sizes.is_empty() {
        return Err(Status::INVALID_VALUE);
    }
    let copy = |(position, &bytes): (usize, &u32)| {
        // SAFETY: the C caller passes one pointer per parameter, each to a value of the parameter's size.
        unsafe {
            let value = (*arguments.0.add(position)).cast::<u8>();
            match value.is_null() {
                true => Err(Status::INVALID_VALUE),
                false => Ok(std::slice::from_raw_parts(value, bytes as usize).into()),
            }
        }
    };
    sizes.iter().enumerate().map(copy).collect()
}

impl Launch {
    /// Runs the grid to its end.
    ///
    /// Errors: what the kernel did wrong.
    pub fn run(&self) -> Result<(), KernelError> {
        let name = &self.function.entry.name;
        if self.function.unloaded.load(Ordering::Relaxed) {
            let message = format!("kernel {name}: it runs in a graph, but its module was unloaded");
            return Err(KernelError { code: Status::INVALID_HANDLE.0, message });
        }
        let Shape { grid, block, shared_bytes } = self.shape;
        let geometry = Geometry { grid, block, shared_bytes, seed: settings().seed };
        let arguments: Vec<&[u8]> = self.arguments.iter().map(|bytes| &bytes[..]).collect();
        // SAFETY: a pointer that reaches no memory of the device meets guard pages or nothing at all, and the
        // engine makes an error of the fault, as a device does. Other memory of this process is not protected
        // from a wrong kernel in fast mode; in check mode it is, by the lookup.
        unsafe { self.function.engine.run(name, geometry, &arguments, memory::lookup) }
    }
}
