//! The exported C functions.

use crate::product::{Element, Matrix, Product, submit};
use std::ffi::{c_int, c_longlong};

const SUCCESS: c_int = 0;
const NOT_INITIALIZED: c_int = 1;
const INVALID_VALUE: c_int = 7;
const EXECUTION_FAILED: c_int = 13;
const NOT_SUPPORTED: c_int = 15;

/// What a `cublasHandle_t` points at.
struct Handle {
    stream: usize,
}

/// A `cublasHandle_t`. Made only by [`cublasCreate_v2`]; C callers pass it on until they destroy it.
#[repr(transparent)]
struct HandlePointer(*mut Handle);

/// A scalar on the host, or null.
#[repr(transparent)]
struct Scalar(*const f32);

impl HandlePointer {
    fn handle(&mut self) -> Option<&mut Handle> {
        // SAFETY: null, or a handle that is alive and that one thread uses at a time, as cuBLAS demands.
        unsafe { self.0.as_mut() }
    }
}

impl Scalar {
    fn get(&self) -> Option<f64> {
        // SAFETY: null, or a place that holds an f32: computation in f32 is all that is accepted.
        unsafe { self.0.as_ref() }.map(|&value| value.into())
    }
}

/// A matrix as C passes it.
struct Operand {
    address: usize,
    kind: c_int,
    column: c_int,
    stride: c_longlong,
    operation: c_int,
}

impl Operand {
    fn matrix(&self) -> Result<Matrix, c_int> {
        Ok(Matrix {
            address: self.address,
            element: Element::from_number(self.kind).ok_or(NOT_SUPPORTED)?,
            column: usize::try_from(self.column).map_err(|_| INVALID_VALUE)?,
            stride: usize::try_from(self.stride).map_err(|_| INVALID_VALUE)?,
            transposed: self.operation != 0,
        })
    }
}

/// Checks a call and puts it into the handle's stream.
fn multiply(
    mut handle: HandlePointer,
    sizes: [c_int; 3],
    scalars: [Scalar; 2],
    operands: [Operand; 3],
    batch: c_int,
) -> c_int {
    let mut checked = || {
        let stream = handle.handle().ok_or(NOT_INITIALIZED)?.stream;
        let size = |size: c_int| usize::try_from(size).map_err(|_| INVALID_VALUE);
        let [alpha, beta] = scalars.each_ref().map(|scalar| scalar.get().ok_or(INVALID_VALUE));
        let [a, b, c] = operands.each_ref().map(Operand::matrix);
        let product = Product {
            sizes: [size(sizes[0])?, size(sizes[1])?, size(sizes[2])?],
            alpha: alpha?,
            beta: beta?,
            a: a?,
            b: b?,
            c: c?,
            batch: size(batch)?,
        };
        match product.has_valid_columns() {
            false => Err(INVALID_VALUE),
            true if submit(stream, product) => Ok(()),
            true => Err(EXECUTION_FAILED),
        }
    };
    checked().map_or_else(|status| status, |()| SUCCESS)
}

fn operand(address: usize, kind: c_int, column: c_int, stride: c_longlong, operation: c_int) -> Operand {
    Operand { address, kind, column, stride, operation }
}

/// `CUDA_R_32F`.
const F32: c_int = 0;
/// `CUBLAS_COMPUTE_32F` and its variants, which differ in precision alone.
const COMPUTE_F32: std::ops::RangeInclusive<c_int> = 68..=78;
/// `CUBLAS_COMPUTE_64F` and the one after it lie among those.
const COMPUTE_F64: std::ops::RangeInclusive<c_int> = 70..=73;

fn is_f32(compute: c_int) -> bool {
    COMPUTE_F32.contains(&compute) && !COMPUTE_F64.contains(&compute)
}

