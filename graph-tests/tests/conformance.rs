//! One named test per op × case × backend, and per vector × backend × number of threads.
//!
//! `cargo test -p graph-tests --test conformance ssm_scan` runs one op's.

use libtest_mimic::{Arguments, Failed, Trial};
use ssmgraph::backend::{Backend, CpuBackend, Eager, Reference};
use ssmgraph::conformance::{Outcome, run_case, vectors};
use ssmgraph::ops::OpKind;
use std::path::Path;
use std::sync::Arc;

/// Numbers of threads on which every vector runs: one, one per core of a small machine, an odd surplus.
const VECTOR_THREADS: [usize; 3] = [1, 2, 7];

fn cpu(threads: usize) -> Arc<dyn Backend> {
    Arc::new(CpuBackend::new(Some(threads)))
}

fn reference() -> Arc<dyn Backend> {
    Arc::new(Eager::new(Reference))
}

/// Our own backends take every case: a decline would be a silent fallback.
fn must_pass(outcome: Outcome) -> Result<(), Failed> {
    match outcome {
        Outcome::Passed => Ok(()),
        Outcome::Declined(reason) => Err(format!("declined: {reason}").into()),
        Outcome::Skipped(reason) => Err(format!("skipped: {reason}").into()),
        Outcome::Failed(message) => Err(message.into()),
    }
}

fn case_trials(trials: &mut Vec<Trial>) {
    for &kind in OpKind::ALL {
        for case in kind.cases() {
            for (name, backend) in [("cpu", cpu(2)), ("reference", reference())] {
                let case = case.clone();
                let title = format!("{}::{}::{name}", kind.module(), case.name);
                trials.push(Trial::test(title, move || must_pass(run_case(&backend, &case))));
            }
        }
    }
}

fn vector_trials(trials: &mut Vec<Trial>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/vectors");
    let loaded = vectors::load(&folder).expect("the fixtures are well formed");
    let mut backends: Vec<(String, Arc<dyn Backend>)> =
        VECTOR_THREADS.map(|threads| (format!("cpu_{threads}_threads"), cpu(threads))).into();
    backends.push(("reference".into(), reference()));
    for vector in loaded {
        for (name, backend) in &backends {
            let (vector, backend) = (vector.clone(), backend.clone());
            let title = format!("vectors::{}::{}::{name}", vector.file, vector.name);
            trials.push(Trial::test(title, move || match vectors::run_one(&backend, &vector) {
                // The only op that the vectors name and the library does not have yet.
                Outcome::Skipped(_) if vector.op == "GATED_DELTA_NET" => Ok(()),
                outcome => must_pass(outcome),
            }));
        }
    }
}

fn main() {
    let mut arguments = Arguments::from_args();
    // A thousand lines of `ok` say nothing; failures are listed in full.
    arguments.format = arguments.format.or(Some(libtest_mimic::FormatSetting::Terse));
    let mut trials = Vec::new();
    case_trials(&mut trials);
    vector_trials(&mut trials);
    libtest_mimic::run(&arguments, trials).exit();
}
