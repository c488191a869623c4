//! Ops as nodes of ggml: one where ggml has the op, a few where its models spell it out.

use llama_cpp_sys_2 as sys;
use ssmgraph_ops::binary::BinaryFunction;
use ssmgraph_ops::gated_delta_net::Grouping;
use ssmgraph_ops::gated_norm::{Gate, GatedNorm, Order};
use ssmgraph_ops::glu::GluFunction;
use ssmgraph_ops::l2_norm::Form;
use ssmgraph_ops::unary::Function;
use ssmgraph_ops::{DType, HostTensor, Layout, Op, OpKind, SsmConvStep};
use std::ptr::null_mut;

type Tensor = *mut sys::ggml_tensor;

/// Whether ggml may be asked about operands that lie like this: packed, but for ops whose strides it honours.
pub fn accepts_layouts(op: &Op, inputs: &[HostTensor]) -> bool {
    let honours_strides = matches!(
        op.kind(),
        OpKind::Binary | OpKind::Norm | OpKind::RmsNorm | OpKind::L2Norm | OpKind::Mean | OpKind::SumRows
    );
    let fits = |layout: &Layout| {
        layout.is_contiguous() || honours_strides && layout.nb[0] == layout.dtype.block_bytes()
    };
    inputs.iter().map(HostTensor::layout).all(|layout| fits(layout) && !layout.is_empty())
}

/// The nodes to compute, the result first.
///
/// # Safety
/// The context has room, the tensors are of it.
pub unsafe fn roots(
    context: *mut sys::ggml_context,
    op: &Op,
    x: &[Tensor],
    inputs: &[HostTensor],
) -> Option<Vec<Tensor>> {
    let f32s = inputs.iter().all(|input| matches!(input.layout().dtype, DType::F32 | DType::I32));
    // SAFETY: as the caller promises; shapes were accepted by our own rules, which are at least as strict.
    unsafe {
        match op {
            Op::SsmConvStep(op) => conv_step(context, op, x, inputs),
            Op::GatedNorm(op) if f32s => gated_norm(context, op, x, inputs).map(|y| vec![y]),
            Op::RmsNorm(op) if f32s && op.weight => {
                let normed = sys::ggml_rms_norm(context, x[0], op.eps);
                Some(vec![sys::ggml_mul(context, normed, x[1])])
            }
            _ => node(context, op, x, inputs).map(|y| vec![y]),
        }
    }
}

/// The block of a Mamba layer of llama.cpp: the window and the new tokens joined, the convolution, bias and SiLU, and the
/// new window written where the old one was.
///
/// # Safety
/// As for [`roots`].
unsafe fn conv_step(
    context: *mut sys::ggml_context,
    op: &SsmConvStep,
    x: &[Tensor],
    inputs: &[HostTensor],
) -> Option<Vec<Tensor>> {
    let (window, ids) = (inputs[0].layout(), inputs.last()?.to_f64());
    if op.snapshots != 1 || ids.len() != 1 || ids[0] < 0.0 {
        return None;
    }
    let [past, channels, ..] = window.ne.map(|count| count as i64);
    let tokens = inputs[1].layout().ne[1];
    // SAFETY: as the caller promises; the views lie inside the pool and inside the joined inputs.
    unsafe {
        let slot = sys::ggml_view_3d(
            context,
            x[0],
            past,
            channels,
            1,
            window.nb[1],
            window.nb[3],
            ids[0] as usize * window.nb[3],
        );
        let joined = sys::ggml_concat(context, slot, sys::ggml_transpose(context, x[1]), 0);
        let (nb1, nb2) = ((*joined).nb[1], (*joined).nb[2]);
        let end = sys::ggml_view_3d(context, joined, past, channels, 1, nb1, nb2, tokens * size_of::<f32>());
        let mut y = sys::ggml_ssm_conv(context, joined, x[2]);
        if op.bias {
            y = sys::ggml_add(context, y, x[3]);
        }
        if op.silu {
            y = sys::ggml_silu(context, y);
        }
        Some(vec![y, sys::ggml_cpy(context, end, slot)])
    }
}

/// The gated norm of llama.cpp's graphs: a norm, a product with its weights, the gate.
///
/// # Safety
/// As for [`roots`].
unsafe fn gated_norm(
    context: *mut sys::ggml_context,
    op: &GatedNorm,
    x: &[Tensor],
    inputs: &[HostTensor],
) -> Option<Tensor> {
    if inputs[0].layout().ne[0] != op.group_size {
        return None;
    }
    // SAFETY: as the caller promises; z has the shape of x, w as many elements as a row.
    unsafe {
        let gate = match op.gate {
            Gate::Silu => sys::ggml_silu(context, x[1]),
            Gate::Sigmoid => sys::ggml_sigmoid(context, x[1]),
        };
        let norm = |v| sys::ggml_mul(context, sys::ggml_rms_norm(context, v, op.eps), x[2]);
        Some(match op.order {
            Order::NormThenGate => sys::ggml_mul(context, norm(x[0]), gate),
            Order::GateThenNorm => norm(sys::ggml_mul(context, x[0], gate)),
        })
    }
}

/// The op over these tensors, where ggml has it for such operands: its constructors abort on anything else.
///
/// # Safety
/// The context has room, the tensors are of it.
unsafe fn node(
    context: *mut sys::ggml_context,
    op: &Op,
    x: &[Tensor],
    inputs: &[HostTensor],
) -> Option<Tensor> {
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
            Op::SoftMax(op) if f32s && !op.mask => {
                sys::ggml_soft_max_ext(context, x[0], null_mut(), op.scale, 0.0)
            }
            // ggml's takes a matrix.
            Op::Argmax(_) if f32s && ne(0)[2] * ne(0)[3] == 1 => sys::ggml_argmax(context, x[0]),
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

fn ids_are_rows(ids: &HostTensor) -> bool {
    ids.to_f64().iter().all(|&id| id >= 0.0)
}
