//! Devices that the plugin offers, and the streams of work on them.

use crate::abi::{self, BufferType2, BufferType3, BufferTypePointer, DeviceType};
use crate::guard::guarded;
use crate::host::{self, Level, log, log_once, op_name};
use crate::memory::{DEVICE_ALIGN_BYTES, HOST_ALIGN_BYTES, Storage};
use crate::stream;
use crate::tensor::Tensor;
use crate::translate::{is_view, translate};
use ssmgraph::backend::{Backend, CpuBackend, CudaBackend, Declined, Memory};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{NonNull, null};

/// One of our backends, as a place for the host's graphs.
pub enum Runtime {
    /// The CPU, in the host's memory.
    Cpu(CpuBackend),
    /// A GPU with memory of its own.
    Cuda(CudaBackend),
}

impl Runtime {
    /// The backend.
    pub fn backend(&self) -> &dyn Backend {
        match self {
            Runtime::Cpu(backend) => backend,
            Runtime::Cuda(backend) => backend,
        }
    }

    /// Whether it computes in memory of the host.
    pub fn is_host(&self) -> bool {
        matches!(self, Runtime::Cpu(_))
    }

    /// Whether a stream with so many threads would be as it is now.
    pub fn takes_threads(&self, threads: usize) -> bool {
        match self {
            Runtime::Cpu(backend) => backend.threads() == CpuBackend::new(Some(threads)).threads(),
            Runtime::Cuda(_) => true,
        }
    }

    /// A runtime for one stream, with so many threads.
    pub fn for_stream(&self, threads: Option<usize>) -> Runtime {
        match self {
            Runtime::Cpu(_) => Runtime::Cpu(CpuBackend::new(threads)),
            Runtime::Cuda(backend) => Runtime::Cuda(backend.clone()),
        }
    }
}

/// A device of ours, at an address that never changes: the host keeps pointers into it.
#[repr(C)]
pub struct Device {
    /// What the host sees. First, so that a pointer to it is one to the device.
    pub entry: abi::Device,
    buffer_type2: BufferType2,
    buffer_type3: BufferType3,
    name: CString,
    description: CString,
    kind: DeviceType,
    version: c_int,
    runtime: Runtime,
}

impl Device {
    /// A device under this name; it stays to the end of the process.
    pub fn leak(
        name: String,
        description: String,
        kind: DeviceType,
        version: c_int,
        runtime: Runtime,
    ) -> *mut Device {
        let text = |text: String| CString::new(text.replace('\0', " ")).expect("zeros were replaced");
        let device = Box::into_raw(Box::new(Device {
            entry: abi::Device {
                table: TABLE,
                registry: std::ptr::null_mut(),
                context: std::ptr::null_mut(),
            },
            buffer_type2: BufferType2 {
                get_name: buffer_name,
                alloc_buffer,
                get_alignment,
                get_max_size: None,
                get_alloc_size: None,
                is_host: Some(is_host),
                device: std::ptr::null_mut(),
                context: std::ptr::null_mut(),
            },
            buffer_type3: BufferType3 {
                get_name: buffer_name,
                alloc_buffer,
                alloc_buffer_n: None,
                get_alignment,
                get_max_size: None,
                get_alloc_size: None,
                get_alloc_size_n: None,
                is_host: Some(is_host),
                device: std::ptr::null_mut(),
                context: std::ptr::null_mut(),
            },
            name: text(name),
            description: text(description),
            kind,
            version,
            runtime,
        }));
        // SAFETY: made above; the pointers close the circle between the structs.
        unsafe {
            (*device).entry.context = device.cast();
            (*device).buffer_type2.device = device.cast();
            (*device).buffer_type2.context = device.cast();
            (*device).buffer_type3.device = device.cast();
            (*device).buffer_type3.context = device.cast();
        }
        device
    }

    /// # Safety
    /// `entry` is what the plugin gave to the host.
    pub unsafe fn of<'a>(entry: *mut abi::Device) -> &'a Device {
        // SAFETY: the context of each of our devices is the device, which is never freed.
        unsafe { &*(*entry).context.cast::<Device>() }
    }

    /// Its name.
    pub fn name(&self) -> &CStr {
        &self.name
    }

