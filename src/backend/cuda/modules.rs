//! Kernels on a device: images loaded once, when a program first needs one.
//!
//! Where the machine has NVRTC, an image is compiled for the exact device and kept in the user's cache;
//! otherwise, and where that fails, the embedded PTX is loaded, which the driver assembles.

use super::cache::cached_cubin;
use super::compile;
use super::driver::{Context, CudaError, Function, Module};
use ssmgraph_kernels::cuda::{Image, Launch};
use std::collections::HashMap;
use std::sync::Arc;

/// Loaded images and their kernels.
pub struct Modules {
    /// The device as NVRTC calls it, such as `sm_90`.
    target: String,
    loaded: HashMap<&'static str, Module>,
    functions: HashMap<&'static str, (Function, usize)>,
}

impl Modules {
    /// Nothing yet, for a device of this compute capability.
    pub fn new((major, minor): (u32, u32)) -> Modules {
        Modules { target: format!("sm_{major}{minor}"), loaded: HashMap::new(), functions: HashMap::new() }
    }

    /// The kernel of a launch. Its parameter is as long as the kernel takes.
    ///
    /// Errors: an image that does not load, a kernel that is not in it, a parameter of another length.
    pub fn function(&mut self, context: &Arc<Context>, launch: &Launch) -> Result<Function, CudaError> {
        let (function, bytes) = match self.functions.get(launch.entry) {
            Some(known) => *known,
            None => self.load(context, launch)?,
        };
        if launch.params.bytes().len() != bytes {
            let given = launch.params.bytes().len();
            let what = format!("{} takes a parameter of {bytes} bytes, {given} were given", launch.entry);
            return Err(CudaError::before("cuLaunchKernel", what));
        }
        Ok(function)
    }

    fn load(&mut self, context: &Arc<Context>, launch: &Launch) -> Result<(Function, usize), CudaError> {
        let image = launch.image;
        if !self.loaded.contains_key(image.name) {
            self.loaded.insert(image.name, load(context, image, &self.target)?);
        }
        let about = |mut error: CudaError| {
            error.reason = format!("{} of image {}: {}", launch.entry, image.name, error.reason);
            error
        };
        let function = self.loaded[image.name].function(launch.entry).map_err(about)?;
        let bytes = image.parameter_bytes(launch.entry).ok_or_else(|| {
            about(CudaError::before("cuModuleGetFunction", "its PTX does not declare one parameter"))
        })?;
        self.functions.insert(launch.entry, (function, bytes));
        Ok((function, bytes))
    }
}

fn load(context: &Arc<Context>, image: &Image, target: &str) -> Result<Module, CudaError> {
    let compiled = compile::version().and_then(|version| cached_cubin(image, target, version));
    // Not worth a word when it fails: the embedded PTX computes the same.
    if let Some(module) = compiled.ok().and_then(|cubin| Module::load(context, &cubin).ok()) {
        return Ok(module);
    }
    Module::load(context, image.ptx.as_bytes()).map_err(|mut error| {
        error.reason = format!("image {}: {}", image.name, error.reason);
        error
    })
}
