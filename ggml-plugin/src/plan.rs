//! A graph of the host as a program of one of our backends.

use crate::abi;
use crate::device::Runtime;
use crate::fuse::fuse;
use crate::host::op_name;
use crate::memory::{foreign, storage_of};
use crate::tensor::Tensor;
use crate::translate::{Call, Place, Source, is_view, translate};
use smallvec::SmallVec;
use ssmgraph::backend::{Backend, BackendError, Buffer, Program, Slice, Step};
use ssmgraph_ops::{Cpy, Layout, Op, Storage};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Why a graph was not computed.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A node that the device cannot compute.
    #[error("{node}: {reason}")]
    Node {
        /// Its op and its name.
        node: String,
        /// Why.
        reason: String,
    },
    /// The backend refused.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Everything about a tensor that a program depends on.
#[derive(PartialEq, Eq)]
struct Trace {
    address: usize,
    buffer: usize,
    dtype: i32,
    ne: [i64; abi::AXES],
    nb: [usize; abi::AXES],
}

impl Trace {
    fn of(tensor: Tensor<'_>) -> Trace {
        Trace {
            address: tensor.address(),
            buffer: tensor.buffer() as usize,
            dtype: tensor.type_number(),
            ne: tensor.counts(),
            nb: tensor.strides(),
        }
    }
}

/// A node with its operands, as far as a program depends on them.
struct NodeTrace {
    op: i32,
    params: [i32; abi::PARAMS],
    is_wanted: bool,
    is_output: bool,
    /// How often it is read: what fusions rely on.
    use_count: Option<i32>,
    result: Trace,
    /// One for each operand that is there, and which ones are.
    sources: SmallVec<[Trace; 3]>,
    present: u16,
}

impl NodeTrace {
    fn of(graph: Graph<'_>, node: Tensor<'_>) -> NodeTrace {
        NodeTrace {
            op: node.op(),
            params: *node.params(),
            is_wanted: node.is_wanted(),
            is_output: node.is_output(),
            use_count: graph.use_count(node),
            result: Trace::of(node),
            sources: node.sources().map(Trace::of).collect(),
            present: node.present(),
        }
    }

    fn is_of(&self, graph: Graph<'_>, node: Tensor<'_>) -> bool {
        self.op == node.op()
            && self.params == *node.params()
            && (self.is_wanted, self.is_output) == (node.is_wanted(), node.is_output())
            && self.result == Trace::of(node)
            && self.present == node.present()
            && self.sources.iter().zip(node.sources()).all(|(trace, source)| *trace == Trace::of(source))
            && self.use_count == graph.use_count(node)
    }
}

/// A graph of the host, while it is computed.
#[derive(Clone, Copy)]
pub struct Graph<'a>(&'a abi::Graph);

impl<'a> Graph<'a> {
    /// # Safety
    /// `pointer` points to a graph that lives and is not written for `'a`, and so do its nodes.
    pub unsafe fn new(pointer: *const abi::Graph) -> Option<Graph<'a>> {
        // SAFETY: the caller's promise.
        unsafe { pointer.as_ref() }.map(Graph)
    }

    /// Equal in two calls if the graphs are; 0 where the host gives none.
    pub fn uid(self) -> u64 {
        self.0.uid
    }

    /// How many nodes there are.
    pub fn len(self) -> usize {
        usize::try_from(self.0.node_count).unwrap_or(0)
    }

    /// Its nodes, in order.
    pub fn nodes(self) -> impl DoubleEndedIterator<Item = Tensor<'a>> + Clone {
        let pointers = match self.0.nodes.is_null() {
            true => &[],
            // SAFETY: the graph has that many nodes, as `new` was promised.
            false => unsafe { std::slice::from_raw_parts(self.0.nodes, self.len()) },
        };
        // SAFETY: nodes live as long as the graph.
        pointers.iter().filter_map(|&pointer| unsafe { Tensor::new(pointer) })
    }

    /// Whether one node alone reads a tensor, and nobody outside the graph does.
    pub fn is_private(self, tensor: Tensor<'_>) -> bool {
        !tensor.is_output() && self.use_count(tensor) == Some(1)
    }

    /// How often the whole graph, of which this may be a part, reads a tensor; `None` where the host does not say.
    pub fn use_count(self, tensor: Tensor<'_>) -> Option<i32> {
        let visited = &self.0.visited;
        if self.0.use_counts.is_null()
            || visited.used.is_null()
            || visited.keys.is_null()
            || visited.size == 0
        {
            return None;
        }
        let first = (tensor.pointer() as usize >> 4) % visited.size;
        // Linear probing, as ggml fills the table.
        for step in 0..visited.size {
            let place = (first + step) % visited.size;
            // SAFETY: the table has `size` places, its bits as many, and so have the counts.
            let (used, key) =
                unsafe { (*visited.used.add(place / 32) >> (place % 32) & 1, *visited.keys.add(place)) };
            if used == 0 {
                return None;
            }
            if key == tensor.pointer() {
                // SAFETY: as above.
                return Some(unsafe { *self.0.use_counts.add(place) });
            }
        }
        None
    }
}

