//! Every case of every op that has a CUDA kernel, launched directly on the engine, without a driver.
//!
//! Each case runs in fast mode with three schedules and in check mode, in every form that covers it; names are
//! `mode/op/case`, or `mode/op:form/case` for forms that are not the default. Where the op lets a
//! result take an operand's memory, the case runs once more that way, and must give the same bits.

mod support;

use cuda::engine::{Engine, Mode};
use libtest_mimic::{Arguments, Failed, Trial};
use ssmgraph_kernels::Forms;
use ssmgraph_kernels::cuda::variant_for;
use ssmgraph_ops::case::Values;
use ssmgraph_ops::{
    Case, DType, GetRows, HostTensor, Layout, Op, OpKind, SetRows, SsmConvStep, Storage, Tolerance,
};
use std::error::Error;
use std::sync::Arc;
use support::{Device, compute, compute_as, compute_in};

/// A check-mode case costs far more; larger ones run in fast mode only.
const CHECKED_ELEMENTS_MAX: usize = 200_000;
/// The same for forms that are not the default, of which some meet at many barriers.
const CHECKED_FORM_ELEMENTS_MAX: usize = 20_000;

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
                let named = |form: String| format!("{mode}/{}{form}/{}", case.op.name(), case.name);
                let (engine_of, case_of) = (engine.clone(), case.clone());
                trials.push(Trial::test(named(String::new()), move || run_case(&engine_of, &case_of)));
                for form in kernel.variants().iter().skip(1) {
                    let forms = Forms::Named(form.name);
                    let checked = *mode != "check" || elements <= CHECKED_FORM_ELEMENTS_MAX;
                    if checked && variant_for(kernel, forms, &layouts).is_ok() {
                        let (engine, case) = (engine.clone(), case.clone());
                        let run = move || run_form(&engine, forms, &case).map(|_| ());
                        trials.push(Trial::test(named(format!(":{}", form.name)), run));
                    }
                }
            }
        }
    }
    for (op, inputs) in strangers() {
        for (mode, engine) in &engines {
            let (engine, op, inputs) = (engine.clone(), op.clone(), inputs.clone());
            let name = format!("{mode}/{}/stranger_among_{}", op.name(), inputs[inputs.len() - 1].ne()[0]);
            trials.push(Trial::test(name, move || {
                run_stranger(&engine, &Case::new("stranger", op, inputs.clone(), Tolerance::EXACT))
            }));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn run_case(engine: &Engine, case: &Case) -> Result<(), Failed> {
    let first = Some(run_form(engine, Forms::default(), case)?);
    for operand in reusable(case)? {
        if first != Some(compute(engine, &case.op, &case.inputs, 0, Some(operand)).map_err(text)?) {
            return Err(format!("other bits in the memory of operand {operand}").into());
        }
    }
    Ok(())
}

/// The results of a case in some form, the same under three schedules.
fn run_form(engine: &Engine, forms: Forms, case: &Case) -> Result<Vec<HostTensor>, Failed> {
    let expected = case.expected()?;
    let mut first: Option<Vec<HostTensor>> = None;
    for seed in [0, 1, 2] {
        let got = compute_as(engine, forms, &case.op, &case.inputs, seed, None).map_err(text)?;
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
    first.ok_or_else(|| "nothing ran".into())
}

/// Operands whose memory result 0 may take, and fits.
fn reusable(case: &Case) -> Result<Vec<usize>, Failed> {
    let Storage::Fresh { reuse } = case.op.storage() else { return Ok(Vec::new()) };
    let layouts: Vec<Layout> = case.inputs.iter().map(|tensor| *tensor.layout()).collect();
    let result = case.op.infer(&layouts)?[0];
    Ok(reuse.iter().copied().filter(|&operand| layouts.get(operand) == Some(&result)).collect())
}

/// Ops that read ids, with two ids outside their table, few and many.
fn strangers() -> Vec<(Op, Vec<HostTensor>)> {
    let list = |count: usize| {
        let mut ids = vec![0; 2 * count];
        (ids[count - 1], ids[count + 2]) = (3, -2);
        HostTensor::from_i32(&[count, 2], &ids).expect("two short lists")
    };
    let table = Values::new(7).tensor(DType::F32, &[5, 3, 2], -1.0, 1.0);
    [9, 700]
        .into_iter()
        .flat_map(|count| {
            let src = Values::new(8).tensor(DType::F32, &[5, count, 2], -1.0, 1.0);
            let get = (Op::from(GetRows), vec![table.clone(), list(count)]);
            [get, (Op::from(SetRows), vec![table.clone(), src, list(count)]), conv_step(count)]
        })
        .collect()
}

/// A convolution of many sequences, two of which start from windows outside the pool.
fn conv_step(sequences: usize) -> (Op, Vec<HostTensor>) {
    let mut ids = vec![0; sequences];
    (ids[sequences / 2], ids[sequences - 1]) = (-2, 3);
    let mut values = Values::new(9);
    let mut inputs: Vec<HostTensor> = [&[3, 5, 1, 3][..], &[5, 2, sequences], &[4, 5]]
        .into_iter()
        .map(|ne| values.tensor(DType::F32, ne, -1.0, 1.0))
        .collect();
    inputs.push(HostTensor::from_i32(&[sequences], &ids).expect("one id per sequence"));
    (SsmConvStep { bias: false, silu: false, snapshots: 2 }.into(), inputs)
}

/// The first stranger in index order is the one reported, whatever the schedule, and no table changes.
fn run_stranger(engine: &Engine, case: &Case) -> Result<(), Failed> {
    let expected = case.expected().expect_err("there is a stranger").to_string();
    for seed in [0, 1, 2] {
        let memory: Vec<Device> = case.inputs.iter().map(|tensor| Device::holding(tensor.bytes())).collect();
        let layouts: Vec<Layout> = case.inputs.iter().map(|tensor| *tensor.layout()).collect();
        let outcome = compute_in(engine, Forms::default(), &case.op, &layouts, seed, None, &memory);
        let got = outcome.err().map(|error| error.to_string());
        if got.as_ref() != Some(&expected) {
            return Err(format!("got {got:?}, expected {expected}").into());
        }
        if memory.iter().zip(&case.inputs).any(|(memory, tensor)| memory.bytes() != tensor.bytes()) {
            return Err("an operand has changed".into());
        }
    }
    Ok(())
}

fn text(error: Box<dyn Error>) -> Failed {
    error.to_string().into()
}
