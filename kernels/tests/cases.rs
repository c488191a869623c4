//! Every case of every op that has a CPU kernel, run as a one-step program and compared with the reference,
//! on 1, 2 and 7 workers.

use ssmgraph_kernels::{Memory, Place, Program, Step, cpu};
use ssmgraph_ops::{Case, HostTensor, Layout, OpKind, Storage};
use std::sync::Arc;

fn place(tensor: &HostTensor) -> Place {
    let memory = Memory::zeroed(tensor.bytes().len()).unwrap();
    memory.write(0, tensor.bytes());
    Place { memory: Arc::new(memory), offset_bytes: 0, layout: *tensor.layout() }
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

/// The results of one case on `workers` workers.
fn run(case: &Case, workers: usize) -> Vec<HostTensor> {
    let inputs: Vec<Place> = case.inputs.iter().map(place).collect();
    let layouts: Vec<Layout> = inputs.iter().map(|p| p.layout).collect();
    let inferred = case.op.infer(&layouts).unwrap();
    let results: Vec<Place> = match case.op.storage() {
        Storage::Update => vec![inputs[0].clone()],
        _ => inferred.into_iter().map(empty).collect(),
    };
    let step = Step { op: case.op.clone(), inputs, results: results.clone() };
    Program::new(vec![step], workers).unwrap().run(None).unwrap();
    results.iter().map(read).collect()
}

#[test]
fn kernels_agree_with_the_reference() {
    let mut failures = Vec::new();
    for kind in OpKind::ALL {
        for case in kind.cases() {
            if cpu(&case.op).is_none() {
                continue;
            }
            let want = case.expected().unwrap();
            let first = run(&case, 1);
            for (index, (got, want)) in first.iter().zip(&want).enumerate() {
                if let Some(what) = case.tolerance.mismatch(got, want) {
                    failures.push(format!("{} {} result {index}: {what}", case.op.name(), case.name));
                }
            }
            for workers in [2, 7] {
                let same = run(&case, workers).iter().zip(&first).all(|(a, b)| a.bytes() == b.bytes());
                if !same {
                    failures.push(format!(
                        "{} {}: {workers} workers differ from one",
                        case.op.name(),
                        case.name
                    ));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}
