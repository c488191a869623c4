//! What must hold of any graph on any list of devices.

use super::RandomGraph;
use super::interpret::{Interpreter, slots_of};
use ssmgraph::backend::{CpuBackend, Declined, Devices, Eager, EagerBackend};
use ssmgraph::plan::{PlanError, prune};
use ssmgraph::{Graph, Session, SessionError, Store, Tensor};
use ssmgraph_ops::{DType, HostTensor, Layout, Op, OpError};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// How many times each graph runs.
pub const RUNS: usize = 3;

/// The reference functions, for about half of all ops.
struct Picky {
    seed: u64,
}

impl EagerBackend for Picky {
    fn name(&self) -> &str {
        "picky"
    }

    fn supports(&self, op: &Op, inputs: &[Layout]) -> Result<(), Declined> {
        let mut hasher = DefaultHasher::new();
        (self.seed, op.name(), inputs).hash(&mut hasher);
        match hasher.finish() % 2 {
            0 => Ok(()),
            _ => Err(Declined("not this one".into())),
        }
    }

    fn compute(&self, op: &Op, inputs: &[HostTensor]) -> Result<Vec<HostTensor>, OpError> {
        op.evaluate(inputs)
    }
}

/// Checks a graph on all lists of devices. Panics with what went wrong, and the graph's text.
pub fn check(random: &RandomGraph) {
    let graph = &random.graph;
    assert_eq!(graph.verify(), Ok(()));
    assert!(!graph.to_dot().is_empty() && !graph.to_mermaid().is_empty());
    // A graph in which nothing is wanted is refused, and that is all there is to it.
    let wanted = match prune(graph) {
        Ok((wanted, _)) => wanted,
        Err(error) => return assert_eq!(error, PlanError::NoOutput),
    };
    let expected = Expected::of(random, &wanted);
    let picky = |seed: u64| Arc::new(Eager::new(Picky { seed }));
    let mixed = Devices::new(vec![picky(random.seed), Arc::new(CpuBackend::new(Some(2)))]);
    for (name, devices) in
        [("cpu", Devices::cpu(Some(2))), ("reference", Devices::reference()), ("mixed", mixed)]
    {
        let found = compute(random, graph, &devices);
        compare_with_all_kept(random, &devices, name, &found);
        if graph.states().is_empty() && graph.slots_spec().is_none() {
            for (run, values) in found.iter().flatten().enumerate() {
                let first = &found.as_ref().expect("there are runs")[0];
                assert!(values == first, "{name}: run {run} differs from the first\n{}", graph.to_text());
            }
        }
        expected.compare(random, name, &found);
    }
}

/// The outputs of each run, or that a run failed.
type Found = Result<Vec<Vec<HostTensor>>, String>;

/// Runs a graph, with inputs found by their names, and reads the outputs that `reads` names.
fn compute(random: &RandomGraph, graph: &Graph, devices: &Devices) -> Found {
    let store = Store::new(devices, vec![Arc::new(random.weights.clone())]);
    let mut session = Session::with_store(graph, &store).unwrap_or_else(|error| {
        panic!("no session: {error}\n{}", graph.to_text());
    });
    // Texts must not fail; a graph whose only result is an empty leaf has nothing to say.
    assert!(session.plan().to_text().len() + graph.to_text().len() < 1 << 20);
    for (index, (tensor, values)) in random.inputs.iter().enumerate() {
        // The first name is that of the original; a pruned graph may lack the leaf.
        if let Some(input) = find(graph, &random.graph, *tensor) {
            session.set_tensor(input, values).unwrap_or_else(|error| panic!("input {index}: {error}"));
        }
    }
    if let Some(spec) = graph.slots_spec() {
        session.set_slots(&slots_of(spec)).expect("as many slots as sequences");
    }
    let mut found = Vec::new();
    for _ in 0..RUNS {
        match session.run() {
            Ok(()) => {}
            Err(error) => return Err(text_of_run(error)),
        }
        let outputs = random.outputs.iter().map(|&output| {
            let output = find(graph, &random.graph, output).expect("outputs are never pruned");
            session.get_tensor(output).unwrap_or_else(|error| panic!("{error}\n{}", graph.to_text()))
        });
        found.push(outputs.collect());
    }
    Ok(found)
}

/// An op may refuse a value; anything else must not happen.
fn text_of_run(error: SessionError) -> String {
    match error {
        SessionError::Backend(ssmgraph::backend::BackendError::Op(error)) => error.to_string(),
        error => panic!("a run failed with {error}"),
    }
}

/// The tensor of `graph` that has the name of a tensor of `original`.
fn find(graph: &Graph, original: &Graph, tensor: Tensor) -> Option<Tensor> {
    let name = original.node(tensor.node()).name.as_deref().expect("inputs and outputs have names");
    graph.find(name).map(|found| graph.tensor(found.node(), tensor.result()))
}