/// A compiled graph, and what it was compiled from.
pub struct Plan {
    uid: u64,
    nodes: Vec<NodeTrace>,
    program: Box<dyn Program>,
    /// The buffers that the program holds, by name.
    buffers: HashSet<usize>,
    /// How many steps the program has.
    pub step_count: usize,
}

impl Plan {
    /// Whether the plan computes this graph.
    pub fn is_of(&self, graph: Graph<'_>) -> bool {
        if self.uid != 0 && self.uid == graph.uid() {
            return true;
        }
        self.nodes.len() == graph.len()
            && graph.nodes().zip(&self.nodes).all(|(node, trace)| trace.is_of(graph, node))
    }

    /// Whether the plan holds a buffer.
    pub fn holds(&self, buffer: &Arc<dyn Buffer>) -> bool {
        self.buffers.contains(&name_of(buffer))
    }

    /// Notes that the host has given an equal graph another number.
    pub fn adopt(&mut self, graph: Graph<'_>) {
        self.uid = graph.uid();
    }

    /// Compiles a graph.
    ///
    /// Errors: a node that the device cannot compute, whatever the backend refuses.
    pub fn new(graph: Graph<'_>, runtime: &Runtime, buffers: &mut Buffers) -> Result<Plan, PlanError> {
        let calls = fuse(graph, runtime, calls(graph)?);
        let mut steps = Vec::with_capacity(calls.len());
        for (node, call) in &calls {
            let failed = |reason| PlanError::Node { node: words(*node), reason };
            if let Err(declined) = runtime.backend().supports(&call.op, &call.input_layouts()) {
                return Err(failed(declined.0));
            }
            let inputs = call.inputs.iter().map(|source| buffers.input(runtime, source));
            let inputs = inputs.collect::<Result<Vec<_>, _>>().map_err(&failed)?;
            let results = call.results.iter().map(|place| buffers.slice(place));
            let results = results.collect::<Result<Vec<_>, _>>().map_err(failed)?;
            stage(runtime, Step { op: call.op.clone(), inputs, results }, &mut steps)?;
        }
        let step_count = steps.len();
        let slices = steps.iter().flat_map(|step| step.inputs.iter().chain(&step.results));
        let buffers: HashSet<usize> = slices.map(|slice| name_of(&slice.buffer)).collect();
        let program = runtime.backend().compile(steps)?;
        let nodes = graph.nodes().map(|node| NodeTrace::of(graph, node)).collect();
        Ok(Plan { uid: graph.uid(), nodes, program, buffers, step_count })
    }

    /// Computes the graph.
    ///
    /// Errors: the backend's.
    pub fn run(&mut self) -> Result<(), BackendError> {
        self.program.run(None)
    }
}

/// What tells a living buffer from others: its address.
fn name_of(buffer: &Arc<dyn Buffer>) -> usize {
    Arc::as_ptr(buffer).cast::<()>() as usize
}

/// Whether there is something to do for a node.
fn computes(node: Tensor<'_>) -> bool {
    node.is_wanted() && !is_view(node)
}

/// The nodes that compute something, as calls.
fn calls<'a>(graph: Graph<'a>) -> Result<Vec<(Tensor<'a>, Call<'a>)>, PlanError> {
    let nodes = graph.nodes().filter(|node| computes(*node));
    let call = |node: Tensor<'a>| match translate(node) {
        Ok(call) => Ok((node, call)),
        Err(declined) => Err(PlanError::Node { node: words(node), reason: declined.0 }),
    };
    nodes.map(call).collect()
}

/// What to call a node in a message.
fn words(node: Tensor<'_>) -> String {
    format!("{} ({})", op_name(node.op()), node.name())
}

/// Buffers of the host, as buffers of a backend. A plan holds those that it uses.
#[derive(Default)]
pub struct Buffers {
    /// Foreign ones, by address of the struct, address of the bytes, and size.
    foreign: HashMap<(usize, usize, usize), Foreign>,
    counting: HashMap<usize, Arc<dyn Buffer>>,
}

struct Foreign {
    buffer: Arc<dyn Buffer>,
    base: usize,
}

