//! Failures of the driver at every place where one can happen: a run either succeeds or returns an error that names
//! the call, nothing panics or leaks, and whatever a real driver survives leaves the process able to go on.

use emulator::{Emulator, Fault};
use graph_tests::arrays::fixture;
use graph_tests::cuda;
use ssmgraph::backend::CudaBackend;
use ssmgraph::formats::Gguf;
use ssmgraph::{Engine, EngineOptions, Logits};
use std::sync::Arc;

/// A prompt and three single tokens: eager runs, a capture and a replay.
fn generate() -> Result<Vec<f32>, String> {
    generate_counting(&mut 0)
}

/// As [`generate`], with the number of driver calls since the counts were reset, before anything is given back.
fn generate_counting(calls: &mut u64) -> Result<Vec<f32>, String> {
    let backend = CudaBackend::new(0).map_err(|error| error.to_string())?;
    let gguf = Gguf::open(fixture("oracles/mamba2-g1-tiny.f32.gguf")).map_err(|error| error.to_string())?;
    let devices = cuda::with_cpu(backend);
    let mut engine = Engine::load(Arc::new(gguf), &devices, EngineOptions::default())
        .map_err(|error| error.to_string())?;
    let mut logits = Vec::new();
    for tokens in [&[3, 1][..], &[9], &[2], &[6]] {
        let step = engine.step(&[(0, tokens)], Logits::Last).map_err(|error| error.to_string())?;
        logits.extend(step.concat());
    }
    *calls = cuda::emulator().counts().calls;
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

/// Makes the n-th call of a kind fail. Tells whether there was such a call, and whether the generation failed.
fn fail_at(fault: Fault, n: u64, expected: &[f32]) -> (bool, bool) {
    let emulator = cuda::emulator();
    emulator.reset_counts();
    emulator.set_fault(fault, n);
    let outcome = generate();
    let was_due = emulator.planned(fault) == 0;
    emulator.set_fault(fault, 0);
    let failed = outcome.is_err();
    match outcome {
        Ok(logits) => assert_eq!(logits, expected, "{fault:?} {n}: survived with other logits"),
        Err(error) => assert!(names_the_call(&error), "{fault:?} {n}: {error}"),
    }
    if matches!(fault, Fault::Sync | Fault::Lost) {
        // Handles on a dead context cannot be given back; a new process, or this, clears them away.
        emulator.reset_device(true);
    } else {
        no_leak(emulator, &format!("{fault:?} {n}"));
    }
    (was_due, failed)
}

/// Plans failures of a kind at each place until one comes too late to matter. After each the device must serve a
/// whole generation again.
fn every_place(fault: Fault) {
    let expected = generate().unwrap();
    let (mut failures, mut survived) = (0, 0);
    for n in 1.. {
        let (was_due, failed) = fail_at(fault, n, &expected);
        failures += u32::from(failed);
        survived += u32::from(!failed);
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
    for fault in
        [Fault::Alloc, Fault::Launch, Fault::Copy, Fault::Capture, Fault::Module, Fault::Graph, Fault::Sync]
    {
        every_place(fault);
    }
}

/// Losing the device is followed by a whole generation on a new one at every so many places.
const SERVES_AGAIN_STRIDE: u64 = 8;

#[test]
fn a_device_lost_at_any_time_is_an_error_and_a_new_one_serves_again() {
    let _alone = cuda::alone();
    let emulator = cuda::emulator();
    let mut calls = 0;
    emulator.reset_counts();
    let expected = generate_counting(&mut calls).unwrap();
    for n in 1..=calls {
        assert_eq!(fail_at(Fault::Lost, n, &expected), (true, true), "lost at call {n} of {calls}");
        if n % SERVES_AGAIN_STRIDE == 0 {
            assert_eq!(generate().as_ref(), Ok(&expected), "after the device was lost at call {n}");
        }
    }
    println!("lost at each of {calls} calls");
    // While everything is given back: too late for an error.
    assert_eq!(fail_at(Fault::Lost, calls + 5, &expected), (true, false));
    assert_eq!(generate(), Ok(expected));
}
