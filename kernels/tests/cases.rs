//! Every case of every op that has a CPU kernel, run as a one-step program and compared with the reference,
//! on 1, 2 and 7 workers, in every form that the kernel has.

use ssmgraph_kernels::{Forms, Memory, Numerics, Place, Program, ProgramError, Step, cpu};
use ssmgraph_ops::{Case, DType, HostTensor, Layout, Op, OpKind, Storage};
use std::sync::Arc;

fn place(tensor: &HostTensor) -> Place {
    let memory = Memory::zeroed(tensor.bytes().len()).unwrap();
    memory.write(0, tensor.bytes());
    Place { memory: Arc::new(memory), offset_bytes: 0, layout: *tensor.layout() }
}

/// Like [`place`], as a weight in the middle of a buffer that nobody can write.
fn weight(tensor: &HostTensor) -> Place {
    const BEFORE: usize = 64;
    let memory = Memory::zeroed(BEFORE + tensor.bytes().len()).unwrap();
    memory.write(BEFORE, tensor.bytes());
    Place { memory: Arc::new(memory.freeze()), offset_bytes: BEFORE, layout: *tensor.layout() }
}

fn empty(layout: Layout) -> Place {
    // NaN in every float: an element that the kernel forgets shows.
    let memory = Memory::zeroed(layout.span_bytes()).unwrap();
    memory.write(0, &vec![0xFF; layout.span_bytes()]);
    Place { memory: Arc::new(memory), offset_bytes: 0, layout }
}

fn read(place: &Place) -> HostTensor {
    let mut bytes = vec![0; place.layout.span_bytes()];
    place.memory.read(place.offset_bytes, &mut bytes);
    HostTensor::from_bytes(place.layout, bytes).unwrap()
}

/// The results of one case on `workers` workers; an error where the form declines it.
fn run(case: &Case, workers: usize, forms: Forms) -> Result<Vec<HostTensor>, ProgramError> {
    run_on(case, case.inputs.iter().map(place).collect(), workers, forms)
}

/// [`run`] on these operands.
fn run_on(
    case: &Case,
    inputs: Vec<Place>,
    workers: usize,
    forms: Forms,
) -> Result<Vec<HostTensor>, ProgramError> {
    let layouts: Vec<Layout> = inputs.iter().map(|p| p.layout).collect();
    let inferred = case.op.infer(&layouts).unwrap();
    let results: Vec<Place> = match case.op.storage() {
        Storage::Update => vec![inputs[0].clone()],
        _ => inferred.into_iter().map(empty).collect(),
    };
    let step = Step { op: case.op.clone(), inputs, results: results.clone() };
    Program::new(vec![step], workers, forms)?.run(None)?;
    Ok(results.iter().map(read).collect())
}

/// The ways to ask for each form of an op's kernel.
fn forms_of(op: &Op) -> Vec<Forms> {
    let variants = cpu(op).map_or(&[][..], |kernel| kernel.variants());
    let named = variants.iter().map(|form| Forms::Named(form.name));
    let fast = (!variants.is_empty()).then_some(Forms::Of(Numerics::Fast));
    [Forms::default()].into_iter().chain(fast).chain(named).collect()
}

/// What is wrong with a case in some form.
fn faults(case: &Case, want: &[HostTensor], forms: Forms) -> Vec<String> {
    let mut faults = Vec::new();
    let first = run(case, 1, forms).unwrap();
    for (index, (got, want)) in first.iter().zip(want).enumerate() {
        if let Some(what) = case.tolerance.mismatch(got, want) {
            faults.push(format!("result {index}: {what}"));
        }
    }
    for workers in [2, 7] {
        let got = run(case, workers, forms).unwrap();
        if !got.iter().zip(&first).all(|(a, b)| a.bytes() == b.bytes()) {
            faults.push(format!("{workers} workers differ from one"));
        }
    }
    faults
}

#[test]
fn kernels_agree_with_the_reference() {
    let mut failures = Vec::new();
    for kind in OpKind::ALL {
        for case in kind.cases() {
            let Some(kernel) = cpu(&case.op) else { continue };
            let layouts: Vec<Layout> = case.inputs.iter().map(|input| *input.layout()).collect();
            if kernel.supports(&layouts).is_err() {
                // Only block formats may be left to the reference.
                let block = layouts[0].dtype.is_block() && layouts[0].dtype != DType::Q8_0;
                assert!(block, "{} {} is declined", case.op.name(), case.name);
                continue;
            }
            let want = case.expected().unwrap();
            for forms in forms_of(&case.op) {
                let faults = faults(&case, &want, forms);
                let named = |fault| format!("{} {} as {forms:?}: {fault}", case.op.name(), case.name);
                failures.extend(faults.into_iter().map(named));
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn weights_that_are_packed_once_give_the_same_bits() {
    for kind in [OpKind::MulMat, OpKind::MulMatId] {
        for case in kind.cases() {
            let want = run(&case, 1, Forms::default()).unwrap();
            for workers in [1, 3] {
                let mut inputs: Vec<Place> = case.inputs.iter().map(place).collect();
                inputs[0] = weight(&case.inputs[0]);
                let got = run_on(&case, inputs, workers, Forms::default()).unwrap();
                let same = got.iter().zip(&want).all(|(a, b)| a.bytes() == b.bytes());
                assert!(same, "{} {} on {workers} workers", case.op.name(), case.name);
            }
        }
    }
}

#[test]
fn a_form_that_a_kernel_lacks_is_refused() {
    let case = |kind: OpKind| kind.cases().swap_remove(0);
    let refusal = run(&case(OpKind::GatedDeltaNet), 1, Forms::Named("chunked")).unwrap_err().to_string();
    assert_eq!(refusal, "gated_delta_net: there is no form chunked here, only two_pass, one_pass");
    // Ops of one form are not concerned.
    assert!(run(&case(OpKind::Sum), 1, Forms::Named("chunked")).is_ok());
}
