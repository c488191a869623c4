//! A session runs one graph again and again.

use crate::backend::{BackendError, Buffer, Devices, Observer, Program, Slice, Step};
use crate::graph::{Action, Flags, Graph, SlotInput, Tensor};
use crate::plan::{Home, Plan, PlanError, PlanOptions, PlanStep, Segment, Spot, ValueId};
use crate::report::{NodeReport, Report};
use crate::store::{PoolKind, Store, StoreError};
use half::{bf16, f16};
use ssmgraph_ops::{DType, HostTensor, Layout};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Why a session could not be made or run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The graph could not be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Weights, states or slots.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A device failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A handle of another graph.
    #[error("a tensor of another graph was used; use handles of the graph that the session was made from")]
    Foreign,
    /// A tensor that is no input was set.
    #[error("{name} is no input; only tensors made by Graph::input can be set")]
    NotAnInput {
        /// Its label.
        name: String,
    },
    /// Values of another type or number than the tensor has.
    #[error("{name} is {expected}, but {got} was given")]
    Values {
        /// Its label.
        name: String,
        /// Layout of the tensor.
        expected: String,
        /// Type and number of the values.
        got: String,
    },
    /// An input was never set.
    #[error("input `{name}` has no value; call Session::set before Session::run")]
    Unset {
        /// Its name.
        name: String,
    },
    /// The slots of the sequences were never said, or are too many or too few.
    #[error("the graph runs {expected} sequences, but {got} slots were given; call Session::set_slots")]
    SlotCount {
        /// Sequences of the graph.
        expected: usize,
        /// Slots given.
        got: usize,
    },
    /// A state that would fall behind its sequence.
    #[error(
        "state `{name}` is used but not written, so it would not know the tokens of a run; call Graph::write_state with \
         back = 0"
    )]
    StateNotWritten {
        /// Its name.
        name: String,
    },
    /// A tensor whose memory was used for something else.
    #[error("{name} was not kept; call Graph::keep or Graph::output on it before the session is made")]
    NotKept {
        /// Its label.
        name: String,
    },
    /// A result was read before the first run.
    #[error("nothing was computed yet; call Session::run first")]
    NotRun,
}

/// A Rust type that is a tensor's element type.
pub trait Element: bytemuck::Pod {
    /// The element type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty = $dtype:ident),*) => {
        $(impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        })*
    };
}

elements!(f32 = F32, f16 = F16, bf16 = BF16, i32 = I32, i64 = I64);

/// A planned graph with its memory, on the devices of a store.
pub struct Session {
    store: Arc<Store>,
    plan: Plan,
    /// The graph as the caller built it, for labels and for checking handles.
    graph: Graph,
    /// The buffer of each value and where the value starts in it.
    places: Vec<Placed>,
    segments: Vec<Compiled>,
    /// For each input leaf of the planned graph whether it was set.
    set: BTreeMap<usize, bool>,
    slots: Vec<usize>,
    /// What the store tells before each run, and where it is written.
    slot_inputs: Vec<(SlotInput, Arc<dyn Buffer>, usize)>,
    /// What is being written there; kept, so that a run takes no memory.
    slot_numbers: Vec<i32>,
    /// How many states of a run are stored, newest first.
    states_written: usize,
    has_run: bool,
}

/// A buffer and where a value starts in it.
type Placed = (Arc<dyn Buffer>, usize);

/// How many states of a run a graph stores, newest first.
///
/// Errors: a state that would fall behind its sequence. Runs without tokens move no sequence on.
fn states_written(graph: &Graph) -> Result<usize, SessionError> {
    let written = graph.states_written();
    match (written, graph.slots_spec()) {
        (Ok(count), _) => Ok(count),
        (Err(_), Some(spec)) if spec.tokens == 0 => Ok(0),
        (Err(pool), _) => {
            let name = graph.node(pool.node()).name.clone().unwrap_or_default();
            Err(SessionError::StateNotWritten { name })
        }
    }
}

/// A segment ready to run.
enum Compiled {
    Compute { program: Box<dyn Program>, first_step: usize },
    Copy { from: ValueId, to: ValueId, staging: Vec<u8> },
}

/// Sees each node of a run begin and end, by its index in [`Plan::graph`].
///
/// It is called in the middle of a run, which holds the store and the threads: it must neither run a session
/// nor ask the store, or it waits for itself.
pub trait NodeObserver: Sync {
    /// Before the node.
    fn begin(&self, node: usize);
    /// After it.
    fn end(&self, node: usize);
}

impl Session {
    /// A session with a store of its own: for graphs without weights.
    ///
    /// Errors: a graph that cannot be planned, memory that is refused.
    pub fn new(graph: &Graph, devices: &Devices) -> Result<Session, SessionError> {
        Session::with_store(graph, &Store::new(devices, Vec::new()))
    }

