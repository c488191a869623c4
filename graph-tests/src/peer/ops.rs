//! Each op case that ggml accepts, on its own CPU backend and on ours.

use crate::arrays::nmse;
use llama_cpp_sys_2 as sys;
use ssmgraph::ops::binary::BinaryFunction;
use ssmgraph::ops::gated_delta_net::Grouping;
use ssmgraph::ops::glu::{Glu, GluFunction};
use ssmgraph::ops::l2_norm::Form;
use ssmgraph::ops::unary::{Function, Unary};
use ssmgraph::ops::{Case, DType, HostTensor, Layout, Op, OpKind};
use std::ffi::CString;
use std::ptr::null_mut;

/// What came of the cases.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Computed on both.
    pub compared: usize,
    /// Which our device does not take.
    pub declined: usize,
    /// Ops, attributes and layouts that ggml has not.
    pub foreign: usize,
    /// With infinities, NaN, or values whose squares leave the range of f32: ggml's formulas lose them, ours do not.
    pub special: usize,
    /// Cases whose results are apart, and how far.
    pub wrong: Vec<String>,
}

/// As ggml's own tests allow: its products round activations. Its GELU is a table of halves.
fn nmse_max(op: &Op, dtype: DType) -> f64 {
    let is_gelu = matches!(
        op,
        Op::Unary(Unary { function: Function::Gelu }) | Op::Glu(Glu { function: GluFunction::Geglu, .. })
    );
    match (op, dtype) {
        (Op::MulMat(_) | Op::MulMatId(_), _) => 5e-4,
        _ if is_gelu => 1e-6,
        (_, DType::F32 | DType::I32 | DType::I64) => 1e-7,
        _ => 1e-5,
    }
}

/// Computes all cases.
///
/// Errors: no such device, memory that ggml refused.
pub fn compare(device: &str) -> Result<Comparison, String> {
    let name = CString::new(device).map_err(|error| error.to_string())?;
    // SAFETY: the text lives through the call; a device makes backends until the process ends.
    let (ours, own) = unsafe {
        let device = sys::ggml_backend_dev_by_name(name.as_ptr());
        if device.is_null() {
            return Err(format!("ggml has no device {}", name.to_string_lossy()));
        }
        let own = sys::ggml_backend_init_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU, std::ptr::null());
        (sys::ggml_backend_dev_init(device, std::ptr::null()), own)
    };
    if ours.is_null() || own.is_null() {
        return Err("a backend could not be made".into());
    }
    let mut comparison = Comparison::default();
    for case in OpKind::ALL.iter().flat_map(|kind| kind.cases()) {
        if !case.inputs.iter().all(is_ordinary) {
            comparison.special += 1;
            continue;
        }
        match Pair::of(&case).map(|pair| pair.run(ours, own)) {
            None => comparison.foreign += 1,
            Some(Outcome::Declined) => comparison.declined += 1,
            Some(Outcome::Failed(why)) => {
                comparison.wrong.push(format!("{} {}: {why}", case.op.name(), case.name))
            }
            Some(Outcome::Apart(apart)) => {
                comparison.compared += 1;
                let limit = nmse_max(&case.op, case.inputs[0].layout().dtype);
                if apart.is_nan() || apart > limit {
                    comparison.wrong.push(format!("{} {}: NMSE {apart:.1e}", case.op.name(), case.name));
                }
            }
        }
    }
    // SAFETY: made above, freed once.
    unsafe {
        sys::ggml_backend_free(ours);
        sys::ggml_backend_free(own);
    }
    Ok(comparison)
}

enum Outcome {
    Declined,
    Failed(String),
    Apart(f64),
}

/// A case as a graph of ggml, without memory.
struct Pair {
    context: *mut sys::ggml_context,
    graph: *mut sys::ggml_cgraph,
    inputs: Vec<*mut sys::ggml_tensor>,
    values: Vec<HostTensor>,
    result: *mut sys::ggml_tensor,
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: made in `of`, freed once.
        unsafe { sys::ggml_free(self.context) }
    }
}

