//! One named test per op × case × backend, and per vector × backend × number of threads.
//!
//! CUDA runs on the emulated driver: work as late as allowed in the order of the queue, then in two other orders of
//! threads and blocks, and the smaller cases once more with every access checked. These settings belong to the
//! process, so that each has a round of its own with a summary of its own.
//!
//! `cargo test -p graph-tests --test conformance ssm_scan` runs one op's.

use emulator::engine::Mode;
use graph_tests::cuda;
use libtest_mimic::{Arguments, Failed, Trial};
use ssmgraph::backend::{Backend, CpuBackend, Eager, Reference};
use ssmgraph::conformance::{Outcome, run_case, vectors};
use ssmgraph::ops::{Case, DType, Op, OpKind};
use std::path::Path;
use std::sync::Arc;

/// Numbers of threads on which every vector runs: one, one per core of a small machine, an odd surplus.
const VECTOR_THREADS: [usize; 3] = [1, 2, 7];

/// Seeds of the rounds in another order.
const SEEDS: [u32; 2] = [1, 2];

/// Checking each access costs far more; cases with more elements are left to the other rounds.
const CHECKED_ELEMENTS_MAX: usize = 20_000;

fn cpu(threads: usize) -> Arc<dyn Backend> {
    Arc::new(CpuBackend::new(Some(threads)))
}

fn reference() -> Arc<dyn Backend> {
    Arc::new(Eager::new(Reference))
}

/// Ops that CUDA leaves to the CPU for blocks of 4 and 6 bits.
const LEFT_BY_CUDA: [OpKind; 4] = [OpKind::MulMat, OpKind::MulMatId, OpKind::GetRows, OpKind::Cpy];

/// Whether a backend is known to decline a case. Where blocks are only moved, none does.
fn is_left(case: &Case, backend: &str) -> bool {
    let from = case.inputs[0].layout().dtype;
    let to = match &case.op {
        Op::Cpy(copy) => copy.to.dtype,
        _ => DType::F32,
    };
    let narrow = |dtype: DType| dtype.is_quantized() && dtype != DType::Q8_0;
    let listed = backend.starts_with("cuda") && LEFT_BY_CUDA.contains(&case.op.kind());
    listed && from != to && (narrow(from) || narrow(to))
}

/// What is left must be declined, and come out right all the same.
fn must_decline(outcome: Outcome) -> Result<(), Failed> {
    match outcome {
        Outcome::Declined(_) => Ok(()),
        Outcome::Passed => Err("is computed: take it off the list of what is left".into()),
        outcome => must_pass(outcome),
    }
}

/// Our own backends take every other case: a decline would be a silent fallback.
fn must_pass(outcome: Outcome) -> Result<(), Failed> {
    match outcome {
        Outcome::Passed => Ok(()),
        Outcome::Declined(reason) => Err(format!("declined: {reason}").into()),
        Outcome::Skipped(reason) => Err(format!("skipped: {reason}").into()),
        Outcome::Failed(message) => Err(message.into()),
    }
}

fn case_trials(trials: &mut Vec<Trial>, backends: &[(String, Arc<dyn Backend>)], elements_max: usize) {
    for &kind in OpKind::ALL {
        for case in kind.cases() {
            let elements: usize = case.inputs.iter().map(|input| input.layout().elements()).sum();
            if elements > elements_max {
                continue;
            }
            for (name, backend) in backends {
                let (case, backend) = (case.clone(), backend.clone());
                let title = format!("{}::{}::{name}", kind.module(), case.name);
                let check = if is_left(&case, name) { must_decline } else { must_pass };
                trials.push(Trial::test(title, move || check(run_case(&backend, &case))));
            }
        }
    }
}

fn vector_trials(trials: &mut Vec<Trial>, backends: &[(String, Arc<dyn Backend>)]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/vectors");
    let loaded = vectors::load(&folder).expect("the fixtures are well formed");
    for vector in loaded {
        for (name, backend) in backends {
            let (vector, backend) = (vector.clone(), backend.clone());
            let title = format!("vectors::{}::{}::{name}", vector.file, vector.name);
            trials.push(Trial::test(title, move || must_pass(vectors::run_one(&backend, &vector))));
        }
    }
}

fn main() {
    let mut arguments = Arguments::from_args();
    // A thousand lines of `ok` say nothing; failures are listed in full.
    arguments.format = arguments.format.or(Some(libtest_mimic::FormatSetting::Terse));
    let emulator = cuda::emulator();
    let on_cuda = |name: String| [(name, Arc::new(cuda::backend()) as Arc<dyn Backend>)];

    let mut trials = Vec::new();
    case_trials(&mut trials, &[("cpu".into(), cpu(2)), ("reference".into(), reference())], usize::MAX);
    let mut on_vectors: Vec<(String, Arc<dyn Backend>)> =
        VECTOR_THREADS.map(|threads| (format!("cpu_{threads}_threads"), cpu(threads))).into();
    on_vectors.push(("reference".into(), reference()));
    vector_trials(&mut trials, &on_vectors);
    let lazy = on_cuda("cuda".into());
    case_trials(&mut trials, &lazy, usize::MAX);
    vector_trials(&mut trials, &lazy);
    let mut failed = libtest_mimic::run(&arguments, trials).has_failed();

    for seed in SEEDS {
        emulator.set_seed(seed);
        let mut trials = Vec::new();
        let ordered = on_cuda(format!("cuda_seed_{seed}"));
        case_trials(&mut trials, &ordered, usize::MAX);
        vector_trials(&mut trials, &ordered);
        failed |= libtest_mimic::run(&arguments, trials).has_failed();
    }

    emulator.set_seed(0);
    emulator.set_mode(Mode::Check);
    let mut trials = Vec::new();
    case_trials(&mut trials, &on_cuda("cuda_checked".into()), CHECKED_ELEMENTS_MAX);
    failed |= libtest_mimic::run(&arguments, trials).has_failed();
    if failed {
        std::process::exit(101);
    }
}