    /// A session that shares weights and states with others of the same store.
    ///
    /// Errors: a graph that cannot be planned, a weight that is missing or has another layout, states or
    /// slots that disagree with an earlier graph, a state that is used but not written, memory that is refused.
    pub fn with_store(graph: &Graph, store: &Arc<Store>) -> Result<Session, SessionError> {
        Session::with_options(graph, store, PlanOptions::default())
    }

    /// [`Session::with_store`] with some passes of the plan left out.
    ///
    /// Errors: as [`Session::with_store`].
    pub fn with_options(
        graph: &Graph,
        store: &Arc<Store>,
        options: PlanOptions,
    ) -> Result<Session, SessionError> {
        let plan = Plan::with_options(graph, store.devices(), options)?;
        let states_written = states_written(&plan.graph)?;
        if let Some(spec) = plan.graph.slots_spec() {
            store.declare_slots(spec, plan.graph.capacity())?;
        }
        let places = place_values(&plan, store)?;
        let segments = compile(&plan, store.devices(), &places)?;
        let inputs = plan.values.iter().filter_map(|value| match value.home {
            Home::Input { node } if plan.graph.node(node).action == Action::Leaf => Some((node, false)),
            _ => None,
        });
        let slot_inputs =
            plan.values.iter().zip(&places).filter_map(|(value, (buffer, start))| match value.home {
                Home::Input { node } => match plan.graph.node(node).action {
                    Action::Slots(input) => Some((input, buffer.clone(), *start)),
                    _ => None,
                },
                _ => None,
            });
        let slot_inputs = slot_inputs.collect();
        Ok(Session {
            store: store.clone(),
            set: inputs.collect(),
            plan,
            graph: graph.clone(),
            places,
            segments,
            slots: Vec::new(),
            slot_inputs,
            slot_numbers: Vec::new(),
            states_written,
            has_run: false,
        })
    }

    /// The schedule.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Gives an input its value, in index order. It stays until it is set again.
    ///
    /// Errors: a tensor that is no input, another type or number of values, a failed copy.
    pub fn set<T: Element>(&mut self, tensor: Tensor, values: &[T]) -> Result<(), SessionError> {
        let layout = self.graph.layout(tensor).map_err(|_| SessionError::Foreign)?;
        if layout.dtype != T::DTYPE || layout.elements() != values.len() {
            return Err(self.wrong_values(tensor, &layout, T::DTYPE, values.len()));
        }
        self.set_bytes(tensor, bytemuck::cast_slice(values))
    }

    /// [`Session::set`] for any element type, block formats included, from a tensor with any strides.
    ///
    /// Errors: a tensor that is no input, another type or shape, a failed copy.
    pub fn set_tensor(&mut self, tensor: Tensor, values: &HostTensor) -> Result<(), SessionError> {
        let layout = self.graph.layout(tensor).map_err(|_| SessionError::Foreign)?;
        if layout.dtype != values.layout().dtype || layout.ne != values.ne() {
            let name = self.graph.label(tensor);
            let (expected, got) = (layout.to_string(), values.layout().to_string());
            return Err(SessionError::Values { name, expected, got });
        }
        if *values.layout() == layout {
            return self.set_bytes(tensor, values.bytes());
        }
        let mut packed = HostTensor::zeros(layout);
        packed.view_mut().expect("inputs are packed").copy_from(&values.view());
        self.set_bytes(tensor, packed.bytes())
    }

    /// Writes the bytes of an input, packed, wherever the plan has it.
    fn set_bytes(&mut self, tensor: Tensor, bytes: &[u8]) -> Result<(), SessionError> {
        let leaf = self.graph.node(tensor.node());
        if leaf.action != Action::Leaf || !leaf.flags.contains(crate::graph::Flags::INPUT) {
            return Err(SessionError::NotAnInput { name: self.graph.label(tensor) });
        }
        // An input that nothing needs has no place; setting it is harmless.
        let Some(moved) = self.plan.moved(tensor) else { return Ok(()) };
        self.write_input(moved.node(), bytes)?;
        self.set.insert(moved.node(), true);
        Ok(())
    }

    fn wrong_values(&self, tensor: Tensor, layout: &Layout, dtype: DType, count: usize) -> SessionError {
        let name = self.graph.label(tensor);
        SessionError::Values { name, expected: layout.to_string(), got: format!("{dtype}[{count}]") }
    }

    /// Says which slots the sequences of the next runs are, in order.
    ///
    /// Errors: another number than the graph has sequences.
    pub fn set_slots(&mut self, slots: &[usize]) -> Result<(), SessionError> {
        let expected = self.plan.graph.slots_spec().map_or(0, |spec| spec.sequences);
        if slots.len() != expected {
            return Err(SessionError::SlotCount { expected, got: slots.len() });
        }
        self.slots.clear();
        self.slots.extend_from_slice(slots);
        Ok(())
    }

