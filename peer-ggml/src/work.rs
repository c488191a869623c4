//! An op over operands as a graph of ggml, and that graph in a device's memory.

use crate::device::Device;
use crate::nodes;
use llama_cpp_sys_2 as sys;
use ssmgraph_ops::{DType, HostTensor, Layout, Op};
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};

/// Tensors of a graph at most.
const TENSORS_MAX: usize = 64;

/// An op with its operands as a graph of ggml, without memory.
pub struct Work {
    context: Context,
    graph: *mut sys::ggml_cgraph,
    inputs: Vec<*mut sys::ggml_tensor>,
    values: Vec<HostTensor>,
    result: *mut sys::ggml_tensor,
    /// Whether operand 0 is a matrix of weights, which a device may keep in a form of its own.
    weights: bool,
}

/// Structs of tensors, without their memory.
struct Context(NonNull<sys::ggml_context>);

impl Context {
    fn new() -> Option<Context> {
        // SAFETY: room for the structs of some tensors and one graph, which ggml allocates itself.
        let context = unsafe {
            sys::ggml_init(sys::ggml_init_params {
                mem_size: TENSORS_MAX * sys::ggml_tensor_overhead() + sys::ggml_graph_overhead(),
                mem_buffer: null_mut(),
                no_alloc: true,
            })
        };
        NonNull::new(context).map(Context)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: made once, freed once.
        unsafe { sys::ggml_free(self.0.as_ptr()) }
    }
}

impl Work {
    /// `None` for an op, attributes or layouts that ggml has not, alone or as a few nodes.
    pub fn of(op: &Op, inputs: &[HostTensor]) -> Option<Work> {
        if !nodes::accepts_layouts(op, inputs) {
            return None;
        }
        let context = Context::new()?;
        let at = context.0.as_ptr();
        // SAFETY: the context has room for the tensors of any op here; nothing outlives it.
        unsafe {
            let tensors: Vec<_> = inputs.iter().map(|input| tensor(at, input.layout())).collect();
            let roots = nodes::roots(at, op, &tensors, inputs)?;
            let graph = sys::ggml_new_graph(at);
            for &root in &roots {
                sys::ggml_build_forward_expand(graph, root);
            }
            let weights = matches!(op, Op::MulMat(_) | Op::MulMatId(_));
            Some(Work { context, graph, inputs: tensors, values: inputs.to_vec(), result: roots[0], weights })
        }
    }

    /// Whether a device computes every node.
    pub fn runs_on(&self, device: &Device) -> bool {
        // SAFETY: backend and graph live.
        unsafe {
            let device = sys::ggml_backend_get_device(device.backend.as_ptr());
            (0..sys::ggml_graph_n_nodes(self.graph)).all(|index| {
                sys::ggml_backend_dev_supports_op(device, sys::ggml_graph_node(self.graph, index))
            })
        }
    }

    /// The work with its operands in a device's memory. One at a time, since ggml's tensors know their memory.
    ///
    /// Errors: memory that ggml refused.
    pub fn load<'a>(&'a mut self, device: &'a Device) -> Result<Loaded<'a>, String> {
        let mut buffers = Vec::new();
        // SAFETY: the structs are reset first, since ggml allocates only what has no memory.
        unsafe {
            let mut tensor = sys::ggml_get_first_tensor(self.context.0.as_ptr());
            while !tensor.is_null() {
                ((*tensor).data, (*tensor).buffer) = (null_mut(), null_mut());
                tensor = sys::ggml_get_next_tensor(self.context.0.as_ptr(), tensor);
            }
            if self.weights {
                buffers.extend(self.place_weights(device));
            }
            let all = sys::ggml_backend_alloc_ctx_tensors(self.context.0.as_ptr(), device.backend.as_ptr());
            if all.is_null() {
                return Err("ggml refused the memory".into());
            }
            buffers.push(Buffer(all));
            for (&input, values) in self.inputs.iter().zip(&self.values) {
                sys::ggml_backend_tensor_set(input, values.bytes().as_ptr().cast(), 0, values.bytes().len());
            }
        }
        Ok(Loaded { graph: self.graph, result: self.result, device, _buffers: buffers, _work: PhantomData })
    }

