//! How fast each op of ssmgraph *runs*: CPU kernels, the thread pool, vector code.
//!
//! This crate knows no graph. It offers a table from ops to kernels ([`cpu`]) and a way to run a list of
//! calls over fixed memory ([`kernel::Program`]). The unsafe code of the project lives here.

pub mod kernel;
pub mod mapped;
pub mod memory;
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
        Op::SsmScan(_) => None,
        Op::SsmConv(_) => None,
        Op::GatedNorm(_) => None,
        Op::RmsNorm(_) => None,
        Op::L2Norm(_) => None,
        Op::SoftMax(_) => None,
        Op::Cumsum(_) => None,
        Op::Argmax(_) => None,
        Op::Mean(_) => None,
        Op::Sum(_) => None,
        Op::SumRows(_) => None,
        Op::MulMat(_) => None,
        Op::Binary(_) => None,
        Op::Scale(_) => None,
        Op::Glu(_) => None,
        Op::GetRows(_) => None,
        Op::SetRows(_) => None,
        Op::Cpy(_) => None,
        Op::Concat(_) => None,
        Op::Repeat(_) => None,
        Op::Reshape(_) => None,
        Op::Window(_) => None,
        Op::Permute(_) => None,
        Op::Transpose(_) => None,
    }
}
