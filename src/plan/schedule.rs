//! The order of work: which memory each node reads and writes, copies between devices, updates in place.

use super::{Assignment, CopyReason, Home, PlanStep, Spot, Value, ValueId};
use crate::graph::{Action, Flags, Graph, Tensor};
use ssmgraph_ops::{Layout, Op, Storage};
use std::collections::{HashMap, HashSet};

/// A schedule whose arena values have no offsets yet.
pub struct Schedule {
    /// What a run does.
    pub steps: Vec<PlanStep>,
    /// All memory.
    pub values: Vec<Value>,
    /// For each node the spot of each result that is readable after a run.
    pub readable: Vec<Vec<Option<Spot>>>,
}

/// One version of some bytes: the node and result that made it. Views share the origin of their operand; an
/// update makes a new one, wherever its bytes are.
type Origin = (u32, u16);

/// A tensor as a part of its origin.
#[derive(Clone, Copy)]
struct Part {
    origin: Origin,
    offset_bytes: usize,
}

struct Scheduler<'a> {
    graph: &'a Graph,
    /// For each node the part of each result.
    parts: Vec<Vec<Part>>,
    /// The last node that reads an origin; `usize::MAX` for what is written back after all nodes.
    last_read: HashMap<Origin, usize>,
    /// Origins that must be readable after the run.
    kept: HashSet<Origin>,
    /// Updates on the way from a state's pool to its new value: only these may write the pool.
    state_updates: HashSet<usize>,
    /// Where an origin's bytes are: on its own device first, copies after.
    placed: HashMap<Origin, Vec<ValueId>>,
    steps: Vec<PlanStep>,
    values: Vec<Value>,
}

/// Schedules a graph whose nodes have devices.
pub fn schedule(graph: &Graph, assignments: &[Option<Assignment>]) -> Schedule {
    let mut scheduler = Scheduler::new(graph);
    for (index, node) in graph.nodes() {
        if let (Action::Op(op), Some(assignment)) = (&node.action, &assignments[index]) {
            scheduler.compute(index, op, assignment.device);
        }
    }
    scheduler.finish()
}

