//! Products through cudarc, on the emulated driver.

use cudarc::cublas::sys::cublasOperation_t as Operation;
use cudarc::cublas::{CudaBlas, Gemm, GemmConfig, StridedBatchedConfig};
use cudarc::driver::{CudaContext, sys};

const CAPTURE: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

/// Two products of 2 × 3 by 3 × 2, columns first, the first operand transposed; recorded, then replayed.
#[test]
fn products_are_ordered_and_recorded_like_kernels() {
    cuda::install().expect("built beside this test");
    cublas::install().expect("built beside this test");
    let context = CudaContext::new(0).unwrap();
    // SAFETY: there is one stream.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().unwrap();
    let mut a = stream.clone_htod(&[0f32; 12]).unwrap();
    let b = stream.clone_htod(&[1f32, 0.0, 0.0, 0.0, 1.0, 1.0, 2.0, 0.0, 0.0, 0.0, 2.0, 2.0]).unwrap();
    let mut c = stream.alloc_zeros::<f32>(8).unwrap();
    let blas = CudaBlas::new(stream.clone()).unwrap();
    let gemm = GemmConfig {
        transa: Operation::CUBLAS_OP_T,
        transb: Operation::CUBLAS_OP_N,
        m: 2,
        n: 2,
        k: 3,
        alpha: 1.0,
        lda: 3,
        ldb: 3,
        beta: 0.0,
        ldc: 2,
    };
    let config = StridedBatchedConfig { gemm, batch_size: 2, stride_a: 6, stride_b: 6, stride_c: 4 };
    stream.begin_capture(CAPTURE).unwrap();
    // SAFETY: the buffers are as large as the shapes.
    unsafe { blas.gemm_strided_batched(config, &a, &b, &mut c) }.unwrap();
    let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().unwrap();
    let ones_to_twelve: Vec<f32> = (1..=12).map(|value| value as f32).collect();
    stream.memcpy_htod(&ones_to_twelve, &mut a).unwrap();
    graph.launch().unwrap();
    // Rows of op(A): 1 2 3, 4 5 6; columns of B: (1 0 0), (0 1 1). The second product has 2 for 1.
    assert_eq!(stream.clone_dtoh(&c).unwrap(), [1.0, 4.0, 5.0, 11.0, 14.0, 20.0, 34.0, 46.0]);

    let too_short = GemmConfig { lda: 2, ..gemm };
    // SAFETY: refused.
    assert!(unsafe { blas.gemm(too_short, &a, &b, &mut c) }.is_err());
}
