//! Random graphs from bytes: every op, odd shapes, views of views, states, and calls that must be refused.
//!
//! The same bytes give the same graph on every machine, so that a fuzzer's finding is a test. A byte string
//! that ends early goes on with zeros.

mod check;
mod interpret;
mod ops;
mod parts;

pub use check::check;

use ssmgraph::graph::{Caches, Slots, SlotsSpec, State};
use ssmgraph::{Graph, Tensor};
use ssmgraph_ops::case::{Arrangement, Values};
use ssmgraph_ops::{DType, HostTensor, Layout};
use std::collections::HashMap;

/// Largest tensor that other calls use, in elements: a larger one stays in the graph, for its shape's sake.
const ELEMENTS_MAX: usize = 6000;
/// Largest span of a tensor that other calls use, in bytes.
const BYTES_MAX: usize = 1 << 17;
/// Most calls.
const CALLS_MAX: usize = 40;
/// Counts of axes: around the widths of vectors, and the degenerate ones.
const COUNTS: [usize; 12] = [1, 2, 3, 5, 16, 17, 33, 64, 0, 4, 32, 1];

/// Choices, read from bytes.
pub(crate) struct Choices<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Choices<'_> {
    fn ended(&self) -> bool {
        self.at >= self.bytes.len()
    }

    fn byte(&mut self) -> u8 {
        let byte = self.bytes.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        byte
    }

    /// A number below `end`, which must not be 0.
    fn below(&mut self, end: usize) -> usize {
        if end <= 256 {
            return self.byte() as usize % end;
        }
        (usize::from(self.byte()) | usize::from(self.byte()) << 8) % end
    }

    /// True once in `times`.
    fn rarely(&mut self, times: usize) -> bool {
        self.below(times) == times - 1
    }

    fn count(&mut self) -> usize {
        COUNTS[self.below(COUNTS.len())]
    }

    /// A shape within the limits.
    fn shape(&mut self) -> [usize; 4] {
        let mut ne = [self.count(), 1, 1, 1];
        for axis in 1..1 + self.below(4) {
            let count = self.count();
            if ne.iter().map(|&n| n.max(1)).product::<usize>() * count <= ELEMENTS_MAX {
                ne[axis] = count;
            }
        }
        ne
    }

    fn float(&mut self) -> DType {
        [DType::F32, DType::F32, DType::F32, DType::F16, DType::BF16][self.below(5)]
    }

    /// An axis, now and then one that does not exist.
    fn axis(&mut self) -> usize {
        let axes = if self.rarely(40) { 5 } else { 4 };
        self.below(axes)
    }

    fn permutation(&mut self) -> [usize; 4] {
        let mut axes = [0, 1, 2, 3];
        for last in (1..4).rev() {
            axes.swap(last, self.below(last + 1));
        }
        axes
    }
}

/// A graph with values for its leaves.
pub struct RandomGraph {
    /// The graph.
    pub graph: Graph,
    /// Inputs and their values.
    pub inputs: Vec<(Tensor, HostTensor)>,
    /// Weights by name.
    pub weights: HashMap<String, HostTensor>,
    /// Results to compare; each of their nodes has a name.
    pub outputs: Vec<Tensor>,
    /// Decides which ops the declining backend declines.
    pub seed: u64,
}

/// Builds graphs.
struct Maker<'a> {
    choices: Choices<'a>,
    made: RandomGraph,
    /// Tensors that calls may use.
    usable: Vec<Tensor>,
    /// A tensor of another graph.
    foreign: Tensor,
    slots: Option<Slots>,
    caches: Option<Caches>,
    states: Vec<State>,
    seed: u64,
}

/// The graph that the bytes describe.
pub fn build(bytes: &[u8]) -> RandomGraph {
    let foreign = Graph::new().input("foreign", DType::F32, &[3]).expect("a small input");
    let mut maker = Maker {
        choices: Choices { bytes, at: 0 },
        made: RandomGraph {
            graph: Graph::new(),
            inputs: Vec::new(),
            weights: HashMap::new(),
            outputs: Vec::new(),
            seed: 0,
        },
        usable: Vec::new(),
        foreign,
        slots: None,
        caches: None,
        states: Vec::new(),
        seed: 0,
    };
    maker.made.seed = maker.choices.byte().into();
    maker.seed = maker.choices.byte().into();
    let ne = maker.choices.shape();
    maker.leaf(DType::F32, ne);
    for _ in 0..CALLS_MAX {
        if maker.choices.ended() {
            break;
        }
        maker.call();
    }
    if let Some(&last) = maker.usable.last() {
        maker.mark_output(last);
    }
    if !maker.made.seed.is_multiple_of(4) {
        maker.sum_up();
    }
    maker.write_states();
    maker.made
}

