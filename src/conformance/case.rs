//! One case on one backend.

use super::Outcome;
use super::memory::{Bound, Stored, set_all};
use crate::backend::{Backend, Declined, Devices};
use crate::graph::{Graph, GraphError, Tensor};
use crate::session::Session;
use ssmgraph_ops::{Case, HostTensor, Layout, Storage};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Runs one case on a backend, with the reference backend behind it.
pub fn run_case(backend: &Arc<dyn Backend>, case: &Case) -> Outcome {
    let layouts: Vec<Layout> = case.inputs.iter().map(|tensor| *tensor.layout()).collect();
    let answer = match case.op.storage() {
        Storage::View { .. } => Ok(()),
        _ => backend.supports(&case.op, &layouts),
    };
    outcome(answer, || check(backend, case))
}

/// The outcome of a check that may return an error or panic, after a backend answered whether it supports
/// what is checked.
pub fn outcome(answer: Result<(), Declined>, check: impl FnOnce() -> Result<(), String>) -> Outcome {
    // A backend from outside may panic; that is one failed case, not the end of the suite.
    let checked = catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(format!("panicked: {text}"))
    });
    match (checked, answer) {
        (Err(message), Ok(())) => Outcome::Failed(message),
        (Err(message), Err(reason)) => {
            Outcome::Failed(format!("declined ({reason}), and the fallback was wrong: {message}"))
        }
        (Ok(()), Ok(())) => Outcome::Passed,
        (Ok(()), Err(reason)) => Outcome::Declined(reason.to_string()),
    }
}

fn check(backend: &Arc<dyn Backend>, case: &Case) -> Result<(), String> {
    let expected = case.expected().map_err(|error| format!("the reference refuses the case: {error}"))?;
    check_graph(backend, case, &expected, false)?;
    if takes_over(case) {
        check_graph(backend, case, &expected, true).map_err(|message| format!("in place: {message}"))?;
    }
    Ok(())
}

/// Whether the result may lie where an operand of the case lies, once that operand is a value of the plan.
fn takes_over(case: &Case) -> bool {
    let packed = |operand: usize| {
        let layout = case.inputs.get(operand).map(HostTensor::layout);
        layout.is_some_and(|layout| *layout == layout.to_contiguous())
    };
    match case.op.storage() {
        Storage::Fresh { reuse } => reuse.iter().any(|&operand| packed(operand)),
        Storage::Update => packed(0),
        Storage::View { .. } => false,
    }
}

/// A graph of the case's op. With `in_place`, packed operands are copied first: the copies die with the op,
/// so that the plan may give their memory to the result.
fn build(case: &Case, in_place: bool) -> Result<(Graph, Vec<Bound>, Vec<Tensor>), GraphError> {
    let (mut graph, mut bound, mut operands) = (Graph::new(), Vec::new(), Vec::new());
    for (index, input) in case.inputs.iter().enumerate() {
        let name = format!("operand {index}");
        let stored = Stored::of(input).map_err(|error| GraphError::leaf(&name, error))?;
        let mut operand = stored.bind(&mut graph, &name, &mut bound)?;
        if in_place && *input.layout() == input.layout().to_contiguous() {
            operand = graph.cont(operand)?;
        }
        operands.push(operand);
    }
    let results = graph.op(case.op.clone(), &operands)?.to_vec();
    results.iter().try_for_each(|&result| graph.output(result))?;
    Ok((graph, bound, results))
}

fn check_graph(
    backend: &Arc<dyn Backend>,
    case: &Case,
    expected: &[HostTensor],
    in_place: bool,
) -> Result<(), String> {
    let (graph, bound, results) = build(case, in_place).map_err(|error| error.to_string())?;
    let devices = Devices::new(vec![backend.clone()]);
    let mut session = Session::new(&graph, &devices).map_err(|error| error.to_string())?;
    set_all(&mut session, &bound).map_err(|error| error.to_string())?;
    let mut first: Option<Vec<HostTensor>> = None;
    for _ in 0..2 {
        session.run().map_err(|error| error.to_string())?;
        let got: Result<Vec<_>, _> = results.iter().map(|&result| session.get_tensor(result)).collect();
        let got = got.map_err(|error| error.to_string())?;
        match &first {
            None => {
                compare(case, &got, expected)?;
                first = Some(got);
            }
            Some(first) if *first != got => return Err("two runs gave different bits".into()),
            Some(_) => {}
        }
    }
    Ok(())
}

fn compare(case: &Case, got: &[HostTensor], expected: &[HostTensor]) -> Result<(), String> {
    if got.len() != expected.len() {
        return Err(format!("{} results, expected {}", got.len(), expected.len()));
    }
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        if let Some(mismatch) = case.tolerance.mismatch(got, expected) {
            return Err(format!("{} {mismatch}", case.op.result_name(index)));
        }
    }
    Ok(())
}
