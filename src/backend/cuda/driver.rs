//! Owners of the driver's objects: contexts, memory, streams, events, modules, graphs.
//!
//! They sit on cudarc's `result` layer rather than on its safe one: that one orders streams by events of its
//! own, which breaks captures, and its graphs can neither be sent to another thread nor updated. Each error
//! names the call that failed. Dropping an owner ignores errors: a lost device refuses even that.

use cudarc::driver::{DriverError, result, sys};
use std::ffi::c_void;
use std::sync::Arc;

/// A call of the driver that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {reason}")]
pub struct CudaError {
    /// Name of the call.
    pub call: &'static str,
    /// The driver's code; 0 when the fault was found before the driver was asked.
    pub code: u32,
    /// What the driver says of it.
    pub reason: String,
}

impl CudaError {
    /// A fault found before the driver was asked.
    pub fn before(call: &'static str, reason: impl Into<String>) -> CudaError {
        CudaError { call, code: 0, reason: reason.into() }
    }

    /// Whether the driver works but has no device.
    pub fn is_no_device(&self) -> bool {
        self.code == sys::CUresult::CUDA_ERROR_NO_DEVICE as u32
    }

    /// Whether the device has no memory left.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32
    }
}

/// Names the call in its error.
fn named<T>(call: &'static str, result: Result<T, DriverError>) -> Result<T, CudaError> {
    result.map_err(|DriverError(code)| CudaError { call, code: code as u32, reason: format!("{code:?}") })
}

/// The oldest driver with every function that is called: that of CUDA 12.0.
const DRIVER_VERSION_MIN: i32 = 12_000;

/// Whether this machine has a driver.
pub fn is_present() -> bool {
    // SAFETY: only looks for the library.
    unsafe { sys::is_culib_present() }
}