impl Maker<'_> {
    /// Where a tensor lies; one of another graph looks like any small tensor.
    fn layout(&self, tensor: Tensor) -> Layout {
        let layout = self.made.graph.layout(tensor);
        layout.unwrap_or_else(|_| Layout::contiguous(DType::F32, &[3]).expect("a small shape"))
    }

    /// Makes a tensor usable if it is small enough.
    fn take(&mut self, tensor: Tensor) {
        let layout = self.layout(tensor);
        let counts: usize = layout.ne.iter().map(|&count| count.max(1)).product();
        if counts <= ELEMENTS_MAX && layout.span_bytes() <= BYTES_MAX {
            self.usable.push(tensor);
        }
    }

    fn take_all<E>(&mut self, results: Result<impl IntoIterator<Item = Tensor>, E>) {
        for tensor in results.into_iter().flatten() {
            self.take(tensor);
        }
    }

    /// Some earlier tensor; late ones more often.
    fn any(&mut self) -> Tensor {
        let count = self.usable.len();
        let back = match self.choices.below(4) {
            0 | 1 => self.choices.below(count.min(3)),
            _ => self.choices.below(count),
        };
        self.usable[count - 1 - back]
    }

    fn any_with(&mut self, fits: impl Fn(&Layout) -> bool) -> Option<Tensor> {
        let count = self.usable.len();
        let start = self.choices.below(count);
        let found = (0..count).map(|i| self.usable[(start + i) % count]).find(|&t| fits(&self.layout(t)));
        // Now and then an operand that does not fit, which must be refused.
        if self.choices.rarely(40) { Some(self.any()) } else { found }
    }

    /// Some real-valued tensor.
    fn any_float(&mut self) -> Tensor {
        match self.any_with(|layout| layout.dtype.is_float()) {
            Some(tensor) => tensor,
            None => {
                let ne = self.choices.shape();
                self.leaf(DType::F32, ne)
            }
        }
    }

    fn any_f32(&mut self) -> Tensor {
        match self.any_with(|layout| layout.dtype == DType::F32) {
            Some(tensor) => tensor,
            None => {
                let ne = self.choices.shape();
                self.leaf(DType::F32, ne)
            }
        }
    }

    fn values(&mut self, arrangement: Arrangement, dtype: DType, ne: &[usize; 4], high: f64) -> HostTensor {
        self.seed += 1;
        let low = if dtype.is_int() { -1.0 } else { -high };
        Values::new(self.seed).arranged(arrangement, dtype, ne, low, high)
    }

    /// A new input.
    fn leaf(&mut self, dtype: DType, ne: [usize; 4]) -> Tensor {
        self.leaf_up_to(dtype, ne, 2.0)
    }

    fn leaf_up_to(&mut self, dtype: DType, mut ne: [usize; 4], high: f64) -> Tensor {
        ne[0] = ne[0].next_multiple_of(dtype.block_len());
        let name = format!("in.{}", self.made.graph.len());
        let tensor = self.made.graph.input(&name, dtype, &ne).expect("a small input of a fresh name");
        let values = self.values(Arrangement::Contiguous, dtype, &ne, high);
        self.made.inputs.push((tensor, values));
        self.take(tensor);
        tensor
    }

    /// A new weight, which may have any strides.
    fn weight(&mut self, dtype: DType, mut ne: [usize; 4]) -> Tensor {
        ne[0] = ne[0].next_multiple_of(dtype.block_len());
        let all = if dtype.is_block() { Arrangement::PACKED_ROWS } else { Arrangement::ALL };
        let arrangement = all[self.choices.below(all.len())];
        let values = self.values(arrangement, dtype, &ne, 1.0);
        let name = format!("w.{}", self.made.graph.len());
        let tensor = self.made.graph.weight(&name, *values.layout()).expect("a fresh name");
        self.made.weights.insert(name, values);
        self.take(tensor);
        tensor
    }

    /// A tensor of this type and shape: an earlier one, a view of one, or a new one.
    fn fit(&mut self, dtype: DType, ne: [usize; 4]) -> Tensor {
        if self.choices.rarely(48) {
            return if self.choices.rarely(4) { self.foreign } else { self.any() };
        }
        let elements: usize = ne.iter().product();
        let found = match self.choices.below(9) {
            0..=2 => self.any_with(|layout| layout.dtype == dtype && layout.ne == ne),
            3 => self
                .any_with(|layout| layout.dtype == dtype && layout.elements() == elements)
                .and_then(|x| self.made.graph.reshape(x, &ne).ok()),
            4 if !dtype.is_block() => {
                let axes = self.choices.permutation();
                let mut inner = [0; 4];
                (0..4).for_each(|axis| inner[axis] = ne[axes[axis]]);
                let x = self.leaf(dtype, inner);
                self.made.graph.permute(x, axes).ok()
            }
            5 if !dtype.is_block() => {
                let axis = self.choices.below(4);
                let mut larger = ne;
                larger[axis] += 1 + self.choices.below(2);
                let x = self.leaf(dtype, larger);
                self.made.graph.slice(x, axis, 1, ne[axis]).ok()
            }
            6 if dtype == DType::F32 => {
                let x = self.leaf(dtype, ne);
                self.made.graph.scale(x, 0.5, 0.25).ok()
            }
            7 => Some(self.weight(dtype, ne)),
            _ => None,
        };
        let found = found.unwrap_or_else(|| self.leaf(dtype, ne));
        self.take(found);
        found
    }

    /// Indices of rows, now and then beyond the last.
    fn ids(&mut self, dtype: DType, ne: [usize; 4], rows: usize) -> Tensor {
        if self.choices.rarely(12) {
            return self.fit(dtype, ne);
        }
        let rows = if self.choices.rarely(60) { rows + 2 } else { rows };
        self.leaf_up_to(dtype, ne, rows as f64)
    }

    /// A shape that can be repeated to `ne`.
    fn divisors(&mut self, ne: [usize; 4]) -> [usize; 4] {
        let how = self.choices.below(4);
        std::array::from_fn(|axis| match how {
            0 | 1 => ne[axis],
            2 if axis > 0 => 1,
            2 => ne[axis],
            _ => match self.choices.below(3) {
                0 => 1,
                1 if ne[axis].is_multiple_of(2) => ne[axis] / 2,
                _ => ne[axis],
            },
        })
    }

    fn mark_output(&mut self, tensor: Tensor) {
        let node = self.made.graph.node(tensor.node());
        if node.name.is_none() {
            let name = format!("out.{}", self.made.outputs.len());
            self.made.graph.name(tensor, &name).expect("a fresh name");
        }
        self.made.graph.output(tensor).expect("a tensor of this graph");
        self.made.outputs.push(tensor);
    }

    /// Outputs that need much of the graph and keep none of it, so that memory is used again.
    fn sum_up(&mut self) {
        let stride = self.usable.len().div_ceil(10);
        let floats: Vec<Tensor> =
            self.usable.iter().copied().filter(|&t| self.layout(t).dtype.is_float()).collect();
        for tensor in floats.into_iter().rev().step_by(stride) {
            let sum = self.made.graph.sum(tensor).expect("a sum of real numbers");
            self.mark_output(sum);
        }
    }

    /// Stores a newest state for each state that is used, as a session wants it.
    fn write_states(&mut self) {
        for state in self.states.clone() {
            let graph = &self.made.graph;
            let written = graph.states().iter().any(|&(pool, last)| pool == state.pool && pool != last);
            if written || graph.users(state.pool.node()).next().is_some() {
                let slots = self.slots();
                let [a, b, c, _] = self.layout(state.pool).ne;
                let rows = self.fit(DType::F32, [a, b, c, slots.spec.sequences]);
                let graph = &mut self.made.graph;
                let written = graph.cont(rows).and_then(|rows| graph.write_state(&state, &slots, 0, rows));
                written.expect("packed rows of the state's shape");
            }
        }
    }

    fn slots(&mut self) -> Slots {
        if let Some(slots) = &self.slots {
            return slots.clone();
        }
        let spec = SlotsSpec {
            slots: 2 + self.choices.below(2),
            rollback: self.choices.below(3),
            sequences: 1 + self.choices.below(2),
            tokens: self.choices.below(4),
        };
        let slots = self.made.graph.slots(spec).expect("slots are declared once");
        self.slots = Some(slots.clone());
        slots
    }
}
