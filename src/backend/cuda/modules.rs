//! Kernels on a device: images loaded once, when a program first needs one.

use super::driver::{Context, CudaError, Function, Module};
use ssmgraph_kernels::cuda::{Image, Launch};
use std::collections::HashMap;
use std::sync::Arc;

/// Loaded images and their kernels.
#[derive(Default)]
pub struct Modules {
    loaded: HashMap<&'static str, Module>,
    functions: HashMap<&'static str, (Function, usize)>,
}

impl Modules {
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
            self.loaded.insert(image.name, load(context, image)?);
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

fn load(context: &Arc<Context>, image: &Image) -> Result<Module, CudaError> {
    Module::load(context, image.ptx.as_bytes()).map_err(|mut error| {
        error.reason = format!("image {}: {}", image.name, error.reason);
        error
    })
}