impl Pair {
    /// `None` for what ggml does not accept.
    fn of(case: &Case) -> Option<Pair> {
        let layouts = || case.inputs.iter().map(HostTensor::layout);
        let honours_strides = matches!(
            case.op.kind(),
            OpKind::Binary | OpKind::Norm | OpKind::RmsNorm | OpKind::L2Norm | OpKind::Mean | OpKind::SumRows
        );
        let fits = |layout: &Layout| {
            layout.is_contiguous() || honours_strides && layout.nb[0] == layout.dtype.block_bytes()
        };
        if !layouts().all(|layout| fits(layout) && !layout.is_empty()) {
            return None;
        }
        // SAFETY: the context holds the structs of a few tensors and one graph; nothing outlives it.
        unsafe {
            let bytes = 64 * sys::ggml_tensor_overhead() + sys::ggml_graph_overhead();
            let context = sys::ggml_init(sys::ggml_init_params {
                mem_size: bytes,
                mem_buffer: null_mut(),
                no_alloc: true,
            });
            let inputs: Vec<_> = case.inputs.iter().map(|input| tensor(context, input.layout())).collect();
            let values = case.inputs.clone();
            let mut pair = Pair { context, graph: null_mut(), inputs, values, result: null_mut() };
            pair.result = node(context, &case.op, &pair.inputs, &case.inputs)?;
            pair.graph = sys::ggml_new_graph(context);
            sys::ggml_build_forward_expand(pair.graph, pair.result);
            Some(pair)
        }
    }

    fn run(&self, ours: sys::ggml_backend_t, own: sys::ggml_backend_t) -> Outcome {
        // SAFETY: backends live; the graph's tensors have memory before they are read or written.
        unsafe {
            let device = sys::ggml_backend_get_device(ours);
            if !sys::ggml_backend_dev_supports_op(device, self.result) {
                return Outcome::Declined;
            }
            let mut results = Vec::new();
            for backend in [own, ours] {
                let mut answer = Vec::new();
                if let Err(why) = self.on(backend, &mut answer) {
                    return Outcome::Failed(why);
                }
                results.push(answer);
            }
            if results[0].iter().zip(&results[1]).any(|(a, b)| a.is_nan() != b.is_nan()) {
                return Outcome::Failed("a NaN on one side alone".into());
            }
            let finite = |of: &[f32]| -> Vec<f32> {
                of.iter().map(|value| if value.is_finite() { *value } else { 0.0 }).collect()
            };
            let (expected, found) = (finite(&results[0]), finite(&results[1]));
            // Nothing can be said relative to zeros.
            Outcome::Apart(if expected == found { 0.0 } else { nmse(&found, &expected) })
        }
    }