impl Buffers {
    /// Forgets everything; plans keep what they use.
    pub fn clear(&mut self) {
        *self = Buffers::default();
    }

    fn input(&mut self, runtime: &Runtime, source: &Source<'_>) -> Result<Slice, String> {
        match source {
            Source::Place(place) => self.slice(place),
            Source::Counting(count) => {
                let buffer = match self.counting.get(count) {
                    Some(buffer) => buffer.clone(),
                    None => {
                        let buffer =
                            counting(runtime.backend(), *count).map_err(|error| error.to_string())?;
                        self.counting.insert(*count, buffer.clone());
                        buffer
                    }
                };
                Ok(Slice { buffer, offset_bytes: 0, layout: source.layout() })
            }
        }
    }

    fn slice(&mut self, place: &Place<'_>) -> Result<Slice, String> {
        let pointer = place.tensor.buffer();
        if pointer.is_null() {
            return Err(format!("{} lies in no buffer", place.tensor.name()));
        }
        // SAFETY: the host keeps the buffers of a graph that it has computed.
        let (buffer, offset) = match unsafe { storage_of(pointer) } {
            Some(storage) => (storage.buffer().clone(), storage.offset(place.tensor.address())?),
            None => self.foreign(pointer, place.tensor.address())?,
        };
        let offset_bytes = offset.checked_add(place.offset_bytes).ok_or("an offset overflows")?;
        Ok(Slice { buffer, offset_bytes, layout: place.layout })
    }

    /// A buffer in host memory that another backend made.
    fn foreign(
        &mut self,
        pointer: *mut abi::Buffer,
        address: usize,
    ) -> Result<(Arc<dyn Buffer>, usize), String> {
        // SAFETY: as in `slice`.
        let storage = unsafe { foreign(pointer) }?;
        // SAFETY: as above.
        let size = unsafe { (*pointer).size };
        let key = (pointer as usize, storage.base(), size);
        let known = self
            .foreign
            .entry(key)
            .or_insert_with(|| Foreign { buffer: storage.buffer().clone(), base: storage.base() });
        let offset = address.checked_sub(known.base).ok_or("a tensor lies before its buffer")?;
        Ok((known.buffer.clone(), offset))
    }
}

/// A buffer of the numbers 0, 1, …
fn counting(backend: &dyn Backend, count: usize) -> Result<Arc<dyn Buffer>, BackendError> {
    let bytes: Vec<u8> = (0..count as i32).flat_map(i32::to_le_bytes).collect();
    let buffer = backend.allocate(bytes.len())?;
    buffer.write(0, &bytes)?;
    Ok(buffer)
}

/// Appends a step. Where the host has put a result over an operand in a way that the op does not allow, the op writes
/// to memory of the plan first.
fn stage(runtime: &Runtime, mut step: Step, steps: &mut Vec<Step>) -> Result<(), BackendError> {
    let mut copies = Vec::new();
    for index in 0..step.results.len() {
        if !clashes(&step, index) {
            continue;
        }
        let target = step.results[index].clone();
        let layout = target.layout.to_contiguous();
        let buffer = runtime.backend().allocate(layout.span_bytes())?;
        let staged = Slice { buffer, offset_bytes: 0, layout };
        step.results[index] = staged.clone();
        let op = Op::from(Cpy { to: target.layout });
        copies.push(Step { op, inputs: vec![staged], results: vec![target] });
    }
    steps.push(step);
    steps.extend(copies);
    Ok(())
}

/// Whether a result may not lie where it lies.
fn clashes(step: &Step, index: usize) -> bool {
    let result = &step.results[index];
    let may_take_over = |operand: usize| match step.op.storage() {
        Storage::Fresh { reuse } => index == 0 && reuse.contains(&operand),
        Storage::Update => index == 0 && operand == 0,
        Storage::View { .. } => false,
    };
    step.inputs
        .iter()
        .enumerate()
        .any(|(operand, input)| overlap(result, input) && !(may_take_over(operand) && is_same(result, input)))
}

fn is_same(a: &Slice, b: &Slice) -> bool {
    Arc::ptr_eq(&a.buffer, &b.buffer) && a.offset_bytes == b.offset_bytes && a.layout == b.layout
}

fn overlap(a: &Slice, b: &Slice) -> bool {
    let end = |slice: &Slice| slice.offset_bytes.saturating_add(Layout::span_bytes(&slice.layout));
    let some = !a.layout.is_empty() && !b.layout.is_empty();
    some && Arc::ptr_eq(&a.buffer, &b.buffer) && a.offset_bytes < end(b) && b.offset_bytes < end(a)
}
