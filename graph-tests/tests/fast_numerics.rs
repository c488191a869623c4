//! `Numerics::Fast` beside `Numerics::Exact`, over all cases of all ops, on the CPU and on emulated CUDA with cuBLAS:
//! near each other. And every named form beside the reference.

use graph_tests::cuda;
use ssmgraph::backend::{Backend, CpuBackend, Numerics, Slice, Step};
use ssmgraph::conformance::{Outcome, run_case};
use ssmgraph::ops::{Case, HostTensor, Layout, OpKind, Storage};
use std::sync::Arc;

/// Most of a result's normalised mean square error, Σ (fast − exact)² / Σ exact².
const NMSE_MAX: f64 = 1e-6;

fn layouts(case: &Case) -> Vec<Layout> {
    case.inputs.iter().map(|tensor| *tensor.layout()).collect()
}

/// The results of a case on a backend alone, nothing behind it.
fn results(backend: &dyn Backend, case: &Case) -> Vec<HostTensor> {
    let slice = |layout: Layout, bytes: &[u8]| {
        let buffer = backend.allocate(bytes.len()).unwrap();
        buffer.write(0, bytes).unwrap();
        Slice { buffer, offset_bytes: 0, layout }
    };
    let inputs: Vec<Slice> =
        case.inputs.iter().map(|tensor| slice(*tensor.layout(), tensor.bytes())).collect();
    let layouts = case.op.infer(&layouts(case)).unwrap();
    let results: Vec<Slice> = match case.op.storage() {
        Storage::Update => vec![inputs[0].clone()],
        _ => layouts.iter().map(|&layout| slice(layout, &vec![0xff; layout.span_bytes()])).collect(),
    };
    let step = Step { op: case.op.clone(), inputs, results: results.clone() };
    backend.compile(vec![step]).unwrap().run(None).unwrap();
    let read = |result: &Slice| {
        let mut bytes = vec![0; result.layout.span_bytes()];
        result.buffer.read(0, &mut bytes).unwrap();
        HostTensor::from_bytes(result.layout, bytes).unwrap()
    };
    results.iter().map(read).collect()
}

/// What is wrong with a result of fast numerics, if anything. NaN and infinities must stand in the same places.
fn fault(fast: &HostTensor, exact: &HostTensor) -> Option<String> {
    if fast.bytes() == exact.bytes() {
        return None;
    }
    let (mut error, mut size) = (0.0, 0.0);
    for (place, (fast, exact)) in fast.to_f64().into_iter().zip(exact.to_f64()).enumerate() {
        let same = fast == exact || (fast.is_nan() && exact.is_nan());
        if !same && (!fast.is_finite() || !exact.is_finite()) {
            return Some(format!("element {place} is {fast}, expected {exact}"));
        }
        if exact.is_finite() {
            error += (fast - exact) * (fast - exact);
            size += exact * exact;
        }
    }
    let nmse = if error == 0.0 { 0.0 } else { error / size };
    (nmse > NMSE_MAX).then(|| format!("NMSE {nmse:e}"))
}

/// Compares all cases; says how many of the fast ones ran in a fast form.
fn compare(exact: &dyn Backend, fast: &dyn Backend) -> usize {
    let (mut faults, mut in_fast_form) = (Vec::new(), 0);
    for case in OpKind::ALL.iter().flat_map(|kind| kind.cases()) {
        // What a backend may decline is listed in the conformance suite.
        let declined = exact.supports(&case.op, &layouts(&case)).is_err();
        if declined || matches!(case.op.storage(), Storage::View { .. }) {
            continue;
        }
        let form = fast.variant(&case.op, &layouts(&case));
        in_fast_form += usize::from(form.is_some_and(|form| form.numerics == Numerics::Fast));
        for (index, (fast, exact)) in results(fast, &case).iter().zip(results(exact, &case)).enumerate() {
            let named = |what| format!("{} / {}, result {index}: {what}", case.op.name(), case.name);
            faults.extend(fault(fast, &exact).map(named));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    in_fast_form
}

#[test]
fn fast_is_near_exact_on_the_cpu() {
    let cpu = CpuBackend::new(Some(2));
    assert!(compare(&cpu, &cpu.with_numerics(Numerics::Fast)) > 50);
}

#[test]
fn fast_is_near_exact_on_cuda() {
    let _alone = cuda::alone();
    cublas::install().unwrap();
    let backend = cuda::backend();
    assert!(compare(&backend, &backend.clone().with_numerics(Numerics::Fast)) > 50);
}

/// Runs every case of the ops that have several forms in each form.
fn run_forms(backend: &Arc<dyn Backend>) {
    let (mut faults, mut passed) = (Vec::new(), 0);
    for case in OpKind::ALL.iter().flat_map(|kind| kind.cases()) {
        for form in backend.variants(&case.op) {
            let in_form = backend.in_variant(form.name).unwrap();
            match run_case(&in_form, &case) {
                Outcome::Passed => passed += 1,
                Outcome::Declined(reason) if reason.starts_with(form.name) => {}
                other => {
                    faults.push(format!("{} / {} as {}: {other:?}", case.op.name(), case.name, form.name))
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(passed > 100, "{passed} cases ran in some form");
}

#[test]
fn every_form_passes_the_cases_on_the_cpu() {
    run_forms(&(Arc::new(CpuBackend::new(Some(2))) as Arc<dyn Backend>));
}

#[test]
fn every_form_passes_the_cases_on_cuda() {
    let _alone = cuda::alone();
    run_forms(&(Arc::new(cuda::backend()) as Arc<dyn Backend>));
}

#[test]
fn a_form_is_asked_for_by_name_or_declined() {
    let cpu = CpuBackend::new(Some(1));
    let case = OpKind::GatedDeltaNet.cases().swap_remove(0);
    let name = |backend: CpuBackend| backend.variant(&case.op, &layouts(&case)).map(|form| form.name);
    assert_eq!(name(cpu), Some("two_pass"));
    assert_eq!(name(cpu.with_numerics(Numerics::Fast)), Some("one_pass"));
    assert_eq!(name(cpu.with_variant("one_pass")), Some("one_pass"));
    let declined = cpu.with_variant("warp_tree").supports(&case.op, &layouts(&case)).unwrap_err();
    assert_eq!(declined.to_string(), "there is no form warp_tree here, only two_pass, one_pass");
}