    /// # Safety
    /// The backend lives.
    unsafe fn on(&self, backend: sys::ggml_backend_t, answer: &mut Vec<f32>) -> Result<(), String> {
        // SAFETY: as the caller promises; sizes are ggml's own. Memory is taken for this call alone: the structs are
        // reset, since ggml allocates only what has no memory.
        unsafe {
            let mut tensor = sys::ggml_get_first_tensor(self.context);
            while !tensor.is_null() {
                ((*tensor).data, (*tensor).buffer) = (null_mut(), null_mut());
                tensor = sys::ggml_get_next_tensor(self.context, tensor);
            }
            let buffer = sys::ggml_backend_alloc_ctx_tensors(self.context, backend);
            if buffer.is_null() {
                return Err("no memory".into());
            }
            for (&input, values) in self.inputs.iter().zip(&self.values) {
                sys::ggml_backend_tensor_set(input, values.bytes().as_ptr().cast(), 0, values.bytes().len());
            }
            let status = sys::ggml_backend_graph_compute(backend, self.graph);
            if status == sys::GGML_STATUS_SUCCESS {
                let layout = Layout::contiguous(
                    DType::from_gguf_id((*self.result).type_ as u32).expect("the result of an op of ours"),
                    &(*self.result).ne.map(|count| count as usize),
                )
                .expect("ggml made it");
                let mut bytes = vec![0; layout.span_bytes()];
                sys::ggml_backend_tensor_get(self.result, bytes.as_mut_ptr().cast(), 0, bytes.len());
                let tensor = HostTensor::from_bytes(layout, bytes).expect("as many bytes");
                answer.extend(tensor.to_f64().iter().map(|&value| value as f32));
            }
            sys::ggml_backend_buffer_free(buffer);
            if status == sys::GGML_STATUS_SUCCESS { Ok(()) } else { Err(format!("status {status}")) }
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

/// The op over these tensors, where ggml has it for such operands: its constructors abort on anything else.
///
/// # Safety
/// The context has room, the tensors are of it.
unsafe fn node(
    context: *mut sys::ggml_context,
    op: &Op,
    x: &[*mut sys::ggml_tensor],
    inputs: &[HostTensor],
) -> Option<*mut sys::ggml_tensor> {
    let ne = |index: usize| inputs[index].layout().ne;
    let dtype = |index: usize| inputs[index].layout().dtype;
    let f32s = (0..inputs.len()).all(|index| matches!(dtype(index), DType::F32 | DType::I32));
    // SAFETY: shapes and types are those that the constructor asserts.
    unsafe {
        Some(match op {
            Op::Unary(op) if f32s => match op.function {
                Function::Silu => sys::ggml_silu(context, x[0]),
                Function::Sigmoid => sys::ggml_sigmoid(context, x[0]),
                Function::Softplus => sys::ggml_softplus(context, x[0]),
                Function::Exp => sys::ggml_exp(context, x[0]),
                Function::Neg => sys::ggml_neg(context, x[0]),
                Function::Relu => sys::ggml_relu(context, x[0]),
                Function::Tanh => sys::ggml_tanh(context, x[0]),
                Function::Gelu => sys::ggml_gelu(context, x[0]),
            },
            Op::Binary(op) if f32s => match op.function {
                BinaryFunction::Add => sys::ggml_add(context, x[0], x[1]),
                BinaryFunction::Sub => sys::ggml_sub(context, x[0], x[1]),
                BinaryFunction::Mul => sys::ggml_mul(context, x[0], x[1]),
                BinaryFunction::Div => sys::ggml_div(context, x[0], x[1]),
            },
            Op::Scale(op) if f32s => sys::ggml_scale_bias(context, x[0], op.scale, op.bias),
            Op::Glu(op) if f32s && !op.swapped => {
                let function = match op.function {
                    GluFunction::Reglu => sys::GGML_GLU_OP_REGLU,
                    GluFunction::Geglu => sys::GGML_GLU_OP_GEGLU,
                    GluFunction::Swiglu => sys::GGML_GLU_OP_SWIGLU,
                };
                match op.split {
                    true => sys::ggml_glu_split(context, x[0], x[1], function),
                    false => sys::ggml_glu(context, x[0], function, false),
                }
            }
            Op::Norm(op) if f32s => sys::ggml_norm(context, x[0], op.eps),
            Op::RmsNorm(op) if f32s && !op.weight => sys::ggml_rms_norm(context, x[0], op.eps),
            Op::L2Norm(op) if f32s && op.form == Form::Max => sys::ggml_l2_norm(context, x[0], op.eps),
            Op::Cumsum(_) if f32s => sys::ggml_cumsum(context, x[0]),
            Op::Sum(_) if f32s => sys::ggml_sum(context, x[0]),
            Op::SumRows(_) if f32s => sys::ggml_sum_rows(context, x[0]),
            Op::Mean(_) if f32s => sys::ggml_mean(context, x[0]),
            Op::SsmConv(op) if !op.bias && !op.silu && ne(0)[3] == 1 => {
                sys::ggml_ssm_conv(context, x[0], x[1])
            }
            // −1 is ours.
            Op::SsmScan(op)
                if ids_are_rows(&inputs[6])
                    && (op.snapshots == 1 || ne(3)[0] == 1 && op.snapshots <= ne(1)[2]) =>
            {
                sys::ggml_ssm_scan(context, x[0], x[1], x[2], x[3], x[4], x[5], x[6], op.snapshots as i64)
            }
            // One state for each sequence, in order.
            Op::GatedDeltaNet(op)
                if op.grouping == Grouping::Tiled
                    && op.snapshots <= ne(3)[2].max(1)
                    && ne(0)[3] == ne(3)[3]
                    && inputs[6].to_f64().iter().enumerate().all(|(index, &id)| id == index as f64) =>
            {
                let snapshots = op.snapshots as i64;
                sys::ggml_gated_delta_net(context, x[1], x[2], x[3], x[4], x[5], x[0], snapshots)
            }
            Op::MulMat(_) => sys::ggml_mul_mat(context, x[0], x[1]),
            Op::Concat(op) if inputs.len() == 2 => sys::ggml_concat(context, x[0], x[1], op.axis as i32),
            Op::GetRows(_) if dtype(0) != DType::I64 && ids_are_rows(&inputs[1]) => {
                sys::ggml_get_rows(context, x[0], x[1])
            }
            _ => return None,
        })
    }
}

/// Whether every value and its square are ordinary numbers.
fn is_ordinary(values: &HostTensor) -> bool {
    let is_float = matches!(values.layout().dtype, DType::F32 | DType::F16 | DType::BF16);
    !is_float || values.to_f64().iter().all(|value| *value == 0.0 || (1e-15..1e15).contains(&value.abs()))
}

fn ids_are_rows(ids: &HostTensor) -> bool {
    ids.to_f64().iter().all(|&id| id >= 0.0)
}
