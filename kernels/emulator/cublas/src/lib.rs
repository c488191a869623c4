//! A cuBLAS for the emulated CUDA driver. A test tool.
//!
//! Built as `libcublas.so`. It uses nothing but the driver: a product is a host function on the handle's stream,
//! ordered with kernels and recorded into graphs like them. Sums are in f64, as in a reference.

mod api;
mod driver;
mod product;

use std::path::PathBuf;

/// Loads the library into this process, so that what later looks for `libcublas.so` gets it. The emulated driver
/// must be there already.
///
/// The library lies where cargo built it: beside the running executable or above. It stays loaded.
///
/// Errors: a text that says that it is not there, or why it cannot be loaded.
pub fn install() -> Result<PathBuf, String> {
    let executable = std::env::current_exe().map_err(|error| error.to_string())?;
    let path = executable
        .ancestors()
        .skip(1)
        .take(3)
        .flat_map(|folder| [folder.join("deps/libcublas.so"), folder.join("libcublas.so")])
        .find(|path| path.exists())
        .ok_or_else(|| format!("no libcublas.so beside {}", executable.display()))?;
    // SAFETY: the library is this crate's own; loading it runs no code but Rust's.
    let library = unsafe { libloading::Library::new(&path) };
    std::mem::forget(library.map_err(|error| format!("{}: {error}", path.display()))?);
    Ok(path)
}