impl<'a> Scheduler<'a> {
    fn new(graph: &'a Graph) -> Scheduler<'a> {
        let mut scheduler = Scheduler {
            graph,
            parts: Vec::with_capacity(graph.len()),
            last_read: HashMap::new(),
            kept: HashSet::new(),
            state_updates: HashSet::new(),
            placed: HashMap::new(),
            steps: Vec::new(),
            values: Vec::new(),
        };
        for (index, node) in graph.nodes() {
            let own = |result: usize| Part { origin: (index as u32, result as u16), offset_bytes: 0 };
            let mut parts: Vec<Part> = (0..node.results.len()).map(own).collect();
            if let Action::Op(op) = &node.action {
                match op.storage() {
                    Storage::View { offset_bytes } => {
                        let viewed = scheduler.part(node.operands[0]);
                        parts[0] = Part { offset_bytes: viewed.offset_bytes + offset_bytes, ..viewed };
                    }
                    Storage::Update => parts[0].offset_bytes = scheduler.part(node.operands[0]).offset_bytes,
                    Storage::Fresh { .. } => {}
                }
                if !matches!(op.storage(), Storage::View { .. }) {
                    for &operand in &node.operands {
                        let origin = scheduler.part(operand).origin;
                        scheduler.last_read.insert(origin, index);
                    }
                }
            }
            if node.flags.intersects(Flags::OUTPUT | Flags::KEEP) {
                scheduler.kept.extend(parts.iter().map(|part| part.origin));
            }
            scheduler.parts.push(parts);
        }
        for &(pool, last) in graph.states() {
            scheduler.follow_state(pool, last);
            if pool != last {
                // The write-back reads the new value when all nodes have run.
                scheduler.last_read.insert(scheduler.part(last).origin, usize::MAX);
            }
        }
        scheduler
    }

    /// Notes the updates that lead from a state's pool to its new value.
    fn follow_state(&mut self, pool: Tensor, last: Tensor) {
        let mut at = last;
        while at != pool {
            let node = self.graph.node(at.node());
            match &node.action {
                Action::Op(op) if op.storage() == Storage::Update => {
                    self.state_updates.insert(at.node());
                }
                Action::Op(op) if matches!(op.storage(), Storage::View { .. }) => {}
                _ => return,
            }
            at = node.operands[0];
        }
    }

    fn part(&self, tensor: Tensor) -> Part {
        self.parts[tensor.node()][tensor.result()]
    }

    fn layout(&self, tensor: Tensor) -> Layout {
        self.graph.node(tensor.node()).results[tensor.result()]
    }

    fn compute(&mut self, index: usize, op: &Op, device: usize) {
        let node = self.graph.node(index);
        let mut inputs: Vec<Spot> = node.operands.iter().map(|&operand| self.spot(operand, device)).collect();
        let mut results = Vec::with_capacity(node.results.len());
        for (result, layout) in node.results.iter().enumerate() {
            let part = self.parts[index][result];
            let value = match op.storage() {
                Storage::Update => {
                    let value = self.updated_value(index, inputs[0]);
                    inputs[0].value = value;
                    value
                }
                Storage::Fresh { reuse } if result == 0 => self
                    .reusable(index, reuse, &inputs, layout)
                    .unwrap_or_else(|| self.new_value(device, layout.span_bytes())),
                _ => self.new_value(device, layout.span_bytes()),
            };
            self.placed.entry(part.origin).or_default().insert(0, value);
            results.push(Spot { value, offset_bytes: part.offset_bytes, layout: *layout });
        }
        let step = self.steps.len();
        for spot in inputs.iter().chain(&results) {
            self.touch(spot.value, step);
        }
        self.steps.push(PlanStep::Compute { node: index, device, inputs, results });
    }

    /// Where a tensor can be read on a device, copied there first if it must be.
    fn spot(&mut self, tensor: Tensor, device: usize) -> Spot {
        let part = self.part(tensor);
        let value = self.value_on(part.origin, device);
        Spot { value, offset_bytes: part.offset_bytes, layout: self.layout(tensor) }
    }

    fn value_on(&mut self, origin: Origin, device: usize) -> ValueId {
        let places = self.placed.get(&origin).cloned().unwrap_or_default();
        if let Some(&value) = places.iter().find(|&&value| self.values[value].device == device) {
            return value;
        }
        let node = self.graph.node(origin.0 as usize);
        let index = origin.0 as usize;
        let resident = match () {
            () if node.flags.contains(Flags::INPUT) => Some(Home::Input { node: index }),
            () if node.flags.contains(Flags::WEIGHT) => Some(Home::Weight { node: index }),
            // A state lives on the device that reads it first; others get copies.
            () if node.flags.contains(Flags::STATE) && places.is_empty() => Some(Home::State { node: index }),
            () => None,
        };
        let bytes = node.results[origin.1 as usize].span_bytes();
        let value = match resident {
            Some(home) => self.push(Value { device, home, bytes, live: 0..0, kept: true }),
            None => {
                let bytes = self.values[places[0]].bytes;
                let copy = self.new_value(device, bytes);
                self.copy(places[0], copy, CopyReason::OtherDevice);
                copy
            }
        };
        self.placed.entry(origin).or_default().push(value);
        value
    }

    /// Where an update writes: in place when the old value is not needed any more, otherwise in a copy.
    fn updated_value(&mut self, index: usize, old: Spot) -> ValueId {
        let operands = &self.graph.node(index).operands;
        let origin = self.part(operands[0]).origin;
        let read_elsewhere = operands[1..].iter().any(|&operand| self.part(operand).origin == origin);
        let allowed = match self.values[old.value].home {
            Home::Input { .. } | Home::Weight { .. } => false,
            Home::State { .. } => self.state_updates.contains(&index),
            Home::Arena { .. } => true,
        };
        let last = self.last_read.get(&origin).copied() == Some(index);
        if allowed && last && !read_elsewhere && !self.kept.contains(&origin) {
            return old.value;
        }
        let (device, bytes) = (self.values[old.value].device, self.values[old.value].bytes);
        let copy = self.new_value(device, bytes);
        self.copy(old.value, copy, CopyReason::OldValueNeeded);
        copy
    }

    /// An operand's value whose memory the result may take over.
    fn reusable(&self, index: usize, reuse: &[usize], inputs: &[Spot], layout: &Layout) -> Option<ValueId> {
        let operands = &self.graph.node(index).operands;
        reuse.iter().filter(|&&operand| operand < inputs.len()).find_map(|&operand| {
            let spot = inputs[operand];
            let value = &self.values[spot.value];
            let origin = self.part(operands[operand]).origin;
            let dies = self.last_read.get(&origin).copied() == Some(index) && !self.kept.contains(&origin);
            let whole =
                spot.offset_bytes == 0 && spot.layout == *layout && value.bytes == layout.span_bytes();
            // Any other operand in the same bytes would be read after they were written.
            let shared = inputs.iter().filter(|other| other.value == spot.value).count() > 1;
            let arena = matches!(value.home, Home::Arena { .. });
            (dies && whole && !shared && arena).then_some(spot.value)
        })
    }

    fn new_value(&mut self, device: usize, bytes: usize) -> ValueId {
        let step = self.steps.len();
        self.push(Value {
            device,
            home: Home::Arena { offset_bytes: 0 },
            bytes,
            live: step..step,
            kept: false,
        })
    }

    fn push(&mut self, value: Value) -> ValueId {
        self.values.push(value);
        self.values.len() - 1
    }

    fn copy(&mut self, from: ValueId, to: ValueId, why: CopyReason) {
        let step = self.steps.len();
        self.touch(from, step);
        self.touch(to, step);
        self.steps.push(PlanStep::Copy { from, to, why });
    }

    fn touch(&mut self, value: ValueId, step: usize) {
        let live = &mut self.values[value].live;
        live.end = live.end.max(step);
    }

    /// Writes states back, notes what can be read after the run, and ends.
    fn finish(mut self) -> Schedule {
        let write_backs = self.write_backs();
        self.save_from_pools();
        for (now, home) in write_backs {
            self.copy(now, home, CopyReason::StateWriteBack);
        }
        let end = self.steps.len();
        let mut readable = Vec::with_capacity(self.graph.len());
        for (index, node) in self.graph.nodes() {
            let mut spots = Vec::with_capacity(node.results.len());
            for (result, layout) in node.results.iter().enumerate() {
                let part = self.parts[index][result];
                let spot = self.kept.contains(&part.origin).then(|| {
                    let value = self.readable_value(part.origin);
                    self.values[value].kept = true;
                    self.touch(value, end);
                    Spot { value, offset_bytes: part.offset_bytes, layout: *layout }
                });
                spots.push(spot);
            }
            readable.push(spots);
        }
        Schedule { steps: self.steps, values: self.values, readable }
    }

    /// For each state whose new value was made elsewhere: where it is, and the pool it belongs to.
    fn write_backs(&self) -> Vec<(ValueId, ValueId)> {
        let changed = self.graph.states().iter().filter(|(pool, last)| pool != last);
        let moves = changed.filter_map(|&(pool, last)| {
            let home = self.placed.get(&self.part(pool).origin)?[0];
            Some((self.placed[&self.part(last).origin][0], home))
        });
        moves.filter(|(now, home)| now != home).collect()
    }

    /// A pool changes when its new value is written back, and again with every later run of any session. What
    /// must stay readable gets bytes of its own.
    fn save_from_pools(&mut self) {
        let mut kept: Vec<Origin> = self.kept.iter().copied().collect();
        kept.sort_unstable();
        for origin in kept {
            let value = self.readable_value(origin);
            if matches!(self.values[value].home, Home::State { .. }) {
                let copy = self.new_value(self.values[value].device, self.values[value].bytes);
                self.copy(value, copy, CopyReason::KeptState);
                self.placed.entry(origin).or_default().insert(0, copy);
            }
        }
    }

    /// Where a kept origin is; a leaf that nothing reads gets its place here.
    fn readable_value(&mut self, origin: Origin) -> ValueId {
        match self.placed.get(&origin) {
            Some(places) => places[0],
            None => self.value_on(origin, 0),
        }
    }
}
