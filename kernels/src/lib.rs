//! How fast each op of ssmgraph *runs*: CPU kernels, the thread pool, vector code.
//!
//! This crate knows no graph. It offers a table from ops to kernels ([`cpu`]) and a way to run a list of
//! calls over fixed memory ([`kernel::Program`]). The unsafe code of the project lives here.

mod argmax;
mod attention;
mod binary;
mod check;
mod concat;
mod cpy;
pub mod cuda;
mod cumsum;
mod decay_gate;
mod gated_delta_net;
mod gated_norm;
mod get_rows;
mod glu;
pub mod kernel;
mod l2_norm;
pub mod mapped;
mod mean;
pub mod memory;
mod mul_mat;
mod mul_mat_id;
mod norm;
mod numerics;
mod qk_norm;
mod repeat;
mod rms_norm;
mod rope;
mod scale;
mod set_rows;
pub mod shared;
mod soft_max;
mod ssm_conv;
mod ssm_conv_step;
mod ssm_scan;
mod sum;
mod sum_rows;
mod top_k;
mod unary;

pub use check::{Extent, check_call};
pub use cuda::CudaKernel;
pub use kernel::{CpuKernel, Declined, Observer, Place, Program, ProgramError, Scratch, Step};
pub use memory::{Memory, OutOfMemory};
pub use numerics::{Forms, Numerics, Variant};
pub use shared::pool::{Pool, WORKERS_MAX};
pub use shared::simd::{arch_name, unknown_arch_name};

use ssmgraph_ops::Op;

/// The CPU kernel of each op. `None` is a choice made here, in sight: the op is a view and needs no kernel,
/// or the runtime's reference backend runs it.
pub fn cpu(op: &Op) -> Option<&dyn CpuKernel> {
    match op {
        Op::Unary(op) => Some(op),
        Op::SsmScan(op) => Some(op),
        Op::SsmConv(op) => Some(op),
        Op::SsmConvStep(op) => Some(op),
        Op::GatedNorm(op) => Some(op),
        Op::Norm(op) => Some(op),
        Op::RmsNorm(op) => Some(op),
        Op::L2Norm(op) => Some(op),
        Op::SoftMax(op) => Some(op),
        Op::Rope(op) => Some(op),
        Op::Attention(op) => Some(op),
        Op::Cumsum(op) => Some(op),
        Op::Argmax(op) => Some(op),
        Op::TopK(op) => Some(op),
        Op::Mean(op) => Some(op),
        Op::Sum(op) => Some(op),
        Op::SumRows(op) => Some(op),
        Op::MulMat(op) => Some(op),
        Op::MulMatId(op) => Some(op),
        Op::Binary(op) => Some(op),
        Op::Scale(op) => Some(op),
        Op::Glu(op) => Some(op),
        Op::GetRows(op) => Some(op),
        Op::SetRows(op) => Some(op),
        Op::Cpy(op) => Some(op),
        Op::Concat(op) => Some(op),
        Op::Repeat(op) => Some(op),
        Op::GatedDeltaNet(op) => Some(op),
        Op::DecayGate(op) => Some(op),
        Op::QkNorm(op) => Some(op),
        Op::Reshape(_) | Op::Window(_) | Op::Permute(_) | Op::Transpose(_) => None,
    }
}

/// The CUDA kernel of each op. `None` is a choice made here, in sight: the op is a view, or the CPU runs it
/// between two CUDA segments.
pub fn cuda_kernel(op: &Op) -> Option<&dyn CudaKernel> {
    match op {
        Op::Unary(op) => Some(op),
        Op::SsmScan(op) => Some(op),
        Op::SsmConv(op) => Some(op),
        Op::GatedNorm(op) => Some(op),
        Op::Norm(op) => Some(op),
        Op::RmsNorm(op) => Some(op),
        Op::L2Norm(op) => Some(op),
        Op::SoftMax(op) => Some(op),
        Op::Rope(op) => Some(op),
        Op::Attention(op) => Some(op),
        Op::Cumsum(op) => Some(op),
        Op::Argmax(op) => Some(op),
        Op::TopK(op) => Some(op),
        Op::Mean(op) => Some(op),
        Op::Sum(op) => Some(op),
        Op::SumRows(op) => Some(op),
        Op::MulMat(op) => Some(op),
        Op::MulMatId(op) => Some(op),
        Op::Binary(op) => Some(op),
        Op::Scale(op) => Some(op),
        Op::Glu(op) => Some(op),
        Op::GetRows(op) => Some(op),
        Op::SetRows(op) => Some(op),
        Op::Cpy(op) => Some(op),
        Op::Concat(op) => Some(op),
        Op::Repeat(op) => Some(op),
        Op::SsmConvStep(op) => Some(op),
        Op::GatedDeltaNet(op) => Some(op),
        Op::DecayGate(op) => Some(op),
        Op::QkNorm(op) => Some(op),
        Op::Reshape(_) | Op::Window(_) | Op::Permute(_) | Op::Transpose(_) => None,
    }
}
