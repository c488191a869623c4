//! A graph computed node by node with the reference functions: no plan, no reuse of memory.

use ssmgraph::Graph;
use ssmgraph::graph::{Action, Flags, SlotInput, SlotsSpec};
use ssmgraph_ops::case::Values;
use ssmgraph_ops::tensor::indices;
use ssmgraph_ops::{DType, HostTensor, Layout, Op, OpError, Storage};
use std::collections::HashMap;
use std::rc::Rc;

/// Values beyond this make sums in `f32` and in `f64` differ too much to compare.
const MAGNITUDE_MAX: f64 = 1e9;

/// A tensor in bytes that views share.
#[derive(Clone)]
pub struct Place {
    bytes: Rc<Vec<u8>>,
    offset: usize,
    layout: Layout,
    /// Free of rounding: every backend has the same bits.
    exact: bool,
    /// Made by something that jumps, such as `argmax`, from rounded values: not comparable.
    pub unsteady: bool,
}

impl Place {
    fn of(tensor: HostTensor, exact: bool) -> Place {
        let layout = *tensor.layout();
        Place { bytes: Rc::new(tensor.bytes().to_vec()), offset: 0, layout, exact, unsteady: false }
    }

    /// A copy.
    pub fn tensor(&self) -> HostTensor {
        let bytes = self.bytes[self.offset..self.offset + self.layout.span_bytes()].to_vec();
        HostTensor::from_bytes(self.layout, bytes).expect("as long as its layout")
    }
}

/// A graph's states over several runs.
pub struct Interpreter<'a> {
    graph: &'a Graph,
    leaves: &'a HashMap<String, HostTensor>,
    pools: HashMap<usize, Place>,
    position: usize,
    noise: Option<Values>,
    /// Whether some value was too large to be compared.
    pub wild: bool,
}

