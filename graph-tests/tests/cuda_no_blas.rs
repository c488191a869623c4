//! `Numerics::Fast` without cuBLAS, which is the common case: products are our own kernels', as in `Exact`.

mod products;

use graph_tests::arrays::assert_bits;
use graph_tests::cuda;
use products::{SHAPES, compare, run_three_times};
use ssmgraph::backend::Numerics;
use std::process::Command;

/// Set in the process that finds no cuBLAS.
const WITHOUT: &str = "SSMGRAPH_TEST_WITHOUT_CUBLAS";

/// Cargo lets tests find the libraries it built, the emulated cuBLAS among them: the test runs once more without
/// that path.
#[test]
fn without_cublas_fast_products_are_the_exact_ones() {
    if std::env::var_os(WITHOUT).is_some() {
        return compare_all();
    }
    let this = std::env::current_exe().unwrap();
    let output = Command::new(this).env_remove("LD_LIBRARY_PATH").env(WITHOUT, "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

fn compare_all() {
    for shape in SHAPES {
        let exact = run_three_times(&cuda::with_cpu(cuda::backend()), &shape);
        let fast = run_three_times(&cuda::with_cpu(cuda::backend().with_numerics(Numerics::Fast)), &shape);
        // With cuBLAS those of many columns would launch no kernel.
        assert!(fast.first.kernel_launches > 0, "{shape:?}");
        assert_eq!(fast.captured.captured_nodes, fast.first.kernel_launches, "{shape:?}");
        assert_eq!((fast.last.graph_launches, fast.last.kernel_launches), (1, 0), "{shape:?}: not replayed");
        assert!(fast.notes.is_empty() && exact.notes.is_empty(), "{shape:?}: {:?}", fast.notes);
        assert_bits(&fast.values, &exact.values, &format!("{shape:?}"));
        compare(&fast.values, &exact.values, &shape);
    }
}
