//! The two driver calls that are needed, looked up in whatever `libcuda.so` the program has loaded.

use libloading::Library;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

/// A function that runs in a stream.
pub type HostFunction = extern "C" fn(*mut c_void);

struct Driver {
    launch_host: unsafe extern "C" fn(usize, HostFunction, *mut c_void) -> c_int,
    address_range: unsafe extern "C" fn(*mut usize, *mut usize, usize) -> c_int,
}

fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    DRIVER.get_or_init(find).as_ref()
}

fn find() -> Option<Driver> {
    // SAFETY: the library is loaded already, by the program; the signatures are CUDA's.
    unsafe {
        let library = Library::new("libcuda.so").ok()?;
        let driver = Driver {
            launch_host: *library.get(b"cuLaunchHostFunc\0").ok()?,
            address_range: *library.get(b"cuMemGetAddressRange_v2\0").ok()?,
        };
        std::mem::forget(library);
        Some(driver)
    }
}

/// Runs a function behind a stream's work; false when the driver refuses.
pub fn launch_host(stream: usize, function: HostFunction, data: *mut c_void) -> bool {
    // SAFETY: the caller passes data that the function takes and that stays for as long as a graph may run it.
    driver().is_some_and(|driver| unsafe { (driver.launch_host)(stream, function, data) } == 0)
}

/// Whether bytes lie inside one allocation of device memory.
pub fn is_allocated(address: usize, bytes: usize) -> bool {
    let (mut start, mut size) = (0, 0);
    // SAFETY: the places are as large as what is written.
    let found =
        driver().is_some_and(|driver| unsafe { (driver.address_range)(&mut start, &mut size, address) } == 0);
    found && address.checked_add(bytes).is_some_and(|end| end <= start + size)
}