impl<'a> Interpreter<'a> {
    /// With `noise`, every value is changed by about one rounding, to see how much that matters.
    pub fn new(
        graph: &'a Graph,
        leaves: &'a HashMap<String, HostTensor>,
        noise: Option<u64>,
    ) -> Interpreter<'a> {
        let noise = noise.map(Values::new);
        Interpreter { graph, leaves, pools: HashMap::new(), position: 0, noise, wild: false }
    }

    /// All values of one run.
    ///
    /// Errors: a value that an op refuses.
    pub fn run(&mut self) -> Result<Vec<Vec<Place>>, OpError> {
        let mut values: Vec<Vec<Place>> = Vec::new();
        for (index, node) in self.graph.nodes() {
            let operands: Vec<Place> =
                node.operands.iter().map(|t| values[t.node()][t.result()].clone()).collect();
            values.push(match &node.action {
                Action::Op(op) => self.compute(op, &operands, &node.results)?,
                Action::Slots(SlotInput::Read) => vec![Place::of(self.slot_rows(None), true)],
                Action::Slots(SlotInput::Write { back }) => {
                    vec![Place::of(self.slot_rows(Some(*back)), true)]
                }
                Action::Slots(other) => vec![Place::of(self.cache_places(*other), true)],
                Action::Leaf if node.flags.contains(Flags::STATE) => {
                    let zeros = || Place::of(HostTensor::zeros(node.results[0]), true);
                    vec![self.pools.entry(index).or_insert_with(zeros).clone()]
                }
                Action::Leaf => {
                    let name = node.name.as_deref().expect("leaves have names");
                    let mut tensor = self.leaves[name].clone();
                    self.disturb(&mut tensor);
                    vec![Place::of(tensor, true)]
                }
            });
        }
        for (pool, last) in self.graph.states() {
            self.pools.insert(pool.node(), values[last.node()][last.result()].clone());
        }
        self.position += self.graph.slots_spec().map_or(0, |spec| spec.tokens);
        Ok(values)
    }

    fn compute(&mut self, op: &Op, operands: &[Place], results: &[Layout]) -> Result<Vec<Place>, OpError> {
        let unsteady = operands.iter().any(|place| place.unsteady);
        if let Storage::View { offset_bytes } = op.storage() {
            let x = &operands[0];
            return Ok(vec![Place { offset: x.offset + offset_bytes, layout: results[0], ..x.clone() }]);
        }
        let inputs: Vec<HostTensor> = operands.iter().map(Place::tensor).collect();
        let inputs_exact = operands.iter().all(|place| place.exact);
        let moves = moves_only(op, operands);
        let jumps = jumps(op, operands) && !inputs_exact;
        let mut places = Vec::new();
        for mut tensor in op.evaluate(&inputs)? {
            if !moves {
                self.disturb(&mut tensor);
            }
            if tensor.layout().dtype.is_float() {
                self.wild |= tensor.to_f64().iter().any(|value| value.abs() > MAGNITUDE_MAX);
            }
            let place = Place::of(tensor, inputs_exact && moves);
            places.push(Place { unsteady: unsteady || jumps, ..place });
        }
        Ok(places)
    }

    /// Changes every real value by about the last place of its type.
    fn disturb(&mut self, tensor: &mut HostTensor) {
        let Some(noise) = &mut self.noise else { return };
        let size = match tensor.layout().dtype {
            DType::F32 => 1e-6,
            DType::F16 => 1e-3,
            DType::BF16 => 8e-3,
            _ => return,
        };
        let values: Vec<f64> =
            tensor.to_f64().iter().map(|value| value * (1.0 + noise.uniform(-size, size))).collect();
        let ne = tensor.layout().ne;
        let mut view = tensor.view_mut().expect("results and leaves do not overlap");
        indices(ne).zip(values).for_each(|(index, value)| view.set(index, value));
    }

    fn slot_rows(&self, back: Option<usize>) -> HostTensor {
        let spec = self.graph.slots_spec().expect("slot rows come with slots");
        let position = match back {
            None => self.position,
            Some(back) => self.position + spec.tokens - back,
        };
        let row = |slot: usize| match position {
            0 => -1,
            position => (slot * spec.depth() + (position - 1) % spec.depth()) as i32,
        };
        let rows: Vec<i32> = slots_of(spec).into_iter().map(row).collect();
        HostTensor::from_i32(&[rows.len()], &rows).expect("one row per sequence")
    }

    /// What a leaf says of the slots' caches: once for each sequence or, sequence after sequence, for each token.
    fn cache_places(&self, input: SlotInput) -> HostTensor {
        let spec = self.graph.slots_spec().expect("slot rows come with slots");
        let capacity = self.graph.capacity().expect("places in caches come with caches");
        let tokens = |slot: usize| (self.position..self.position + spec.tokens).map(move |at| (slot, at));
        let slots = slots_of(spec);
        let places: Vec<usize> = match input {
            SlotInput::Slot => slots,
            SlotInput::Past => vec![self.position; slots.len()],
            SlotInput::Position => slots.into_iter().flat_map(tokens).map(|(_, at)| at).collect(),
            SlotInput::CacheRow => {
                slots.into_iter().flat_map(tokens).map(|(slot, at)| slot * capacity + at).collect()
            }
            SlotInput::Read | SlotInput::Write { .. } => unreachable!("rows of states"),
        };
        let places: Vec<i32> = places.into_iter().map(|place| place as i32).collect();
        HostTensor::from_i32(&[places.len()], &places).expect("a list")
    }
}

/// The slots that the sequences of a run live in: the last ones, backwards.
pub fn slots_of(spec: &SlotsSpec) -> Vec<usize> {
    (0..spec.sequences).map(|sequence| spec.slots - 1 - sequence).collect()
}

/// Whether the op gives the same bits on every backend, from operands that are the same.
fn moves_only(op: &Op, operands: &[Place]) -> bool {
    match op {
        Op::Cpy(cpy) => cpy.to.dtype == operands[0].layout.dtype,
        Op::GetRows(_) | Op::Concat(_) | Op::Repeat(_) | Op::Argmax(_) | Op::TopK(_) => true,
        Op::SetRows(_) => operands[0].layout.dtype == DType::F32,
        _ => false,
    }
}

/// Whether a small change of an operand can make a large one of the result.
fn jumps(op: &Op, operands: &[Place]) -> bool {
    match op {
        Op::Argmax(_) | Op::TopK(_) => true,
        Op::Cpy(cpy) => !cpy.to.dtype.is_float() && cpy.to.dtype != operands[0].layout.dtype,
        Op::MulMat(mul) => mul.quantize,
        Op::MulMatId(mul) => mul.quantize,
        _ => false,
    }
}
