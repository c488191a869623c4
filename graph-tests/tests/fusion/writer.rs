//! Graphs being written, run with and without fusion.

use graph_tests::laws::values;
use ssmgraph::backend::Devices;
use ssmgraph::graph::{Action, SlotsSpec};
use ssmgraph::ops::{DType, HostTensor, Storage};
use ssmgraph::plan::{PlanOptions, fuse, prune};
use ssmgraph::{Graph, Session, Store, Tensor};
use std::sync::Arc;

pub const F32: DType = DType::F32;
pub const PLAIN: PlanOptions = PlanOptions { fuse: false };

/// A graph being written, with numbers for its inputs.
pub struct Writer {
    pub g: Graph,
    inputs: Vec<(Tensor, usize, f32, f32)>,
    pub outputs: Vec<Tensor>,
}

impl Writer {
    pub fn new() -> Writer {
        Writer { g: Graph::new(), inputs: Vec::new(), outputs: Vec::new() }
    }

    /// An input of numbers in −1..1.
    pub fn input(&mut self, ne: &[usize]) -> Tensor {
        self.input_in(ne, 1.0, 0.0)
    }

    /// An input of numbers around `shift`.
    pub fn input_in(&mut self, ne: &[usize], scale: f32, shift: f32) -> Tensor {
        let name = format!("in.{}", self.inputs.len());
        let tensor = self.g.input(&name, F32, ne).unwrap();
        self.inputs.push((tensor, ne.iter().product(), scale, shift));
        tensor
    }

    pub fn output(&mut self, tensor: Tensor) {
        self.g.output(tensor).unwrap();
        self.outputs.push(tensor);
    }

    /// Names of the ops that are computed after fusion; views left out.
    pub fn fused_ops(&self) -> Vec<&'static str> {
        let (fused, _) = fuse(&self.g);
        let (fused, _) = prune(&fused).unwrap();
        computed(&fused)
    }

    /// That fusion leaves this graph as it was written.
    pub fn stays(&self, why: &str) {
        let (as_written, _) = prune(&self.g).unwrap();
        assert_eq!(self.fused_ops(), computed(&as_written), "{why}");
    }

    /// One run on some slots; the outputs, one after the other.
    pub fn run(&self, store: &Arc<Store>, options: PlanOptions, slots: &[usize], seed: u64) -> Vec<f32> {
        let mut session = Session::with_options(&self.g, store, options).unwrap();
        for (index, &(tensor, count, scale, shift)) in self.inputs.iter().enumerate() {
            session.set(tensor, &values(seed + 31 * index as u64, count, scale, shift)).unwrap();
        }
        session.set_slots(slots).unwrap();
        session.run().unwrap();
        // A device that runs the parts must run the whole.
        let first = store.devices().backends()[0].name();
        for node in session.report().nodes {
            assert_eq!(node.device, first, "{}", node.text);
        }
        self.outputs.iter().flat_map(|&output| session.get::<f32>(output).unwrap()).collect()
    }

    /// Fused and unfused give the same, within roundings.
    pub fn agrees(&self, devices: &Devices, seed: u64) {
        let run = |options| self.run(&Store::new(devices, Vec::new()), options, &[], seed);
        close(&run(PlanOptions::default()), &run(PLAIN), "outputs");
    }
}

pub fn computed(graph: &Graph) -> Vec<&'static str> {
    let ops = graph.nodes().filter_map(|(_, node)| match &node.action {
        Action::Op(op) if !matches!(op.storage(), Storage::View { .. }) => Some(op.name()),
        _ => None,
    });
    ops.collect()
}

/// Sums of a few hundred terms, twice rounded.
pub fn close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (f, e)) in found.iter().zip(expected).enumerate() {
        let inside = f == e || (f.is_nan() && e.is_nan()) || (f - e).abs() <= 1e-5 + 1e-5 * e.abs();
        assert!(inside, "{what}: element {index} is {f:e}, expected {e:e}");
    }
}

/// Everything that two stores hold of a slot is alike.
pub fn states_close(found: &Store, expected: &Store, slot: usize) {
    let (found, expected) = (found.save(slot).unwrap(), expected.save(slot).unwrap());
    assert_eq!(found.position, expected.position);
    assert_eq!(found.rows.len(), expected.rows.len());
    for ((name, found), (_, expected)) in found.rows.iter().zip(&expected.rows) {
        let floats =
            |row: &HostTensor| row.to_f64().into_iter().map(|value| value as f32).collect::<Vec<_>>();
        close(&floats(found), &floats(expected), name);
    }
}

/// A model's step is run for a prompt and for single tokens, on two of five slots, with a rollback between; fused and
/// unfused give the same outputs and states all along.
pub fn steps_agree(
    devices: &Devices,
    tokens: usize,
    rollback: usize,
    seed: u64,
    step: &dyn Fn(SlotsSpec) -> Writer,
) {
    let [fused, plain] = [(); 2].map(|()| Store::new(devices, Vec::new()));
    let spec = |tokens| SlotsSpec { slots: 5, rollback, sequences: 2, tokens };
    let (prompt, single) = (step(spec(tokens)), step(spec(1)));
    let slots = [3, 1];
    let both = |writer: &Writer, seed: u64| {
        let found = writer.run(&fused, PlanOptions::default(), &slots, seed);
        close(&found, &writer.run(&plain, PLAIN, &slots, seed), "outputs");
        slots.iter().for_each(|&slot| states_close(&fused, &plain, slot));
    };
    both(&prompt, seed);
    both(&single, seed + 1);
    both(&single, seed + 2);
    for slot in slots {
        let back = rollback.min(tokens + 1);
        [&fused, &plain].iter().for_each(|store| store.rollback(slot, back).unwrap());
    }
    both(&single, seed + 3);
    both(&prompt, seed + 4);
}