/// Checks that there is a driver, and starts it.
///
/// Errors: no driver, one that is too old, one that does not start.
pub fn start() -> Result<(), CudaError> {
    if !is_present() {
        return Err(CudaError::before("loading libcuda", "no CUDA driver was found on this machine"));
    }
    named("cuInit", result::init())?;
    let mut version = 0;
    // SAFETY: the argument is a valid place.
    named("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) }.result())?;
    if version < DRIVER_VERSION_MIN {
        let what = format!("the driver is for CUDA {}.{}, expected 12.0", version / 1000, version % 100 / 10);
        return Err(CudaError::before("cuDriverGetVersion", what));
    }
    Ok(())
}

/// How many devices there are. [`start`] comes first.
///
/// Errors: the driver's.
pub fn device_count() -> Result<usize, CudaError> {
    Ok(named("cuDeviceGetCount", result::device::get_count())?.max(0) as usize)
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The name its maker gives it.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Its memory, in bytes.
    pub memory_bytes: usize,
}

/// The primary context of a device.
pub struct Context {
    device: sys::CUdevice,
    raw: sys::CUcontext,
}

// SAFETY: the driver's handles may be used from any thread; a thread makes the context current first.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The context of the device with this number. [`start`] comes first.
    ///
    /// Errors: no such device, the driver's.
    pub fn new(ordinal: usize) -> Result<Arc<Context>, CudaError> {
        let number = i32::try_from(ordinal).unwrap_or(i32::MAX);
        let device = named("cuDeviceGet", result::device::get(number))?;
        // SAFETY: the device is one the driver gave.
        let raw = named("cuDevicePrimaryCtxRetain", unsafe { result::primary_ctx::retain(device) })?;
        Ok(Arc::new(Context { device, raw }))
    }

    /// Makes the context current on this thread; everything else here needs that.
    ///
    /// Errors: the driver's.
    pub fn enter(&self) -> Result<(), CudaError> {
        // SAFETY: the context lives as long as `self`.
        named("cuCtxSetCurrent", unsafe { result::ctx::set_current(self.raw) })
    }

    /// What the device is.
    ///
    /// Errors: the driver's.
    pub fn info(&self) -> Result<DeviceInfo, CudaError> {
        use sys::CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        let attribute = |which| {
            // SAFETY: the device is one the driver gave.
            let value = unsafe { result::device::get_attribute(self.device, which) };
            named("cuDeviceGetAttribute", value).map(|value| value.max(0) as u32)
        };
        // SAFETY: as above.
        let memory = unsafe { result::device::total_mem(self.device) };
        Ok(DeviceInfo {
            name: named("cuDeviceGetName", result::device::get_name(self.device))?,
            capability: (attribute(MAJOR)?, attribute(MINOR)?),
            memory_bytes: named("cuDeviceTotalMem", memory)?,
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained in `new`, once.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Memory of a device.
pub struct DeviceMemory {
    context: Arc<Context>,
    address: u64,
    bytes: usize,
}

impl DeviceMemory {
    /// New memory with undefined contents; `bytes` is above 0.
    ///
    /// Errors: the driver's.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<DeviceMemory, CudaError> {
        // SAFETY: a context is current.
        let address = named("cuMemAlloc", unsafe { result::malloc_sync(bytes) })?;
        Ok(DeviceMemory { context: context.clone(), address, bytes })
    }

    /// Its first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: allocated in `new`; owners see to it that no queued work uses it any more.
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// Page-locked host memory, which the device copies from and to on its own.
pub struct Pinned {
    context: Arc<Context>,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    /// New memory, all zero.
    ///
    /// Errors: the driver's.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Pinned, CudaError> {
        // SAFETY: a context is current; the memory is set before anyone reads it.
        unsafe {
            let start: *mut u8 = named("cuMemHostAlloc", result::malloc_host(bytes, 0))?.cast();
            start.write_bytes(0, bytes);
            Ok(Pinned { context: context.clone(), start, bytes })
        }
    }

    /// The bytes. No queued copy may be using them.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is this long and was set in `new`.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    /// The bytes, to be written. No queued copy may be using them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: allocated in `new`.
        let _ = unsafe { result::free_host(self.start.cast()) };
    }
}

/// A queue of work.
pub struct Stream {
    context: Arc<Context>,
    raw: sys::CUstream,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Stream {}

impl Stream {
    /// A new stream, which waits for no other.
    ///
    /// Errors: the driver's.
    pub fn new(context: &Arc<Context>) -> Result<Stream, CudaError> {
        let raw = named("cuStreamCreate", result::stream::create(result::stream::StreamKind::NonBlocking))?;
        Ok(Stream { context: context.clone(), raw })
    }

    /// The driver's handle, for libraries that queue work themselves.
    pub fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Waits until all work is done.
    ///
    /// Errors: the first that the work met.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream lives as long as `self`.
        named("cuStreamSynchronize", unsafe { result::stream::synchronize(self.raw) })
    }

    /// Lets later work wait for an event.
    ///
    /// Errors: the driver's.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both live.
        named("cuStreamWaitEvent", unsafe { result::stream::wait_event(self.raw, event.raw, flags) })
    }

    /// Queues a copy from page-locked memory to the device.
    ///
    /// Errors: the driver's.
    ///
    /// # Safety
    /// `target` and as many bytes as `source[range]` lie in device memory; both stay until the copy is done,
    /// and nobody writes the source meanwhile.
    pub unsafe fn upload(
        &self,
        source: &Pinned,
        range: std::ops::Range<usize>,
        target: u64,
    ) -> Result<(), CudaError> {
        let bytes = &source.bytes()[range];
        // SAFETY: promised by the caller.
        named("cuMemcpyHtoDAsync", unsafe { result::memcpy_htod_async(target, bytes, self.raw) })
    }

    /// Queues a copy from the device to the start of page-locked memory.
    ///
    /// Errors: the driver's.
    ///
    /// # Safety
    /// `bytes` bytes from `source` lie in device memory and `bytes` is no more than the target has; both
    /// stay until the copy is done, and nobody touches the target meanwhile.
    pub unsafe fn download(&self, source: u64, target: &Pinned, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: promised by the caller; the call itself only queues.
        let copied = unsafe { sys::cuMemcpyDtoHAsync_v2(target.start.cast(), source, bytes, self.raw) };
        named("cuMemcpyDtoHAsync", copied.result())
    }

    /// Queues setting device memory to zero.
    ///
    /// Errors: the driver's.
    ///
    /// # Safety
    /// The bytes lie in device memory that stays until the work is done.
    pub unsafe fn zero(&self, address: u64, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: promised by the caller.
        named("cuMemsetD8Async", unsafe { result::memset_d8_async(address, 0, bytes, self.raw) })
    }

    /// Queues a kernel with one parameter, a struct by value.
    ///
    /// Errors: the driver's.
    ///
    /// # Safety
    /// The parameter is as long as the kernel's, and the pointers in it reach memory that stays until the
    /// kernel is done and that it may use as it does.
    pub unsafe fn launch(
        &self,
        function: Function,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        parameter: &[u64],
    ) -> Result<(), CudaError> {
        let mut parameters = [parameter.as_ptr().cast_mut().cast::<c_void>()];
        let (grid, block) = (grid.into(), block.into());
        // SAFETY: promised by the caller; the driver copies the parameter before it returns.
        let launched = unsafe {
            result::launch_kernel(function.0, grid, block, shared_bytes, self.raw, &mut parameters)
        };
        named("cuLaunchKernel", launched)
    }

    /// Records the work that `queue` queues here into a graph instead of running it.
    ///
    /// Errors: what `queue` met, or the driver's; the stream can be used again in any case.
    pub fn capture(&self, queue: impl FnOnce() -> Result<(), CudaError>) -> Result<Graph, CudaError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as `self`.
        named("cuStreamBeginCapture", unsafe { result::stream::begin_capture(self.raw, mode) })?;
        let queued = queue();
        // Ended whatever happened: a stream that is left capturing refuses all work.
        // SAFETY: as above.
        let graph = named("cuStreamEndCapture", unsafe { result::stream::end_capture(self.raw) });
        let graph = graph.map(|raw| Graph { context: self.context.clone(), raw });
        queued?;
        graph
    }

    /// Queues a graph.
    ///
    /// Errors: the driver's.
    ///
    /// # Safety
    /// The memory that the graph's work uses stays until that is done.
    pub unsafe fn replay(&self, graph: &Executable) -> Result<(), CudaError> {
        // SAFETY: promised by the caller; both live.
        named("cuGraphLaunch", unsafe { result::graph::launch(graph.raw, self.raw) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: created in `new`.
        let _ = unsafe { result::stream::destroy(self.raw) };
    }
}

/// A point in a stream's work.
pub struct Event {
    context: Arc<Context>,
    raw: sys::CUevent,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// A new event without time.
    ///
    /// Errors: the driver's.
    pub fn new(context: &Arc<Context>) -> Result<Event, CudaError> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let raw = named("cuEventCreate", result::event::create(flags))?;
        Ok(Event { context: context.clone(), raw })
    }

    /// Marks the end of what is queued in a stream now.
    ///
    /// Errors: the driver's.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both live.
        named("cuEventRecord", unsafe { result::event::record(self.raw, stream.raw) })
    }

    /// Waits until the stream has come here.
    ///
    /// Errors: the first that the work met.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the event lives as long as `self`.
        named("cuEventSynchronize", unsafe { result::event::synchronize(self.raw) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: created in `new`.
        let _ = unsafe { result::event::destroy(self.raw) };
    }
}

/// Loaded code.
pub struct Module {
    context: Arc<Context>,
    raw: sys::CUmodule,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Module {}

/// A kernel of a module, which must outlive it.
#[derive(Clone, Copy, Debug)]
pub struct Function(sys::CUfunction);

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Function {}

impl Module {
    /// Loads PTX text or a cubin.
    ///
    /// Errors: code that the driver does not take.
    pub fn load(context: &Arc<Context>, code: &[u8]) -> Result<Module, CudaError> {
        // PTX is read up to a zero; after a cubin one more byte does no harm.
        let mut terminated = code.to_vec();
        terminated.push(0);
        // SAFETY: the text ends in a zero; a cubin says its own size.
        let raw = unsafe { result::module::load_data(terminated.as_ptr().cast()) };
        Ok(Module { context: context.clone(), raw: named("cuModuleLoadData", raw)? })
    }

    /// A kernel by name.
    ///
    /// Errors: no such kernel.
    pub fn function(&self, name: &str) -> Result<Function, CudaError> {
        let text = std::ffi::CString::new(name)
            .map_err(|_| CudaError::before("cuModuleGetFunction", "a name with a zero byte"))?;
        // SAFETY: the module lives as long as `self`.
        let function = unsafe { result::module::get_function(self.raw, text) };
        named("cuModuleGetFunction", function).map(Function)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: loaded in `load`.
        let _ = unsafe { result::module::unload(self.raw) };
    }
}

/// Recorded work.
pub struct Graph {
    context: Arc<Context>,
    raw: sys::CUgraph,
}

impl Graph {
    /// Prepares the graph to be launched.
    ///
    /// Errors: the driver's.
    pub fn instantiate(&self) -> Result<Executable, CudaError> {
        // SAFETY: the graph lives as long as `self`.
        let raw = unsafe { result::graph::instantiate(self.raw, sys::CUgraphInstantiate_flags(0)) };
        Ok(Executable { context: self.context.clone(), raw: named("cuGraphInstantiate", raw)? })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: made by a capture.
        let _ = unsafe { result::graph::destroy(self.raw) };
    }
}

/// A graph that can be launched. Its memory is not its own.
pub struct Executable {
    context: Arc<Context>,
    raw: sys::CUgraphExec,
}

// SAFETY: the driver's handles may be used from any thread, one at a time, which `&mut` and owners ensure.
unsafe impl Send for Executable {}

impl Executable {
    /// Takes the parameters, addresses and launch shapes of another graph of the same topology.
    ///
    /// Errors: another topology, the driver's; the executable then is what it was.
    pub fn update(&mut self, graph: &Graph) -> Result<(), CudaError> {
        let mut info = std::mem::MaybeUninit::<sys::CUgraphExecUpdateResultInfo>::zeroed();
        // SAFETY: both live, and the info is a valid place.
        let updated = unsafe { sys::cuGraphExecUpdate_v2(self.raw, graph.raw, info.as_mut_ptr()) };
        named("cuGraphExecUpdate", updated.result())
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: made by `instantiate`.
        let _ = unsafe { result::graph::exec_destroy(self.raw) };
    }
}