    /// Computes everything once. Inputs survive; states move on by the graph's tokens.
    ///
    /// Errors: inputs or slots not set, a value that an op cannot accept, a device that fails. If a device
    /// was already at work, the slots that took part are lost until they are reset or restored.
    pub fn run(&mut self) -> Result<(), SessionError> {
        self.run_observed(None)
    }

    /// [`Session::run`], telling an observer about every node.
    ///
    /// Errors: as [`Session::run`].
    pub fn run_observed(&mut self, observer: Option<&dyn NodeObserver>) -> Result<(), SessionError> {
        if let Some((node, _)) = self.set.iter().find(|(_, set)| !**set) {
            let name = self.plan.graph.node(*node).name.clone().unwrap_or_default();
            return Err(SessionError::Unset { name });
        }
        let mut contents = self.store.lock();
        let spec = self.plan.graph.slots_spec();
        if let Some(spec) = spec {
            if self.slots.len() != spec.sequences {
                return Err(SessionError::SlotCount { expected: spec.sequences, got: self.slots.len() });
            }
            contents.check_run(&self.slots, spec.tokens)?;
            for (input, buffer, start) in &self.slot_inputs {
                contents.tell(*input, &self.slots, spec.tokens, &mut self.slot_numbers)?;
                buffer.write(*start, bytemuck::cast_slice(&self.slot_numbers))?;
            }
        }
        for value in &self.plan.values {
            if let Home::State { node } = value.home {
                contents
                    .bring(self.plan.graph.node(node).name.as_deref().unwrap_or_default(), value.device)?;
            }
        }
        contents.begin_run(&self.slots);
        run_segments(&mut self.segments, &self.plan, &self.places, observer)?;
        contents.end_run(&self.slots, spec.map_or(0, |spec| spec.tokens), self.states_written);
        drop(contents);
        self.has_run = true;
        Ok(())
    }

    /// The elements of a result, in index order.
    ///
    /// Errors: a tensor that was not kept, another type, nothing run yet, a failed copy.
    pub fn get<T: Element>(&self, tensor: Tensor) -> Result<Vec<T>, SessionError> {
        let layout = self.graph.layout(tensor).map_err(|_| SessionError::Foreign)?;
        if layout.dtype != T::DTYPE {
            return Err(self.wrong_values(tensor, &layout, T::DTYPE, layout.elements()));
        }
        let packed = self.get_tensor(tensor)?;
        let elements = packed.bytes().chunks_exact(size_of::<T>());
        Ok(elements.map(bytemuck::pod_read_unaligned).collect())
    }

    /// [`Session::get`] for any element type, block formats included: a packed copy.
    ///
    /// Errors: a tensor that was not kept, nothing run yet, a failed copy.
    pub fn get_tensor(&self, tensor: Tensor) -> Result<HostTensor, SessionError> {
        self.graph.layout(tensor).map_err(|_| SessionError::Foreign)?;
        if !self.has_run {
            return Err(SessionError::NotRun);
        }
        let spot = self.plan.moved(tensor).and_then(|moved| self.plan.readable(moved));
        let spot = spot.ok_or_else(|| SessionError::NotKept { name: self.graph.label(tensor) })?;
        let mut bytes = vec![0; spot.layout.span_bytes()];
        let (buffer, start) = &self.places[spot.value];
        buffer.read(start + spot.offset_bytes, &mut bytes)?;
        if spot.layout.is_contiguous() {
            let packed = HostTensor::from_bytes(spot.layout.to_contiguous(), bytes);
            return Ok(packed.expect("as long as the layout spans"));
        }
        let strided = HostTensor::from_bytes(spot.layout, bytes).expect("as long as the layout spans");
        let mut packed = HostTensor::zeros(spot.layout.to_contiguous());
        packed.view_mut().expect("a packed tensor can be written").copy_from(&strided.view());
        Ok(packed)
    }

    /// Where each node runs, who declined it and why, and which bytes are copied between devices.
    pub fn report(&self) -> Report {
        let mut report = Report::default();
        for step in &self.plan.steps {
            match step {
                PlanStep::Compute { node, device, .. } => {
                    let declined = self.plan.assignments[*node].as_ref().map(|a| a.declined.clone());
                    report.nodes.push(NodeReport {
                        node: *node,
                        text: self.plan.graph.line(*node, self.plan.graph.node(*node)),
                        device: self.plan.devices[*device].clone(),
                        declined: declined.unwrap_or_default(),
                    });
                }
                PlanStep::Copy { from, .. } => {
                    report.copies += 1;
                    report.bytes_copied += self.plan.values[*from].bytes;
                }
            }
        }
        for segment in &self.segments {
            if let Compiled::Compute { program, .. } = segment {
                report.notes.extend(program.notes());
            }
        }
        report
    }