    /// Where it computes.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The type of the buffers that it makes itself.
    pub fn own_buffer_type(&self) -> BufferTypePointer {
        match self.version {
            2 => (&raw const self.buffer_type2).cast_mut().cast(),
            _ => (&raw const self.buffer_type3).cast_mut().cast(),
        }
    }

    /// The type of the buffers that the host shall use: as a helper of the CPU, the CPU's own, so that nothing is
    /// copied.
    fn buffer_type(&self) -> BufferTypePointer {
        let shared = self.kind == DeviceType::Accel && self.runtime.is_host();
        shared.then(host::cpu_buffer_type).flatten().unwrap_or_else(|| self.own_buffer_type())
    }

    /// # Safety
    /// `buffer_type` is a buffer type of the host's version.
    unsafe fn reaches(&self, buffer_type: BufferTypePointer) -> bool {
        if buffer_type.is_null() {
            return false;
        }
        // SAFETY: the caller's promise.
        buffer_type == self.own_buffer_type()
            || self.runtime.is_host() && unsafe { host::is_host_memory(buffer_type, self.version) }
    }

    /// Whether it computes the node.
    ///
    /// Errors: why not.
    fn supports(&self, node: Tensor<'_>) -> Result<(), Declined> {
        if is_view(node) {
            return Ok(());
        }
        let call = translate(node)?;
        self.runtime.backend().supports(&call.op, &call.input_layouts())
    }

    /// Bytes free, and in all.
    fn memory(&self) -> (usize, usize) {
        match &self.runtime {
            Runtime::Cpu(_) => host_memory().unwrap_or((0, 0)),
            // The driver tells what is free only for the whole device, and the host asks once, before it allocates.
            Runtime::Cuda(backend) => (backend.info().memory_bytes, backend.info().memory_bytes),
        }
    }
}

/// Bytes available and in all, as the kernel tells.
fn host_memory() -> Option<(usize, usize)> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let value = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        line.split_whitespace().nth(1)?.parse::<usize>().ok()?.checked_mul(1024)
    };
    Some((value("MemAvailable:")?, value("MemTotal:")?))
}

const TABLE: abi::DeviceTable = abi::DeviceTable {
    get_name,
    get_description,
    get_memory,
    get_type,
    get_props,
    init_backend,
    get_buffer_type,
    get_host_buffer_type: None,
    buffer_from_host_ptr: Some(buffer_from_host_ptr),
    supports_op,
    supports_buft,
    offload_op: None,
    events: [None; 3],
};

// Each entry below is called by the host with a device, or a buffer type, that the plugin gave to it: `of` may read it.

unsafe extern "C" fn get_name(device: *mut abi::Device) -> *const c_char {
    // SAFETY: ours, see above.
    unsafe { Device::of(device) }.name.as_ptr()
}

unsafe extern "C" fn get_description(device: *mut abi::Device) -> *const c_char {
    // SAFETY: ours, see above.
    unsafe { Device::of(device) }.description.as_ptr()
}

unsafe extern "C" fn get_memory(device: *mut abi::Device, free: *mut usize, total: *mut usize) {
    // SAFETY: ours, see above.
    let (available, all) = guarded("get_memory", (0, 0), || unsafe { Device::of(device) }.memory());
    // SAFETY: the host passes two places for the answer.
    unsafe {
        *free = available;
        *total = all;
    }
}

unsafe extern "C" fn get_type(device: *mut abi::Device) -> c_int {
    // SAFETY: ours, see above.
    unsafe { Device::of(device) }.kind as c_int
}

unsafe extern "C" fn get_props(device: *mut abi::Device, properties: *mut abi::DeviceProperties) {
    // SAFETY: ours, see above.
    let ours = unsafe { Device::of(device) };
    let (memory_free, memory_total) = guarded("get_props", (0, 0), || ours.memory());
    let is_host = ours.runtime.is_host();
    let answer = abi::DeviceProperties {
        name: ours.name.as_ptr(),
        description: ours.description.as_ptr(),
        memory_free,
        memory_total,
        kind: ours.kind as c_int,
        device_id: null(),
        capabilities: abi::DeviceCapabilities {
            buffer_from_host_ptr: is_host,
            mmap_support: is_host,
            ..abi::DeviceCapabilities::default()
        },
    };
    // SAFETY: the host passes a place for the answer.
    unsafe { properties.write(answer) }
}

