//! The plugin as a host uses it: loaded by its path, called through ggml's interface.

use crate::base::Base;
use crate::graph::Graph;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use ssmgraph_ggml::abi;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;

/// What the child process was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Of the interface.
    pub version: c_int,
    /// The ggml in the process.
    pub base: Base,
    /// What the CPU's device is to the scheduler: `accel` or `gpu`.
    pub kind: &'static str,
    /// Whether the emulated driver is there.
    pub cuda: bool,
    /// Further variables of the environment.
    pub variables: &'static [(&'static str, &'static str)],
}

/// A process that has loaded the plugin.
pub struct Host {
    /// What the process was made for.
    pub setting: Setting,
    base: Option<Library>,
    library: Library,
}

impl Host {
    /// Loads the base library, where there is one, and the plugin, each into a scope of its own.
    pub fn start(setting: Setting) -> Host {
        // SAFETY: both libraries are the project's own, and their initialisers touch nothing.
        let open = |path: PathBuf| unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) };
        let base = setting.base.path(setting.version).map(|path| open(path).expect("the base library loads"));
        let library = open(library_path()).expect("the plugin loads");
        Host { setting, base, library }
    }

    /// What `ggml_backend_init` returns.
    pub fn init(&self) -> *mut abi::Registry {
        // SAFETY: the function has this type.
        unsafe {
            let init =
                self.library.get::<unsafe extern "C" fn() -> *mut abi::Registry>(b"ggml_backend_init\0");
            init.expect("the plugin has an entry")()
        }
    }

    /// What `ggml_backend_score` returns.
    pub fn score(&self) -> c_int {
        // SAFETY: the function has this type.
        unsafe {
            self.library.get::<unsafe extern "C" fn() -> c_int>(b"ggml_backend_score\0").expect("is there")()
        }
    }

    /// Every device.
    pub fn devices(&self) -> Vec<Device> {
        // SAFETY: the registry is the plugin's, and indices lie below the count.
        unsafe {
            let registry = self.init();
            assert!(!registry.is_null(), "{}", self.lines());
            let table = &(*registry).table;
            let count = (table.get_device_count)(registry);
            (0..count)
                .map(|index| Device((table.get_device)(registry, index), self.setting.version))
                .collect()
        }
    }

    /// The device under test: the CPU's, or with the emulator the emulated one.
    pub fn device(&self) -> Device {
        let devices = self.devices();
        devices[usize::from(self.setting.cuda)]
    }

    /// A function that the registry gives; null when it has none of this name.
    pub fn function(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).expect("no zeros");
        // SAFETY: the registry is the plugin's.
        unsafe {
            let registry = self.init();
            (*registry).table.get_proc_address.expect("the plugin has it")(registry, name.as_ptr())
        }
    }

    /// What a stream has done.
    pub fn counts(&self, stream: &Stream) -> abi::Counts {
        let address = self.function("ssmgraph_counts");
        assert!(!address.is_null());
        let mut counts = abi::Counts::default();
        // SAFETY: the function has this type.
        unsafe {
            let function: unsafe extern "C" fn(*mut abi::Backend, *mut abi::Counts) =
                std::mem::transmute(address);
            function(stream.0, &mut counts);
        }
        counts
    }

    /// Tells a stream how many threads to use.
    pub fn set_threads(&self, stream: &Stream, threads: c_int) {
        let address = self.function("ggml_backend_set_n_threads");
        assert!(!address.is_null());
        // SAFETY: the function has this type.
        unsafe {
            let function: unsafe extern "C" fn(*mut abi::Backend, c_int) = std::mem::transmute(address);
            function(stream.0, threads);
        }
    }

    /// Everything that the plugin wrote to the host's log; empty without a base library.
    pub fn lines(&self) -> String {
        let Some(base) = &self.base else { return String::new() };
        // SAFETY: the function has this type, and its answer is closed by a zero.
        unsafe {
            let lines = base.get::<unsafe extern "C" fn() -> *const c_char>(b"base_lines\0");
            CStr::from_ptr(lines.expect("the base library has a log")()).to_string_lossy().into_owned()
        }
    }

    /// Lines of the log since a length of it.
    pub fn lines_since(&self, length: usize) -> String {
        self.lines()[length..].to_owned()
    }

    /// Closes the plugin.
    pub fn close(self) {
        self.library.close().expect("a library can be closed");
    }
}

/// Where cargo puts the plugin: beside the test's executable.
pub fn library_path() -> PathBuf {
    let executable = std::env::current_exe().expect("a process knows its executable");
    executable.with_file_name("libssmgraph_ggml.so")
}