    /// Writes an input on every device that has it.
    fn write_input(&self, node: usize, bytes: &[u8]) -> Result<(), SessionError> {
        for (value, (buffer, start)) in self.plan.values.iter().zip(&self.places) {
            if value.home == (Home::Input { node }) {
                buffer.write(*start, bytes)?;
            }
        }
        Ok(())
    }
}

fn run_segments(
    segments: &mut [Compiled],
    plan: &Plan,
    places: &[Placed],
    observer: Option<&dyn NodeObserver>,
) -> Result<(), SessionError> {
    for segment in segments {
        match segment {
            Compiled::Compute { program, first_step } => {
                let steps = StepObserver { inner: observer, steps: &plan.steps, first: *first_step };
                program.run(observer.map(|_| &steps as &dyn Observer))?;
            }
            Compiled::Copy { from, to, staging } => {
                let ((source, source_start), (target, target_start)) = (&places[*from], &places[*to]);
                source.read(*source_start, staging)?;
                target.write(*target_start, staging)?;
            }
        }
    }
    Ok(())
}

/// Turns step indices of a program into node indices of the plan.
struct StepObserver<'a> {
    inner: Option<&'a dyn NodeObserver>,
    steps: &'a [PlanStep],
    first: usize,
}

impl StepObserver<'_> {
    fn node(&self, step: usize) -> Option<usize> {
        match self.steps.get(self.first + step) {
            Some(PlanStep::Compute { node, .. }) => Some(*node),
            _ => None,
        }
    }
}

impl Observer for StepObserver<'_> {
    fn begin(&self, step: usize) {
        if let (Some(inner), Some(node)) = (self.inner, self.node(step)) {
            inner.begin(node);
        }
    }

    fn end(&self, step: usize) {
        if let (Some(inner), Some(node)) = (self.inner, self.node(step)) {
            inner.end(node);
        }
    }
}

/// Gives every value its buffer.
fn place_values(plan: &Plan, store: &Store) -> Result<Vec<Placed>, SessionError> {
    let backends = store.devices().backends();
    let mut arenas: HashMap<usize, Arc<dyn Buffer>> = HashMap::new();
    let mut places = Vec::with_capacity(plan.values.len());
    for value in &plan.values {
        let leaf = |node: usize| {
            let node = plan.graph.node(node);
            (node.name.as_deref().unwrap_or_default(), &node.results[0])
        };
        places.push(match value.home {
            Home::Input { .. } => (backends[value.device].allocate(value.bytes)?, 0),
            Home::Weight { node } => {
                let (name, layout) = leaf(node);
                store.weight(value.device, name, layout)?
            }
            Home::State { node } => {
                let (name, layout) = leaf(node);
                let kind = match plan.graph.node(node).flags.contains(Flags::CACHE) {
                    true => PoolKind::Cache,
                    false => PoolKind::Ring,
                };
                (store.pool(value.device, name, layout, kind)?, 0)
            }
            Home::Arena { offset_bytes } => {
                let arena = match arenas.get(&value.device) {
                    Some(arena) => arena.clone(),
                    None => {
                        let arena = backends[value.device].allocate(plan.arena_bytes[value.device])?;
                        arenas.insert(value.device, arena.clone());
                        arena
                    }
                };
                (arena, offset_bytes)
            }
        });
    }
    Ok(places)
}

fn compile(plan: &Plan, devices: &Devices, places: &[Placed]) -> Result<Vec<Compiled>, SessionError> {
    let slice = |spot: &Spot| {
        let (buffer, start) = &places[spot.value];
        Slice { buffer: buffer.clone(), offset_bytes: start + spot.offset_bytes, layout: spot.layout }
    };
    let step = |step: &PlanStep| match step {
        PlanStep::Compute { node, inputs, results, .. } => match &plan.graph.node(*node).action {
            Action::Op(op) => Some(Step {
                op: op.clone(),
                inputs: inputs.iter().map(slice).collect(),
                results: results.iter().map(slice).collect(),
            }),
            _ => None,
        },
        PlanStep::Copy { .. } => None,
    };
    let compiled = plan.segments().into_iter().map(|segment| match segment {
        Segment::Compute { device, steps } => {
            let program = plan.steps[steps.clone()].iter().filter_map(step).collect();
            let program = devices.backends()[device].compile(program)?;
            Ok(Compiled::Compute { program, first_step: steps.start })
        }
        Segment::Copy { from, to } => {
            Ok(Compiled::Copy { from, to, staging: vec![0; plan.values[from].bytes] })
        }
    });
    compiled.collect()
}
