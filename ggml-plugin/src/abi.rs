//! ggml's backend interface as C sees it: structs, tables of functions, numbers.
//!
//! Everything that changed between versions 2 and 3 of the interface is here: the table of a buffer type grew by two
//! entries. Sizes and offsets are asserted at compile time; [`crate::host`] compares what a running ggml tells of itself.
//! Source: the public headers of ggml 0.21.0 (version 2) and 0.26.0 (version 3).

use std::ffi::{c_char, c_int, c_void};

/// Axes of a tensor.
pub const AXES: usize = 4;
/// Operands of a node.
pub const SOURCES: usize = 10;
/// 32-bit words of a node's parameters.
pub const PARAMS: usize = 16;

/// `GGML_STATUS_ALLOC_FAILED`.
pub const STATUS_ALLOC_FAILED: c_int = -2;
/// `GGML_STATUS_FAILED`.
pub const STATUS_FAILED: c_int = -1;
/// `GGML_STATUS_SUCCESS`.
pub const STATUS_SUCCESS: c_int = 0;

/// `GGML_TENSOR_FLAG_OUTPUT`: somebody outside the graph reads it.
pub const FLAG_OUTPUT: i32 = 2;
/// `GGML_TENSOR_FLAG_COMPUTE`: the node is to be computed.
pub const FLAG_COMPUTE: i32 = 16;

/// What kind of device the host's scheduler takes a device for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum DeviceType {
    /// Holds layers and states.
    Gpu = 1,
    /// Helps the CPU, in the CPU's memory.
    Accel = 3,
}