/// Keeping every intermediate value must not change a bit of any output: it only forbids reuse of memory.
fn compare_with_all_kept(random: &RandomGraph, devices: &Devices, name: &str, found: &Found) {
    let plan = ssmgraph::plan::Plan::new(&random.graph, devices).expect("planned before");
    let mut all_kept = plan.graph.clone();
    for node in 0..all_kept.len() {
        all_kept.keep(all_kept.tensor(node, 0)).expect("a node of this graph");
    }
    let kept = compute(random, &all_kept, devices);
    match (found, &kept) {
        (Ok(found), Ok(kept)) => {
            for (run, (found, kept)) in found.iter().zip(kept).enumerate() {
                for (output, (found, kept)) in found.iter().zip(kept).enumerate() {
                    assert!(
                        found.bytes() == kept.bytes(),
                        "{name}: output {output} of run {run} depends on what is kept\n{}\n{}",
                        random.graph.to_text(),
                        plan.to_text()
                    );
                }
            }
        }
        (Err(_), Err(_)) => {}
        _ => panic!("{name}: keeping values changes whether a run fails\n{}", plan.to_text()),
    }
}

/// What the reference functions give, and how sensitive that is.
struct Expected {
    clean: Result<Vec<Vec<Output>>, OpError>,
    noisy: Vec<Vec<Vec<HostTensor>>>,
    comparable: bool,
}

struct Output {
    tensor: HostTensor,
    unsteady: bool,
}

impl Expected {
    fn of(random: &RandomGraph, wanted: &Graph) -> Expected {
        let mut leaves: HashMap<String, HostTensor> = random.weights.clone();
        for (tensor, values) in &random.inputs {
            let name = random.graph.node(tensor.node()).name.clone().expect("inputs have names");
            leaves.insert(name, values.clone());
        }
        let mut comparable = true;
        let mut run = |noise: Option<u64>| -> Result<Vec<Vec<Output>>, OpError> {
            let mut interpreter = Interpreter::new(wanted, &leaves, noise);
            let mut outputs = Vec::new();
            for _ in 0..RUNS {
                let values = interpreter.run()?;
                let output = |&output: &Tensor| {
                    let found = find(wanted, &random.graph, output).expect("outputs are never pruned");
                    let place = &values[found.node()][found.result()];
                    Output { tensor: place.tensor(), unsteady: place.unsteady }
                };
                outputs.push(random.outputs.iter().map(output).collect());
                // Indices that jump can make a run fail on one backend and not on another.
                comparable &= !values.iter().flatten().any(|place| place.unsteady);
            }
            comparable &= !interpreter.wild;
            Ok(outputs)
        };
        let clean = run(None);
        let noisy = [1, 2].map(|seed| match run(Some(seed)) {
            Ok(runs) => runs.into_iter().map(|run| run.into_iter().map(|o| o.tensor).collect()).collect(),
            Err(_) => Vec::new(),
        });
        Expected { clean, noisy: noisy.into(), comparable }
    }

    fn compare(&self, random: &RandomGraph, name: &str, found: &Found) {
        let text = || random.graph.to_text();
        match (&self.clean, found) {
            (Ok(clean), Ok(found)) => {
                for (run, (clean, found)) in clean.iter().zip(found).enumerate() {
                    for (output, (clean, found)) in clean.iter().zip(found).enumerate() {
                        assert_eq!(clean.tensor.ne(), found.ne());
                        let noisy: Option<Vec<&HostTensor>> =
                            self.noisy.iter().map(|noisy| noisy.get(run)?.get(output)).collect();
                        let Some(noisy) = noisy.filter(|_| self.comparable && !clean.unsteady) else {
                            continue;
                        };
                        if let Some(difference) = difference(&clean.tensor, &noisy, found) {
                            panic!("{name}: output {output} of run {run}: {difference}\n{}", text());
                        }
                    }
                }
            }
            (Err(_), Err(_)) => {}
            (Err(error), Ok(_)) if self.comparable => {
                panic!("{name}: no error, expected {error}\n{}", text())
            }
            (Ok(_), Err(error)) if self.comparable => panic!("{name}: {error}\n{}", text()),
            _ => {}
        }
    }
}

/// The first element that lies further from the clean value than noise can explain.
fn difference(clean: &HostTensor, noisy: &[&HostTensor], found: &HostTensor) -> Option<String> {
    let dtype = clean.layout().dtype;
    if !dtype.is_readable() {
        return None;
    }
    let (clean, found) = (clean.to_f64(), found.to_f64());
    let noisy: Vec<Vec<f64>> = noisy.iter().map(|tensor| tensor.to_f64()).collect();
    let rounding = match dtype {
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        _ => 1e-3,
    };
    let largest = clean.iter().filter(|value| value.is_finite()).fold(0.0f64, |most, v| most.max(v.abs()));
    clean.iter().zip(&found).enumerate().find_map(|(index, (&want, &got))| {
        if !want.is_finite() || noisy.iter().any(|noisy| !noisy[index].is_finite()) {
            return None;
        }
        let moved = noisy.iter().map(|noisy| (noisy[index] - want).abs()).fold(0.0, f64::max);
        let allowed = 50.0 * moved + 1e-5 * largest + rounding * want.abs() + 1e-9;
        let inside = got.is_finite() && (got - want).abs() <= allowed;
        (!inside).then(|| format!("element {index} is {got:e}, expected {want:e} within {allowed:e}"))
    })
}
