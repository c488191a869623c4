//! Modules: PTX in, functions out. The kernels themselves come from the libraries that `build.rs` compiled.

use super::counts::count;
use super::device;
use super::launch::Function;
use super::ptx::{self, Entry, Ptx};
use super::report::{problem, trace};
use super::settings::settings;
use super::state::{Driver, Handle, new_handles};
use super::status::{Outcome, Status};
use crate::engine::Engine;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Libraries loaded so far. They stay loaded: threads of theirs run.
static ENGINES: LazyLock<Mutex<HashMap<PathBuf, Option<Arc<Engine>>>>> = LazyLock::new(Mutex::default);

fn engine(path: &Path) -> Option<Arc<Engine>> {
    let mut engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = engines.get(path) {
        return known.clone();
    }
    let loaded = Engine::load(path).map(Arc::new);
    if let Err(error) = &loaded {
        problem(&format!("{} is no library of kernels: {error}", path.display()));
    }
    engines.insert(path.to_owned(), loaded.ok()).flatten();
    engines.get(path).cloned().flatten()
}

/// The first library that has a kernel.
fn engine_with(entry: &str) -> Option<Arc<Engine>> {
    let paths: Vec<PathBuf> = {
        let settings = settings();
        settings.libraries.iter().cloned().chain([settings.mode.library().to_owned()]).collect()
    };
    paths.iter().filter_map(|path| engine(path)).find(|engine| engine.parameter_bytes(entry).is_some())
}

impl Driver {
    /// Loads PTX.
    ///
    /// Errors: no PTX, or none with kernels; PTX for a newer driver or device; parameters that are not those
    /// of the kernel in the library, which means that one of the two is older than the source.
    pub fn load_module(&mut self, image: &[u8]) -> Outcome<Handle> {
        self.forbid_in_capture("cuModuleLoadData")?;
        let text = std::str::from_utf8(image).map_err(|_| {
            problem("a module that is no PTX text; the emulator loads nothing else");
            Status::INVALID_IMAGE
        })?;
        let ptx = ptx::parse(text);
        check_image(&ptx, text.trim().is_empty())?;
        let functions = ptx.entries.into_iter().filter_map(|entry| find_function(entry).transpose());
        let functions = functions.collect::<Outcome<Vec<Function>>>()?;
        let first = new_handles(functions.len() + 1);
        let handles: Vec<Handle> = (first + 1..).take(functions.len()).collect();
        self.functions.extend(handles.iter().copied().zip(functions.into_iter().map(Arc::new)));
        self.modules.insert(first, handles);
        count(|counts| counts.module_loads += 1);
        Ok(first)
    }

    /// Ends a module after all work.
    pub fn unload_module(&mut self, module: Handle) -> Outcome {
        self.forbid_in_capture("cuModuleUnload")?;
        self.drain_all()?;
        let functions = self.modules.remove(&module).ok_or(Status::INVALID_HANDLE)?;
        for function in functions.iter().filter_map(|handle| self.functions.remove(handle)) {
            function.unloaded.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The function of a name.
    pub fn module_function(&self, module: Handle, name: &str) -> Outcome<Handle> {
        let functions = self.modules.get(&module).ok_or(Status::INVALID_HANDLE)?;
        let named = |handle: &&Handle| self.functions.get(handle).is_some_and(|f| f.entry.name == name);
        functions.iter().find(named).copied().ok_or(Status::NOT_FOUND)
    }

    /// A function.
    pub fn function(&self, function: Handle) -> Outcome<&Arc<Function>> {
        self.functions.get(&function).ok_or(Status::INVALID_HANDLE)
    }
}

fn check_image(ptx: &Ptx, empty: bool) -> Outcome {
    if ptx.entries.is_empty() {
        problem(match empty {
            true => "the PTX of a module is empty: it was not generated from its kernels yet",
            false => "the PTX of a module has no .entry",
        });
        return Err(Status::INVALID_PTX);
    }
    if ptx.version > device::PTX_VERSION {
        let (version, driver) = (ptx.version, device::DRIVER_VERSION);
        problem(&format!("PTX {}.{} is too new for a driver of CUDA {driver}", version / 10, version % 10));
        return Err(Status::PTX_VERSION);
    }
    if ptx.target > device::COMPUTE_CAPABILITY {
        let (target, device) = (ptx.target, device::COMPUTE_CAPABILITY);
        problem(&format!("PTX for sm_{target} on a device of compute capability {device}"));
        return Err(Status::NO_BINARY);
    }
    Ok(())
}

/// The function of an entry; `None` when no library has it.
fn find_function(entry: Entry) -> Outcome<Option<Function>> {
    let Some(engine) = engine_with(&entry.name) else {
        problem(&format!("kernel {}: it is in no library of kernels", entry.name));
        return Ok(None);
    };
    let compiled = engine.parameter_bytes(&entry.name).unwrap_or_default();
    if compiled != entry.parameter_bytes {
        let (name, stated) = (&entry.name, &entry.parameter_bytes);
        problem(&format!(
            "kernel {name}: parameters of {stated:?} bytes in the PTX, of {compiled:?} bytes in the source; \
             the PTX is stale"
        ));
        return Err(Status::INVALID_PTX);
    }
    trace(|| format!("kernel {} loaded", entry.name));
    Ok(Some(Function::new(entry, engine)))
}
