//! Failures of the driver at every place where one can happen: a run either succeeds or returns an error that names
//! the call, nothing panics or leaks, and whatever a real driver survives leaves the process able to go on.

use emulator::{Emulator, Fault};
use graph_tests::arrays::fixture;
use graph_tests::cuda;
use ssmgraph::backend::CudaBackend;
use ssmgraph::formats::Gguf;
use ssmgraph::{Engine, EngineOptions, Logits};
use std::sync::Arc;

/// A prompt and four single tokens: eager runs, a capture and replays.
fn generate() -> Result<Vec<f32>, String> {
    let backend = CudaBackend::new(0).map_err(|error| error.to_string())?;
    let gguf = Gguf::open(fixture("oracles/mamba2-g1-tiny.f32.gguf")).map_err(|error| error.to_string())?;
    let devices = cuda::with_cpu(backend);
    let mut engine = Engine::load(Arc::new(gguf), &devices, EngineOptions::default())
        .map_err(|error| error.to_string())?;
    let mut logits = Vec::new();
    for tokens in [&[3, 1, 4, 1, 5][..], &[9], &[2], &[6], &[5]] {
        let step = engine.step(&[(0, tokens)], Logits::Last).map_err(|error| error.to_string())?;
        logits.extend(step.concat());
    }
    Ok(logits)
}

/// Names the driver's call, or the memory that was refused.
fn names_the_call(error: &str) -> bool {
    let named =
        error.split(|c: char| !c.is_alphanumeric()).any(|word| word.starts_with("cu") && word.len() > 4);
    named && error.contains("failed") || error.contains("out of memory,")
}

fn no_leak(emulator: &Emulator, what: &str) {
    let counts = emulator.counts();
    assert_eq!((counts.live_allocations, counts.live_pinned), (0, 0), "{what} leaks");
    assert_eq!(counts.leaked_allocations, 0, "{what} leaks");
}

/// Plans the n-th failure of a kind for growing n until one comes too late to matter. Tells how many runs failed.
fn every_place(fault: Fault, sticky: bool) {
    let emulator = cuda::emulator();
    let expected = generate().unwrap();
    let (mut failures, mut survived) = (0, 0);
    for n in 1.. {
        emulator.reset_counts();
        emulator.set_fault(fault, n);
        let outcome = generate();
        let was_due = emulator.planned(fault) == 0;
        emulator.set_fault(fault, 0);
        match outcome {
            Ok(logits) => {
                assert_eq!(logits, expected, "{fault:?} {n}: survived with other logits");
                survived += 1;
            }
            Err(error) => {
                assert!(names_the_call(&error), "{fault:?} {n}: {error}");
                failures += 1;
            }
        }
        if sticky {
            // Handles on a dead context cannot be given back; a new process, or this, clears them away.
            emulator.reset_device(true);
        } else {
            no_leak(emulator, &format!("{fault:?} {n}"));
        }
        assert_eq!(generate().as_ref(), Ok(&expected), "after {fault:?} {n}");
        if !was_due {
            break;
        }
    }
    println!("{fault:?}: {failures} runs failed, {survived} survived");
    assert!(failures + survived > 1, "no such call was met");
}

#[test]
fn every_failure_is_survived_or_named() {
    let _alone = cuda::alone();
    every_place(Fault::Alloc, false);
    every_place(Fault::Launch, false);
    every_place(Fault::Copy, false);
    every_place(Fault::Capture, false);
    every_place(Fault::Module, false);
    every_place(Fault::Graph, false);
    every_place(Fault::Sync, true);
}
