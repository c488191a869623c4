//! What kernels share: operands as pointers with layouts, the thread pool, vector dispatch, scalar functions,
//! reductions in a fixed order.

pub mod call;
pub mod convert;
pub mod copy;
pub mod math;
pub mod order;
pub mod pool;
pub mod prefetch;
pub mod reduce;
pub mod simd;
pub mod stream;