unsafe extern "C" fn init_backend(device: *mut abi::Device, _params: *const c_char) -> *mut abi::Backend {
    // SAFETY: ours, see above.
    guarded("init_backend", std::ptr::null_mut(), || stream::open(unsafe { Device::of(device) }))
}

unsafe extern "C" fn get_buffer_type(device: *mut abi::Device) -> BufferTypePointer {
    // SAFETY: ours, see above.
    let ours = unsafe { Device::of(device) };
    guarded("get_buffer_type", ours.own_buffer_type(), || ours.buffer_type())
}

unsafe extern "C" fn buffer_from_host_ptr(
    device: *mut abi::Device,
    start: *mut c_void,
    bytes: usize,
    _largest_tensor: usize,
) -> *mut abi::Buffer {
    guarded("buffer_from_host_ptr", std::ptr::null_mut(), || {
        // SAFETY: ours, see above.
        let ours = unsafe { Device::of(device) };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if ours.runtime.is_host() => {
                // SAFETY: the host keeps these bytes as long as the buffer.
                let memory = unsafe { Memory::foreign(start, bytes) };
                Storage::host(memory).into_host(ours.own_buffer_type(), bytes)
            }
            _ => std::ptr::null_mut(),
        }
    })
}

unsafe extern "C" fn supports_op(device: *mut abi::Device, node: *const abi::Tensor) -> bool {
    guarded("supports_op", false, || {
        // SAFETY: ours, see above; the host keeps the node while it waits for the answer.
        let (ours, node) = unsafe { (Device::of(device), Tensor::new(node)) };
        let Some(node) = node else { return false };
        let answer = ours.supports(node);
        if let Err(Declined(reason)) = &answer {
            let shapes: Vec<String> = node.sources().map(|source| format!("{:?}", source.counts())).collect();
            let device = ours.name.to_string_lossy();
            let op = op_name(node.op());
            log_once(Level::Debug, &format!("{device} declines {op} of {}: {reason}", shapes.join(", ")));
        }
        answer.is_ok()
    })
}

unsafe extern "C" fn supports_buft(device: *mut abi::Device, buffer_type: BufferTypePointer) -> bool {
    // SAFETY: ours, see above; the host passes a buffer type of its version.
    guarded("supports_buft", false, || unsafe { Device::of(device).reaches(buffer_type) })
}

/// The device of one of our buffer types, of the version that this process speaks.
///
/// # Safety
/// `buffer_type` is one of ours.
unsafe fn owner<'a>(buffer_type: BufferTypePointer) -> &'a Device {
    // SAFETY: the caller's promise; the context of each of our buffer types is its device.
    unsafe {
        match crate::version() {
            2 => &*(*buffer_type.cast::<BufferType2>()).context.cast::<Device>(),
            _ => &*(*buffer_type.cast::<BufferType3>()).context.cast::<Device>(),
        }
    }
}

unsafe extern "C" fn buffer_name(buffer_type: BufferTypePointer) -> *const c_char {
    // SAFETY: ours, see above.
    unsafe { owner(buffer_type) }.name.as_ptr()
}

unsafe extern "C" fn alloc_buffer(buffer_type: BufferTypePointer, bytes: usize) -> *mut abi::Buffer {
    guarded("alloc_buffer", std::ptr::null_mut(), || {
        // SAFETY: ours, see above.
        let ours = unsafe { owner(buffer_type) };
        let storage = match &ours.runtime {
            Runtime::Cpu(_) => Memory::zeroed(bytes).map(Storage::host).map_err(|error| error.to_string()),
            Runtime::Cuda(backend) => Storage::device(backend, bytes).map_err(|error| error.to_string()),
        };
        match storage {
            Ok(storage) => storage.into_host(buffer_type, bytes),
            Err(error) => {
                log(Level::Error, &format!("{}: {error}", ours.name.to_string_lossy()));
                std::ptr::null_mut()
            }
        }
    })
}

unsafe extern "C" fn get_alignment(buffer_type: BufferTypePointer) -> usize {
    // SAFETY: ours, see above.
    if unsafe { owner(buffer_type) }.runtime.is_host() { HOST_ALIGN_BYTES } else { DEVICE_ALIGN_BYTES }
}

unsafe extern "C" fn is_host(buffer_type: BufferTypePointer) -> bool {
    // SAFETY: ours, see above.
    unsafe { owner(buffer_type) }.runtime.is_host()
}
