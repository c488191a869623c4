//! `Numerics::Fast` with cuBLAS, on the emulated ones of both: where products go, what they give, and that they are
//! captured and replayed like kernels.

mod products;

use graph_tests::cuda;
use products::{SHAPES, Shape, compare, product, run_three_times};
use ssmgraph::backend::Numerics;

/// Whether there are enough columns for cuBLAS.
fn goes_to_cublas(shape: &Shape) -> bool {
    shape.sizes[1] >= 16
}

fn install() {
    cuda::emulator();
    cublas::install().unwrap();
}

#[test]
fn products_of_many_columns_go_to_cublas_and_agree_with_exact() {
    let _alone = cuda::alone();
    install();
    for shape in SHAPES {
        let exact = run_three_times(&cuda::with_cpu(cuda::backend()), &shape);
        let fast = run_three_times(&cuda::with_cpu(cuda::backend().with_numerics(Numerics::Fast)), &shape);
        // The emulated cuBLAS queues host functions, which are no launches of kernels, but are recorded like them.
        assert!(exact.first.kernel_launches > 0, "{shape:?}: exact products are our own kernels'");
        assert_eq!(exact.captured.captured_nodes, exact.first.kernel_launches, "{shape:?}: and nothing else");
        assert!(fast.captured.captured_nodes > 0, "{shape:?}");
        assert_eq!(fast.first.kernel_launches == 0, goes_to_cublas(&shape), "{shape:?}");
        for run in [&exact, &fast] {
            assert_eq!(
                (run.last.graph_launches, run.last.kernel_launches),
                (1, 0),
                "{shape:?}: not replayed"
            );
            assert!(run.notes.is_empty(), "{shape:?}: {:?}", run.notes);
        }
        compare(&fast.values, &exact.values, &shape);
    }
}

#[test]
fn a_replayed_product_reads_the_new_operands() {
    let _alone = cuda::alone();
    install();
    let devices = cuda::with_cpu(cuda::backend().with_numerics(Numerics::Fast));
    let (mut session, [a, b, y]) = product(&devices, &SHAPES[0]);
    let [m, n, k] = SHAPES[0].sizes;
    for step in 0..5u8 {
        session.set(a, &vec![f32::from(step); k * m]).unwrap();
        session.set(b, &vec![2.0f32; k * n]).unwrap();
        session.run().unwrap();
        assert_eq!(
            session.get::<f32>(y).unwrap(),
            vec![f32::from(step) * 2.0 * k as f32; m * n],
            "run {step}"
        );
    }
}