#[unsafe(no_mangle)]
extern "C" fn cublasCreate_v2(handle: *mut *mut Handle) -> c_int {
    if handle.is_null() {
        return INVALID_VALUE;
    }
    let created = Box::into_raw(Box::new(Handle { stream: 0 }));
    // SAFETY: the C caller passes a place for a handle.
    unsafe { handle.write(created) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cublasDestroy_v2(handle: *mut Handle) -> c_int {
    if handle.is_null() {
        return NOT_INITIALIZED;
    }
    // SAFETY: made by `cublasCreate_v2`, and by the C interface not destroyed before.
    drop(unsafe { Box::from_raw(handle) });
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cublasGetVersion_v2(_handle: *mut Handle, version: *mut c_int) -> c_int {
    if version.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the C caller passes a place for a number.
    unsafe { version.write(120_000) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetStream_v2(mut handle: HandlePointer, stream: usize) -> c_int {
    match handle.handle() {
        Some(handle) => {
            handle.stream = stream;
            SUCCESS
        }
        None => NOT_INITIALIZED,
    }
}

// The modes change precision and speed only.
#[unsafe(no_mangle)]
extern "C" fn cublasSetMathMode(mut handle: HandlePointer, _mode: c_int) -> c_int {
    handle.handle().map_or(NOT_INITIALIZED, |_| SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetWorkspace_v2(mut handle: HandlePointer, _address: usize, _bytes: usize) -> c_int {
    handle.handle().map_or(NOT_INITIALIZED, |_| SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn cublasSgemm_v2(
    handle: HandlePointer,
    operation_a: c_int,
    operation_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: Scalar,
    a: usize,
    column_a: c_int,
    b: usize,
    column_b: c_int,
    beta: Scalar,
    c: usize,
    column_c: c_int,
) -> c_int {
    let a = operand(a, F32, column_a, 0, operation_a);
    let b = operand(b, F32, column_b, 0, operation_b);
    multiply(handle, [m, n, k], [alpha, beta], [a, b, operand(c, F32, column_c, 0, 0)], 1)
}

#[unsafe(no_mangle)]
extern "C" fn cublasSgemmStridedBatched(
    handle: HandlePointer,
    operation_a: c_int,
    operation_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: Scalar,
    a: usize,
    column_a: c_int,
    stride_a: c_longlong,
    b: usize,
    column_b: c_int,
    stride_b: c_longlong,
    beta: Scalar,
    c: usize,
    column_c: c_int,
    stride_c: c_longlong,
    batch: c_int,
) -> c_int {
    let a = operand(a, F32, column_a, stride_a, operation_a);
    let b = operand(b, F32, column_b, stride_b, operation_b);
    multiply(handle, [m, n, k], [alpha, beta], [a, b, operand(c, F32, column_c, stride_c, 0)], batch)
}

#[unsafe(no_mangle)]
extern "C" fn cublasGemmEx(
    handle: HandlePointer,
    operation_a: c_int,
    operation_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: Scalar,
    a: usize,
    kind_a: c_int,
    column_a: c_int,
    b: usize,
    kind_b: c_int,
    column_b: c_int,
    beta: Scalar,
    c: usize,
    kind_c: c_int,
    column_c: c_int,
    compute: c_int,
    _algorithm: c_int,
) -> c_int {
    if !is_f32(compute) {
        return NOT_SUPPORTED;
    }
    let a = operand(a, kind_a, column_a, 0, operation_a);
    let b = operand(b, kind_b, column_b, 0, operation_b);
    multiply(handle, [m, n, k], [alpha, beta], [a, b, operand(c, kind_c, column_c, 0, 0)], 1)
}

#[unsafe(no_mangle)]
extern "C" fn cublasGemmStridedBatchedEx(
    handle: HandlePointer,
    operation_a: c_int,
    operation_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: Scalar,
    a: usize,
    kind_a: c_int,
    column_a: c_int,
    stride_a: c_longlong,
    b: usize,
    kind_b: c_int,
    column_b: c_int,
    stride_b: c_longlong,
    beta: Scalar,
    c: usize,
    kind_c: c_int,
    column_c: c_int,
    stride_c: c_longlong,
    batch: c_int,
    compute: c_int,
    _algorithm: c_int,
) -> c_int {
    if !is_f32(compute) {
        return NOT_SUPPORTED;
    }
    let a = operand(a, kind_a, column_a, stride_a, operation_a);
    let b = operand(b, kind_b, column_b, stride_b, operation_b);
    multiply(handle, [m, n, k], [alpha, beta], [a, b, operand(c, kind_c, column_c, stride_c, 0)], batch)
}