    /// Puts operand 0 where llama.cpp puts weights: into the first kind of memory of the CPU's that computes the op,
    /// such as panels for its matrix instructions. `None` where the ordinary memory is the one.
    ///
    /// # Safety
    /// No tensor of the context has memory.
    unsafe fn place_weights(&self, device: &Device) -> Option<Buffer> {
        type ExtraKinds =
            unsafe extern "C" fn(sys::ggml_backend_dev_t) -> *mut sys::ggml_backend_buffer_type_t;
        let weights = self.inputs[0];
        // SAFETY: ggml documents the function's type by this name; its list ends with a null. A kind that does not
        // fit the op is left again before anything else has memory.
        unsafe {
            let device = sys::ggml_backend_get_device(device.backend.as_ptr());
            let registry = sys::ggml_backend_dev_backend_reg(device);
            let name = c"ggml_backend_dev_get_extra_bufts";
            let kinds = sys::ggml_backend_reg_get_proc_address(registry, name.as_ptr());
            if kinds.is_null() {
                return None;
            }
            let mut kind = std::mem::transmute::<*mut std::ffi::c_void, ExtraKinds>(kinds)(device);
            while !kind.is_null() && !(*kind).is_null() {
                let bytes = sys::ggml_backend_buft_get_alloc_size(*kind, weights);
                let buffer = sys::ggml_backend_buft_alloc_buffer(*kind, bytes);
                kind = kind.add(1);
                if buffer.is_null() {
                    continue;
                }
                let buffer = Buffer(buffer);
                let base = sys::ggml_backend_buffer_get_base(buffer.0);
                if sys::ggml_backend_tensor_alloc(buffer.0, weights, base) == sys::GGML_STATUS_SUCCESS
                    && sys::ggml_backend_dev_supports_op(device, self.result)
                {
                    return Some(buffer);
                }
                ((*weights).data, (*weights).buffer, (*weights).extra) = (null_mut(), null_mut(), null_mut());
            }
            None
        }
    }
}

struct Buffer(sys::ggml_backend_buffer_t);

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: made once, freed once.
        unsafe { sys::ggml_backend_buffer_free(self.0) }
    }
}

/// Work in a device's memory.
pub struct Loaded<'a> {
    graph: *mut sys::ggml_cgraph,
    result: *mut sys::ggml_tensor,
    device: &'a Device,
    _buffers: Vec<Buffer>,
    _work: PhantomData<&'a mut Work>,
}

impl Loaded<'_> {
    /// Computes the graph.
    ///
    /// Errors: ggml failed.
    pub fn run(&mut self) -> Result<(), String> {
        // SAFETY: every tensor of the graph has memory of this device.
        let status = unsafe { sys::ggml_backend_graph_compute(self.device.backend.as_ptr(), self.graph) };
        if status == sys::GGML_STATUS_SUCCESS { Ok(()) } else { Err(format!("ggml failed with {status}")) }
    }

    /// What the last run gave.
    pub fn result(&self) -> HostTensor {
        // SAFETY: the result has memory, as many bytes as its layout says.
        unsafe {
            let layout = Layout::contiguous(
                DType::from_gguf_id((*self.result).type_ as u32).expect("the result of an op of ours"),
                &(*self.result).ne.map(|count| count as usize),
            )
            .expect("ggml made it");
            let mut bytes = vec![0; layout.span_bytes()];
            sys::ggml_backend_tensor_get(self.result, bytes.as_mut_ptr().cast(), 0, bytes.len());
            HostTensor::from_bytes(layout, bytes).expect("as many bytes")
        }
    }
}

/// # Safety
/// The context has room.
unsafe fn tensor(context: *mut sys::ggml_context, layout: &Layout) -> *mut sys::ggml_tensor {
    let ne = layout.ne.map(|count| count as i64);
    // SAFETY: four counts, as said; strides are set before the tensor has memory, which ggml then counts by them.
    unsafe {
        let tensor = sys::ggml_new_tensor(context, layout.dtype.gguf_id() as sys::ggml_type, 4, ne.as_ptr());
        if !layout.is_contiguous() {
            (*tensor).nb = layout.nb;
        }
        tensor
    }
}
