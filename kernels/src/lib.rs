//! How fast each op of ssmgraph *runs*: CPU kernels, the thread pool, vector code.
//!
//! This crate knows no graph. It offers a table from ops to kernels ([`cpu`]) and a way to run a list of
//! calls over fixed memory ([`kernel::Program`]). The unsafe code of the project lives here.

mod binary;
mod concat;
mod cpy;
mod get_rows;
mod glu;
pub mod kernel;
pub mod memory;
mod mul_mat;
mod repeat;
mod scale;
mod set_rows;
pub mod shared;
mod unary;

pub use kernel::{CpuKernel, Declined, Observer, Place, Program, ProgramError, Scratch, Step};
pub use memory::{Memory, OutOfMemory};
pub use shared::pool::{Pool, WORKERS_MAX};
pub use shared::simd::arch_name;

use ssmgraph_ops::Op;

/// The CPU kernel of each op. `None` is a choice made here, in sight: the op is a view and needs no kernel,
/// or the runtime's reference backend runs it.
pub fn cpu(op: &Op) -> Option<&dyn CpuKernel> {
    match op {
        Op::Unary(op) => Some(op),
        Op::MulMat(op) => Some(op),
        Op::Binary(op) => Some(op),
        Op::Scale(op) => Some(op),
        Op::Glu(op) => Some(op),
        Op::GetRows(op) => Some(op),
        Op::SetRows(op) => Some(op),
        Op::Cpy(op) => Some(op),
        Op::Concat(op) => Some(op),
        Op::Repeat(op) => Some(op),
        Op::Reshape(_) | Op::Window(_) | Op::Permute(_) | Op::Transpose(_) => None,
        Op::SsmScan(_) => None,
        Op::SsmConv(_) | Op::GatedNorm(_) | Op::RmsNorm(_) | Op::L2Norm(_) | Op::SoftMax(_) => None,
        Op::Cumsum(_) | Op::Argmax(_) | Op::Mean(_) | Op::Sum(_) | Op::SumRows(_) => None,
    }
}
