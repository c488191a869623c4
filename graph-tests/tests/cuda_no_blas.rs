//! `Numerics::Fast` without cuBLAS, which is the common case: products are our own kernels', as in `Exact`. A process of
//! its own, since a library that is loaded stays.

mod products;

use graph_tests::arrays::assert_bits;
use graph_tests::cuda;
use products::{SHAPES, compare, run_three_times};
use ssmgraph::backend::Numerics;

#[test]
fn without_cublas_fast_products_are_the_exact_ones() {
    let _alone = cuda::alone();
    for shape in SHAPES {
        let exact = run_three_times(&cuda::with_cpu(cuda::backend()), &shape);
        let fast = run_three_times(&cuda::with_cpu(cuda::backend().with_numerics(Numerics::Fast)), &shape);
        assert!(fast.first.kernel_launches > 0, "{shape:?}");
        assert_eq!(fast.captured.captured_nodes, fast.first.kernel_launches, "{shape:?}");
        assert_eq!((fast.last.graph_launches, fast.last.kernel_launches), (1, 0), "{shape:?}: not replayed");
        assert!(fast.notes.is_empty() && exact.notes.is_empty(), "{shape:?}: {:?}", fast.notes);
        assert_bits(&fast.values, &exact.values, &format!("{shape:?}"));
        compare(&fast.values, &exact.values, &shape);
        assert!(!shape.goes_to_cublas() || exact.first.kernel_launches > 0);
    }
}
