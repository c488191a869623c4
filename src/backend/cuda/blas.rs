//! Matrix products by cuBLAS, where it is present and `Numerics::Fast` allows an order of summation that
//! depends on the shape.

use super::Device;
use super::driver::{CudaError, Stream};
use super::memory::Block;
use cudarc::cublas::{result, sys};
use ssmgraph_kernels::cuda::DeviceTensor;
use ssmgraph_ops::{DType, Op};
use std::sync::Arc;

/// Bytes that cuBLAS may use while it works. Given by us, since what it allocates itself cannot be captured.
const WORKSPACE_BYTES: usize = 8 << 20;

/// Below this many columns our own kernels read the weights once, which is all there is to gain.
const COLUMNS_MIN: usize = 16;

/// A handle on one stream.
pub struct Blas {
    handle: sys::cublasHandle_t,
    _workspace: Block,
}

// SAFETY: a handle may be used from any thread, one at a time, which its owner ensures.
unsafe impl Send for Blas {}

impl Blas {
    /// A handle on a stream; `None` where the library is not installed.
    ///
    /// Errors: the library's, memory that is refused.
    pub fn new(device: &Arc<Device>, stream: &Stream) -> Result<Option<Blas>, CudaError> {
        // SAFETY: only looks for the library.
        if !unsafe { sys::is_culib_present() } {
            return Ok(None);
        }
        let workspace = Block::new(device, WORKSPACE_BYTES)?;
        let handle = named("cublasCreate", result::create_handle())?;
        let blas = Blas { handle, _workspace: workspace };
        // SAFETY: the handle was just made; the stream outlives it, since the program that owns both drops
        // the handle first; the workspace is this long.
        unsafe {
            named("cublasSetStream", result::set_stream(handle, stream.raw().cast()))?;
            let start = blas._workspace.address() as *mut std::ffi::c_void;
            named("cublasSetWorkspace", sys::cublasSetWorkspace_v2(handle, start, WORKSPACE_BYTES).result())?;
        }
        Ok(Some(blas))
    }

    /// Queues a product.
    ///
    /// Errors: the library's.
    ///
    /// # Safety
    /// The tensors that the product was made from lie in memory that stays until the work is done.
    pub unsafe fn multiply(&self, product: &Product) -> Result<(), CudaError> {
        use sys::cublasOperation_t::{CUBLAS_OP_N as PLAIN, CUBLAS_OP_T as TURNED};
        let (one, zero) = (1.0f32, 0.0f32);
        let Product { m, n, k, a, b, y, batch } = *product;
        // SAFETY: sizes and strides are those of the tensors; the caller answers for the memory.
        let queued = unsafe {
            result::sgemm_strided_batched(
                self.handle,
                TURNED,
                PLAIN,
                m,
                n,
                k,
                &one,
                a.start as *const f32,
                a.column,
                a.matrix,
                b.start as *const f32,
                b.column,
                b.matrix,
                &zero,
                y.start as *mut f32,
                y.column,
                y.matrix,
                batch,
            )
        };
        named("cublasSgemmStridedBatched", queued)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made in `new`.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// One matrix operand: its address, and its strides in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Matrix {
    start: u64,
    column: i32,
    matrix: i64,
}

/// y = aᵀ·b for a batch of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    m: i32,
    n: i32,
    k: i32,
    a: Matrix,
    b: Matrix,
    y: Matrix,
    batch: i32,
}

impl Product {
    /// The product that a step is, when cuBLAS takes it and is likely to be faster: `f32` throughout, packed
    /// rows, one batch axis at most.
    pub fn of(op: &Op, inputs: &[DeviceTensor], results: &[DeviceTensor]) -> Option<Product> {
        let Op::MulMat(_) = op else { return None };
        let (a, b, y) = (&inputs[0], &inputs[1], &results[0]);
        let [k, m, a_batch, a_outer] = a.layout.ne;
        let [_, n, batch, outer] = b.layout.ne;
        let plain = a.layout.dtype == DType::F32 && a_outer == 1 && outer == 1;
        let broadcast = a_batch == 1 || a_batch == batch;
        if !plain || !broadcast || n < COLUMNS_MIN || k == 0 || m == 0 || batch == 0 {
            return None;
        }
        let number = |count: usize| i32::try_from(count).ok();
        Some(Product {
            m: number(m)?,
            n: number(n)?,
            k: number(k)?,
            a: matrix(a, if a_batch == 1 { 0 } else { a.layout.nb[2] })?,
            b: matrix(b, b.layout.nb[2])?,
            y: matrix(y, y.layout.nb[2])?,
            batch: number(batch)?,
        })
    }
}

/// A tensor as cuBLAS names it; `None` when its rows are not packed or its strides are odd.
fn matrix(tensor: &DeviceTensor, matrix_bytes: usize) -> Option<Matrix> {
    let layout = &tensor.layout;
    let size = size_of::<f32>();
    let column_bytes = if layout.ne[1] == 1 { layout.row_bytes() } else { layout.nb[1] };
    let whole = layout.rows_packed()
        && column_bytes >= layout.row_bytes()
        && column_bytes.is_multiple_of(size)
        && matrix_bytes.is_multiple_of(size);
    let strides = || {
        Some(Matrix {
            start: tensor.address,
            column: i32::try_from(column_bytes / size).ok()?,
            matrix: (matrix_bytes / size) as i64,
        })
    };
    if whole { strides() } else { None }
}

fn named<T>(call: &'static str, result: Result<T, result::CublasError>) -> Result<T, CudaError> {
    result.map_err(|result::CublasError(code)| CudaError { call, code: 0, reason: format!("{code:?}") })
}
