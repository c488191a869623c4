//! Every case of every op that has a CUDA kernel, launched directly on the engine, without a driver.
//!
//! Each case runs in fast mode with three schedules and in check mode; names are `mode/op/case`.

mod support;

use libtest_mimic::{Arguments, Failed, Trial};
use ssmgraph_emulator::engine::{Engine, Mode};
use ssmgraph_ops::{Case, HostTensor, Layout, OpKind};
use std::sync::Arc;
use support::compute;

/// A check-mode case costs far more; larger ones run in fast mode only.
const CHECKED_ELEMENTS_MAX: usize = 200_000;

fn main() {
    let arguments = Arguments::from_args();
    let engines: Vec<(&str, Arc<Engine>)> = [("fast", Mode::Fast), ("check", Mode::Check)]
        .into_iter()
        .map(|(name, mode)| (name, Arc::new(Engine::load(mode.library()).expect("built by build.rs"))))
        .collect();
    let mut trials = Vec::new();
    for kind in OpKind::ALL {
        for case in kind.cases() {
            let Some(kernel) = ssmgraph_kernels::cuda_kernel(&case.op) else { continue };
            let layouts: Vec<Layout> = case.inputs.iter().map(|tensor| *tensor.layout()).collect();
            if kernel.supports(&layouts).is_err() {
                continue;
            }
            for (mode, engine) in &engines {
                let elements: usize = layouts.iter().map(|layout| layout.elements()).sum();
                if *mode == "check" && elements > CHECKED_ELEMENTS_MAX {
                    continue;
                }
                let name = format!("{mode}/{}/{}", case.op.name(), case.name);
                let (engine, case) = (engine.clone(), case.clone());
                trials.push(Trial::test(name, move || run_case(&engine, &case)));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn run_case(engine: &Engine, case: &Case) -> Result<(), Failed> {
    let expected = case.expected()?;
    let mut first: Option<Vec<HostTensor>> = None;
    for seed in [0, 1, 2] {
        let got = compute(engine, &case.op, &case.inputs, seed).map_err(|error| error.to_string())?;
        for (index, (got, want)) in got.iter().zip(&expected).enumerate() {
            if let Some(mismatch) = case.tolerance.mismatch(got, want) {
                return Err(format!("{} {mismatch} (seed {seed})", case.op.result_name(index)).into());
            }
        }
        match &first {
            None => first = Some(got),
            Some(first) if *first != got => return Err(format!("seed {seed} gave other bits").into()),
            Some(_) => {}
        }
    }
    Ok(())
}
