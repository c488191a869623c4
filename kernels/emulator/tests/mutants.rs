//! Our own kernels with one fault put in each (`MUTANTS` of `build.rs`): the checker reports the fault with its place,
//! and has nothing to report of the kernels as they are.

mod support;

use cuda::engine::{Engine, Mode};
use ssmgraph_ops::case::Values;
use ssmgraph_ops::{Argmax, DType, HostTensor, Op, SoftMax};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use support::compute;

/// Runs an op as it is, which must be clean in every order, and from a library with its fault, which must be
/// reported in every order with one of these words and a line of the edited source.
#[track_caller]
fn expect_report(mutant: &str, op: Op, ne: &[usize], words: &[&str]) {
    static ONE: Mutex<()> = Mutex::new(());
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let load = |library: &Path| Engine::load(library).expect("built by build.rs");
    let (original, mutant) = (load(Mode::Check.library()), load(Path::new(mutant)));
    let x: HostTensor = Values::new(5).tensor(DType::F32, ne, -2.0, 2.0);
    for seed in 0..4 {
        let inputs = std::slice::from_ref(&x);
        if let Err(error) = compute(&original, &op, inputs, seed, None) {
            panic!("seed {seed}, the kernel as it is: {error}");
        }
        let report = compute(&mutant, &op, inputs, seed, None);
        let report = report.expect_err("the fault is not reported").to_string();
        println!("seed {seed}: {report}");
        assert!(words.iter().any(|word| report.contains(word)), "seed {seed}: {report}");
        assert!(report.contains("mutant.cu:"), "seed {seed}: {report}");
    }
}

#[test]
fn a_missing_barrier_before_other_warps_results_are_read() {
    let words = ["data race in shared memory", "uninitialised shared memory"];
    let op = SoftMax { scale: 1.0, mask: false };
    expect_report(env!("EMULATOR_KERNELS_MUTANT_WITHOUT_BARRIER"), op.into(), &[1500, 2], &words);
}

#[test]
fn shared_memory_that_is_written_again_while_others_read_it() {
    let op = SoftMax { scale: 1.0, mask: false };
    expect_report(
        env!("EMULATOR_KERNELS_MUTANT_EARLY_REUSE"),
        op.into(),
        &[1500, 2],
        &["data race in shared memory"],
    );
}

#[test]
fn a_bound_that_is_one_too_large() {
    // A row that is cut into pieces, so that a second launch goes through the pieces.
    let words = ["past a", "in no allocation"];
    expect_report(env!("EMULATOR_KERNELS_MUTANT_BOUND"), Argmax.into(), &[20_000], &words);
}