/// A text of the plugin.
pub fn text(pointer: *const c_char) -> String {
    assert!(!pointer.is_null());
    // SAFETY: texts of the plugin are closed by a zero and stay.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// A device, with the version of the interface.
#[derive(Clone, Copy)]
pub struct Device(pub *mut abi::Device, pub c_int);

impl Device {
    /// Its functions.
    pub fn table(self) -> &'static abi::DeviceTable {
        // SAFETY: devices of the plugin stay.
        unsafe { &(*self.0).table }
    }

    /// Its name.
    pub fn name(self) -> String {
        // SAFETY: a device's function on itself, as everywhere below.
        text(unsafe { (self.table().get_name)(self.0) })
    }

    /// A [`abi::DeviceType`].
    pub fn kind(self) -> c_int {
        // SAFETY: see above.
        unsafe { (self.table().get_type)(self.0) }
    }

    /// All about it.
    pub fn properties(self) -> abi::DeviceProperties {
        let mut properties = std::mem::MaybeUninit::uninit();
        // SAFETY: see above; the plugin fills the place.
        unsafe {
            (self.table().get_props)(self.0, properties.as_mut_ptr());
            properties.assume_init()
        }
    }

    /// Whether it computes a node.
    pub fn supports(self, node: *const abi::Tensor) -> bool {
        // SAFETY: see above; tests keep their nodes.
        unsafe { (self.table().supports_op)(self.0, node) }
    }

    /// The type of the buffers that the host shall use.
    pub fn buffer_type(self) -> BufferType {
        // SAFETY: see above.
        BufferType(unsafe { (self.table().get_buffer_type)(self.0) }, self.1)
    }

    /// A stream of work.
    pub fn stream(self) -> Stream {
        // SAFETY: see above.
        let backend = unsafe { (self.table().init_backend)(self.0, std::ptr::null()) };
        assert!(!backend.is_null());
        Stream(backend)
    }
}

/// A type of buffers, with the version of the interface.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BufferType(pub abi::BufferTypePointer, pub c_int);

impl BufferType {
    /// Its functions, as version 2 has them.
    fn table2(self) -> &'static abi::BufferType2 {
        // SAFETY: types stay, and the first two entries are those of both versions.
        unsafe { &*self.0.cast::<abi::BufferType2>() }
    }

    /// Its functions, as version 3 has them.
    fn table3(self) -> &'static abi::BufferType3 {
        // SAFETY: asked in version 3 alone.
        unsafe { &*self.0.cast::<abi::BufferType3>() }
    }

    /// Its name.
    pub fn name(self) -> String {
        // SAFETY: a type's function on itself, as everywhere below.
        text(unsafe { (self.table2().get_name)(self.0) })
    }

    /// What tensors are aligned to.
    pub fn alignment(self) -> usize {
        let get = if self.1 == 2 { self.table2().get_alignment } else { self.table3().get_alignment };
        // SAFETY: see above.
        unsafe { get(self.0) }
    }

    /// Whether the host may read its buffers.
    pub fn is_host(self) -> bool {
        let get = if self.1 == 2 { self.table2().is_host } else { self.table3().is_host };
        // SAFETY: see above.
        get.is_some_and(|get| unsafe { get(self.0) })
    }

    /// A buffer; null when memory was refused.
    pub fn allocate(self, bytes: usize) -> *mut abi::Buffer {
        // SAFETY: see above; the entry is the second in both versions.
        unsafe { (self.table2().alloc_buffer)(self.0, bytes) }
    }
}

/// Frees a buffer as ggml does: what the context holds by its table, the struct by C++ `delete`, which is `free`.
pub fn free_buffer(buffer: *mut abi::Buffer) {
    unsafe extern "C" {
        fn free(pointer: *mut c_void);
    }
    // SAFETY: tests free a buffer once.
    unsafe {
        if let Some(free_context) = (*buffer).table.free_buffer {
            free_context(buffer);
        }
        free(buffer.cast());
    }
}

/// A stream of work on a device.
pub struct Stream(pub *mut abi::Backend);

// SAFETY: a stream may be used from any thread, by one at a time.
unsafe impl Send for Stream {}

impl Stream {
    /// Computes a graph and returns the status.
    pub fn compute(&self, graph: &Graph) -> c_int {
        // SAFETY: tests keep graphs, and use a stream from one thread.
        unsafe { ((*self.0).table.graph_compute)(self.0, graph.pointer()) }
    }

    /// Computes a graph.
    ///
    /// Panics unless that succeeds.
    pub fn must_compute(&self, graph: &Graph) {
        assert_eq!(self.compute(graph), abi::STATUS_SUCCESS);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made once, freed once.
        unsafe { ((*self.0).table.free)(self.0) }
    }
}
