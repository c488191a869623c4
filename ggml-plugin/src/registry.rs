//! The list of devices, made once for the process.

use crate::abi::{self, DeviceType};
use crate::device::{Device, Runtime};
use crate::host::{self, Level, log};
use crate::stream;
use once_cell::sync::OnceCell;
use ssmgraph::backend::{CpuBackend, CudaBackend};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

/// Everything that the host holds pointers to; never freed, since a host may use a registry after it has closed the
/// library, which stays as well (`build.rs`).
struct Registered {
    entry: *mut abi::Registry,
    devices: Vec<*mut Device>,
    version: c_int,
}

// SAFETY: the pointers lead to memory that is never freed, and written before it is shared.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

/// `None` inside when this ggml was refused.
static REGISTERED: OnceCell<Option<Registered>> = OnceCell::new();

/// The registry, or null when this ggml is not one that the plugin was written for.
pub fn registry() -> *mut abi::Registry {
    REGISTERED.get_or_init(register).as_ref().map_or(null_mut(), |registered| registered.entry)
}

/// Version of the interface that this process speaks.
pub fn version() -> c_int {
    REGISTERED.get().and_then(Option::as_ref).map_or_else(host::api_version, |registered| registered.version)
}

fn register() -> Option<Registered> {
    if let Err(difference) = host::check_layout() {
        log(Level::Error, &format!("not registered: {difference}"));
        return None;
    }
    let version = host::api_version();
    let mut devices = vec![cpu(version)];
    devices.extend(gpus(version));
    let entry = Box::into_raw(Box::new(abi::Registry {
        api_version: version,
        table: abi::RegistryTable {
            get_name,
            get_device_count,
            get_device,
            get_proc_address: Some(get_proc_address),
        },
        context: null_mut(),
    }));
    for &device in &devices {
        // SAFETY: made above, and not shared yet.
        unsafe { (*device).entry.registry = entry };
    }
    Some(Registered { entry, devices, version })
}

/// The CPU's device. `SSMGRAPH_GGML_TYPE=gpu` makes the host give it layers and states as it does to a GPU.
fn cpu(version: c_int) -> *mut Device {
    let kind = match std::env::var("SSMGRAPH_GGML_TYPE").as_deref() {
        Ok("gpu") => DeviceType::Gpu,
        Ok("accel") | Err(_) => DeviceType::Accel,
        Ok(other) => {
            log(Level::Warn, &format!("SSMGRAPH_GGML_TYPE={other} is neither accel nor gpu; taking accel"));
            DeviceType::Accel
        }
    };
    let description = format!("ssmgraph on the CPU ({})", ssmgraph_kernels::arch_name());
    Device::leak("SSMGRAPH".into(), description, kind, version, Runtime::Cpu(CpuBackend::new(None)))
}

/// One device for each GPU that works; a GPU that does not is named in the log. `SSMGRAPH_GGML_CUDA=0` leaves them out.
fn gpus(version: c_int) -> Vec<*mut Device> {
    if std::env::var("SSMGRAPH_GGML_CUDA").as_deref() == Ok("0") {
        return Vec::new();
    }
    let count = CudaBackend::count().unwrap_or_else(|error| {
        log(Level::Warn, &format!("no CUDA devices: {error}"));
        0
    });
    let open = |ordinal: usize| match CudaBackend::new(ordinal) {
        Ok(backend) => {
            let description = format!("ssmgraph on {}", backend.info().name);
            let name = format!("SSMGRAPH-CUDA{ordinal}");
            Some(Device::leak(name, description, DeviceType::Gpu, version, Runtime::Cuda(backend)))
        }
        Err(error) => {
            log(Level::Warn, &format!("CUDA device {ordinal} is left out: {error}"));
            None
        }
    };
    (0..count).filter_map(open).collect()
}

/// Whether a buffer type is one of ours.
pub fn owns(buffer_type: abi::BufferTypePointer) -> bool {
    // SAFETY: devices are never freed, nor written once they are shared.
    devices().iter().any(|&device| unsafe { (*device).own_buffer_type() } == buffer_type)
}

fn devices() -> &'static [*mut Device] {
    REGISTERED.get().and_then(Option::as_ref).map_or(&[], |registered| &registered.devices)
}

unsafe extern "C" fn get_name(_registry: *mut abi::Registry) -> *const c_char {
    c"SSMGRAPH".as_ptr()
}

unsafe extern "C" fn get_device_count(_registry: *mut abi::Registry) -> usize {
    devices().len()
}

unsafe extern "C" fn get_device(_registry: *mut abi::Registry, index: usize) -> *mut abi::Device {
    devices().get(index).map_or(null_mut(), |device| device.cast())
}

unsafe extern "C" fn get_proc_address(_registry: *mut abi::Registry, name: *const c_char) -> *mut c_void {
    if name.is_null() {
        return null_mut();
    }
    // SAFETY: the host passes a name closed by a zero.
    match unsafe { CStr::from_ptr(name) } {
        name if name == c"ggml_backend_set_n_threads" => stream::set_n_threads as *mut c_void,
        name if name == c"ssmgraph_counts" => stream::counts as *mut c_void,
        _ => null_mut(),
    }
}