/// Declares the node kinds that the plugin names, with ggml's numbers and names.
macro_rules! nodes {
    ($($(#[$doc:meta])* $constant:ident = $number:literal $name:literal;)*) => {
        $($(#[$doc])* pub const $constant: c_int = $number;)*

        /// Each number with the name that `ggml_op_name` gives it.
        pub const OP_NAMES: &[(c_int, &str)] = &[$(($number, $name),)*];
    };
}

nodes! {
    /// A leaf.
    OP_NONE = 0 "NONE";
    /// A copy.
    OP_DUP = 1 "DUP";
    /// Sum of two.
    OP_ADD = 2 "ADD";
    /// Difference.
    OP_SUB = 6 "SUB";
    /// Product, element by element.
    OP_MUL = 7 "MUL";
    /// Quotient.
    OP_DIV = 8 "DIV";
    /// Square.
    OP_SQR = 9 "SQR";
    /// Sum of all elements.
    OP_SUM = 14 "SUM";
    /// Sum of each row.
    OP_SUM_ROWS = 15 "SUM_ROWS";
    /// Running sums.
    OP_CUMSUM = 16 "CUMSUM";
    /// Mean of each row.
    OP_MEAN = 17 "MEAN";
    /// Index of the largest.
    OP_ARGMAX = 18 "ARGMAX";
    /// Whole repetitions.
    OP_REPEAT = 20 "REPEAT";
    /// Two tensors joined.
    OP_CONCAT = 22 "CONCAT";
    /// Layer norm.
    OP_NORM = 24 "NORM";
    /// RMS norm.
    OP_RMS_NORM = 25 "RMS_NORM";
    /// Norm by length.
    OP_L2_NORM = 28 "L2_NORM";
    /// Matrix product.
    OP_MUL_MAT = 29 "MUL_MAT";
    /// Matrix product by picked experts.
    OP_MUL_MAT_ID = 30 "MUL_MAT_ID";
    /// Product with a number.
    OP_SCALE = 32 "SCALE";
    /// A copy into another tensor.
    OP_CPY = 34 "CPY";
    /// A packed copy.
    OP_CONT = 35 "CONT";
    /// The same bytes in another shape.
    OP_RESHAPE = 36 "RESHAPE";
    /// A part of a tensor.
    OP_VIEW = 37 "VIEW";
    /// Axes in another order.
    OP_PERMUTE = 38 "PERMUTE";
    /// Two axes exchanged.
    OP_TRANSPOSE = 39 "TRANSPOSE";
    /// Rows picked by number.
    OP_GET_ROWS = 40 "GET_ROWS";
    /// Rows written by number.
    OP_SET_ROWS = 42 "SET_ROWS";
    /// Softmax.
    OP_SOFT_MAX = 46 "SOFT_MAX";
    /// Rotary embedding.
    OP_ROPE = 48 "ROPE";
    /// Indices in order.
    OP_ARGSORT = 69 "ARGSORT";
    /// Indices of the largest.
    OP_TOP_K = 70 "TOP_K";
    /// The convolution.
    OP_SSM_CONV = 76 "SSM_CONV";
    /// The scan.
    OP_SSM_SCAN = 77 "SSM_SCAN";
    /// The gated delta rule.
    OP_GATED_DELTA_NET = 86 "GATED_DELTA_NET";
    /// A function of one operand.
    OP_UNARY = 91 "UNARY";
    /// A gated unit.
    OP_GLU = 100 "GLU";
}

/// An entry that the plugin leaves empty.
pub type Absent = Option<unsafe extern "C" fn()>;

/// `ggml_tensor`.
#[derive(Debug)]
#[repr(C)]
pub struct Tensor {
    /// Number of the element type, as in GGUF files.
    pub dtype: c_int,
    /// Where the data lie; null before allocation.
    pub buffer: *mut Buffer,
    /// Elements along each axis.
    pub ne: [i64; AXES],
    /// Bytes from one element, or block, to the next along each axis.
    pub nb: [usize; AXES],
    /// What computes it.
    pub op: c_int,
    /// Parameters of the op.
    pub params: [i32; PARAMS],
    /// `FLAG_…`
    pub flags: i32,
    /// Operands; null past the last, and where an optional one is absent.
    pub sources: [*mut Tensor; SOURCES],
    /// The tensor whose bytes a view shows.
    pub view_source: *mut Tensor,
    /// Where it starts in them.
    pub view_offset: usize,
    /// Address of element 0.
    pub data: *mut c_void,
    /// Its name, closed by a zero.
    pub name: [c_char; 64],
    /// Of the backend.
    pub extra: *mut c_void,
    /// Unused.
    pub padding: [c_char; 8],
}

/// `ggml_hash_set`: which tensors a graph has visited.
#[repr(C)]
pub struct HashSet {
    /// Number of places.
    pub size: usize,
    /// One bit for each place.
    pub used: *const u32,
    /// The tensor at each place in use.
    pub keys: *const *const Tensor,
}

/// `ggml_cgraph`.
#[repr(C)]
pub struct Graph {
    /// Room for nodes.
    pub size: c_int,
    /// Number of nodes.
    pub node_count: c_int,
    /// Number of leaves.
    pub leaf_count: c_int,
    /// The nodes in the order in which they are to be computed.
    pub nodes: *const *mut Tensor,
    /// Gradients.
    pub gradients: *mut c_void,
    /// Sums of gradients.
    pub gradient_sums: *mut c_void,
    /// Leaves.
    pub leaves: *mut c_void,
    /// How often a tensor is read, by its place in `visited`.
    pub use_counts: *const i32,
    /// Tensors of the whole graph that this one is a part of.
    pub visited: HashSet,
    /// Order of evaluation.
    pub order: c_int,
    /// Equal in two calls if the graphs are; 0 where the host gives none.
    pub uid: u64,
}

/// What takes a buffer type or a thing that begins like one.
pub type BufferTypePointer = *mut c_void;

/// `ggml_backend_buffer_type` of version 2 of the interface.
#[repr(C)]
pub struct BufferType2 {
    /// Its name.
    pub get_name: unsafe extern "C" fn(BufferTypePointer) -> *const c_char,
    /// A new buffer.
    pub alloc_buffer: unsafe extern "C" fn(BufferTypePointer, usize) -> *mut Buffer,
    /// What tensors are aligned to.
    pub get_alignment: unsafe extern "C" fn(BufferTypePointer) -> usize,
    /// Largest buffer.
    pub get_max_size: Absent,
    /// Bytes of a tensor.
    pub get_alloc_size: Absent,
    /// Whether the host may read and write it.
    pub is_host: Option<unsafe extern "C" fn(BufferTypePointer) -> bool>,
    /// Its device.
    pub device: *mut Device,
    /// Of the plugin.
    pub context: *mut c_void,
}

/// `ggml_backend_buffer_type` of version 3.
#[repr(C)]
pub struct BufferType3 {
    /// Its name.
    pub get_name: unsafe extern "C" fn(BufferTypePointer) -> *const c_char,
    /// A new buffer.
    pub alloc_buffer: unsafe extern "C" fn(BufferTypePointer, usize) -> *mut Buffer,
    /// A new buffer for given tensors.
    pub alloc_buffer_n: Absent,
    /// What tensors are aligned to.
    pub get_alignment: unsafe extern "C" fn(BufferTypePointer) -> usize,
    /// Largest buffer.
    pub get_max_size: Absent,
    /// Bytes of a tensor.
    pub get_alloc_size: Absent,
    /// Bytes of several.
    pub get_alloc_size_n: Absent,
    /// Whether the host may read and write it.
    pub is_host: Option<unsafe extern "C" fn(BufferTypePointer) -> bool>,
    /// Its device.
    pub device: *mut Device,
    /// Of the plugin.
    pub context: *mut c_void,
}

/// `ggml_backend_buffer_i`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BufferTable {
    /// Frees what the context holds; ggml frees the struct.
    pub free_buffer: Option<unsafe extern "C" fn(*mut Buffer)>,
    /// Its first address.
    pub get_base: Option<unsafe extern "C" fn(*mut Buffer) -> *mut c_void>,
    /// Prepares a tensor.
    pub init_tensor: Absent,
    /// Fills a part of a tensor.
    pub memset_tensor: Option<unsafe extern "C" fn(*mut Buffer, *mut Tensor, u8, usize, usize)>,
    /// Copies into a tensor.
    pub set_tensor: Option<unsafe extern "C" fn(*mut Buffer, *mut Tensor, *const c_void, usize, usize)>,
    /// Copies out of a tensor.
    pub get_tensor: Option<unsafe extern "C" fn(*mut Buffer, *const Tensor, *mut c_void, usize, usize)>,
    /// Copies in with strides.
    pub set_tensor_2d: Absent,
    /// Copies out with strides.
    pub get_tensor_2d: Absent,
    /// Copies between buffers.
    pub cpy_tensor: Absent,
    /// Fills the buffer.
    pub clear: Option<unsafe extern "C" fn(*mut Buffer, u8)>,
    /// Forgets tensors.
    pub reset: Absent,
}

/// `ggml_backend_buffer`.
#[repr(C)]
pub struct Buffer {
    /// What can be done with it.
    pub table: BufferTable,
    /// Its type.
    pub buffer_type: BufferTypePointer,
    /// Of its maker.
    pub context: *mut c_void,
    /// Its bytes.
    pub size: usize,
    /// What it is used for.
    pub usage: c_int,
}

/// `ggml_backend_i`.
#[repr(C)]
pub struct BackendTable {
    /// Its name.
    pub get_name: unsafe extern "C" fn(*mut Backend) -> *const c_char,
    /// Frees it, the struct included.
    pub free: unsafe extern "C" fn(*mut Backend),
    /// Optional entries for copies that are not waited for, and for synchronisation.
    pub copies: [Absent; 6],
    /// Optional entries for plans.
    pub plans: [Absent; 4],
    /// Computes a graph.
    pub graph_compute: unsafe extern "C" fn(*mut Backend, *mut Graph) -> c_int,
    /// Optional entries for events and for reordering a graph.
    pub events: [Absent; 3],
}

/// `ggml_backend`: a stream of work on a device.
#[repr(C)]
pub struct Backend {
    /// Tells kinds of backends apart.
    pub guid: *const [u8; 16],
    /// What can be done with it.
    pub table: BackendTable,
    /// Its device.
    pub device: *mut Device,
    /// Of the plugin.
    pub context: *mut c_void,
}

/// `ggml_backend_dev_caps`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct DeviceCapabilities {
    /// Work that is not waited for.
    pub asynchronous: bool,
    /// Page-locked host buffers.
    pub host_buffer: bool,
    /// Buffers over memory of the host.
    pub buffer_from_host_ptr: bool,
    /// Events.
    pub events: bool,
    /// Files mapped into memory (version 3).
    pub mmap_support: bool,
}

/// `ggml_backend_dev_props`.
#[repr(C)]
pub struct DeviceProperties {
    /// Its name.
    pub name: *const c_char,
    /// What it is.
    pub description: *const c_char,
    /// Bytes free.
    pub memory_free: usize,
    /// Bytes in all.
    pub memory_total: usize,
    /// A [`DeviceType`].
    pub kind: c_int,
    /// Tells two entries of one device apart from two devices; may be null.
    pub device_id: *const c_char,
    /// What it can do.
    pub capabilities: DeviceCapabilities,
}

/// `ggml_backend_device_i`.
#[repr(C)]
pub struct DeviceTable {
    /// Its name.
    pub get_name: unsafe extern "C" fn(*mut Device) -> *const c_char,
    /// What it is.
    pub get_description: unsafe extern "C" fn(*mut Device) -> *const c_char,
    /// Bytes free, and in all.
    pub get_memory: unsafe extern "C" fn(*mut Device, *mut usize, *mut usize),
    /// A [`DeviceType`].
    pub get_type: unsafe extern "C" fn(*mut Device) -> c_int,
    /// All of that.
    pub get_props: unsafe extern "C" fn(*mut Device, *mut DeviceProperties),
    /// A stream of work.
    pub init_backend: unsafe extern "C" fn(*mut Device, *const c_char) -> *mut Backend,
    /// The type of its buffers.
    pub get_buffer_type: unsafe extern "C" fn(*mut Device) -> BufferTypePointer,
    /// The type of page-locked buffers.
    pub get_host_buffer_type: Absent,
    /// A buffer over memory of the host.
    pub buffer_from_host_ptr:
        Option<unsafe extern "C" fn(*mut Device, *mut c_void, usize, usize) -> *mut Buffer>,
    /// Whether it computes a node.
    pub supports_op: unsafe extern "C" fn(*mut Device, *const Tensor) -> bool,
    /// Whether it reads and writes buffers of a type.
    pub supports_buft: unsafe extern "C" fn(*mut Device, BufferTypePointer) -> bool,
    /// Whether a node is worth copying its weights.
    pub offload_op: Absent,
    /// Entries for events.
    pub events: [Absent; 3],
}

/// `ggml_backend_device`.
#[repr(C)]
pub struct Device {
    /// What can be done with it.
    pub table: DeviceTable,
    /// Its registry.
    pub registry: *mut Registry,
    /// Of the plugin.
    pub context: *mut c_void,
}

/// `ggml_backend_reg_i`.
#[repr(C)]
pub struct RegistryTable {
    /// Its name.
    pub get_name: unsafe extern "C" fn(*mut Registry) -> *const c_char,
    /// Number of devices.
    pub get_device_count: unsafe extern "C" fn(*mut Registry) -> usize,
    /// A device.
    pub get_device: unsafe extern "C" fn(*mut Registry, usize) -> *mut Device,
    /// A function by name.
    pub get_proc_address: Option<unsafe extern "C" fn(*mut Registry, *const c_char) -> *mut c_void>,
}

/// `ggml_backend_reg`.
#[repr(C)]
pub struct Registry {
    /// Version of the interface; the host wants its own.
    pub api_version: c_int,
    /// What can be done with it.
    pub table: RegistryTable,
    /// Of the plugin.
    pub context: *mut c_void,
}

/// What a backend of ours has done: the answer of `ssmgraph_counts`, a function that hosts may ask the registry for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counts {
    /// Nodes of the graphs that were computed.
    pub nodes: u64,
    /// Steps of ours that computed them.
    pub steps: u64,
    /// Graphs that were planned.
    pub planned: u64,
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<Tensor>() == 336);
    assert!(offset_of!(Tensor, op) == 80);
    assert!(offset_of!(Tensor, flags) == 148);
    assert!(offset_of!(Tensor, sources) == 152);
    assert!(offset_of!(Tensor, view_source) == 232);
    assert!(offset_of!(Tensor, data) == 248);
    assert!(offset_of!(Tensor, extra) == 320);
    assert!(size_of::<Graph>() == 96);
    assert!(offset_of!(Graph, nodes) == 16);
    assert!(offset_of!(Graph, uid) == 88);
    assert!(size_of::<BufferTable>() == 88);
    assert!(size_of::<Buffer>() == 120);
    assert!(size_of::<BufferType2>() == 64);
    assert!(size_of::<BufferType3>() == 80);
    assert!(size_of::<BackendTable>() == 128);
    assert!(size_of::<Backend>() == 152);
    assert!(size_of::<DeviceProperties>() == 56);
    assert!(size_of::<DeviceTable>() == 120);
    assert!(size_of::<Device>() == 136);
    assert!(size_of::<Registry>() == 48);
};
