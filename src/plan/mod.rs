//! From a graph to a schedule: prune, fuse, assign devices, insert copies, update in place where that is
//! safe, lay out memory, cut into segments. Each pass is a function from graph to graph or to a table.

mod assign;
mod fuse;
mod memory;
mod prune;
mod schedule;
mod text;

pub use crate::graph::Moves;
pub use assign::Assignment;
pub use fuse::fuse;
pub use prune::prune;

use crate::backend::Devices;
use crate::graph::{Graph, Tensor};
use ssmgraph_ops::Layout;
use std::ops::Range;

/// Why a graph cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Nothing would be computed.
    #[error("the graph has no output and writes no state; mark a result with Graph::output")]
    NoOutput,
    /// No device runs a node.
    #[error("{op}: no device supports it: {reasons}")]
    Unsupported {
        /// The op's name.
        op: &'static str,
        /// What each device said.
        reasons: String,
    },
    /// The memory of one device would not fit its address space.
    #[error("{device}: the plan needs more bytes than can be addressed")]
    TooLarge {
        /// Name of the device.
        device: String,
    },
}

/// Which passes a plan is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// Put whole ops in the place of their parts. Without it every node is computed as it was written, which serves
    /// to look for the cause of a difference.
    pub fuse: bool,
}

impl Default for PlanOptions {
    /// All passes.
    fn default() -> PlanOptions {
        PlanOptions { fuse: true }
    }
}

/// Index of a [`Value`].
pub type ValueId = usize;

/// Where a value's bytes live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// Set by the caller; a buffer of its own.
    Input {
        /// The leaf.
        node: usize,
    },
    /// Bound by name; shared by all sessions of a store.
    Weight {
        /// The leaf.
        node: usize,
    },
    /// Survives from run to run; shared by all sessions of a store.
    State {
        /// The leaf.
        node: usize,
    },
    /// In the device's arena.
    Arena {
        /// First byte.
        offset_bytes: usize,
    },
}

/// A piece of memory on one device, holding one or, in place, several tensors after one another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Index of the device.
    pub device: usize,
    /// Where the bytes live.
    pub home: Home,
    /// Size.
    pub bytes: usize,
    /// Steps between which the bytes matter, both included.
    pub live: Range<usize>,
    /// Readable after a run.
    pub kept: bool,
}

/// A tensor inside a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// The value.
    pub value: ValueId,
    /// Offset of element 0 from the value's first byte.
    pub offset_bytes: usize,
    /// Where the elements lie from there.
    pub layout: Layout,
}

/// What a run does, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanStep {
    /// Computes a node on a device.
    Compute {
        /// The node.
        node: usize,
        /// Index of the device.
        device: usize,
        /// Operands.
        inputs: Vec<Spot>,
        /// Results.
        results: Vec<Spot>,
    },
    /// Copies all bytes of a value to another of the same size.
    Copy {
        /// From.
        from: ValueId,
        /// To.
        to: ValueId,
        /// Why, for the report.
        why: CopyReason,
    },
}

/// Why bytes are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyReason {
    /// A node on another device reads the value.
    OtherDevice,
    /// The old value is read later, so the update happens in a copy.
    OldValueNeeded,
    /// A value that must stay readable lies in a state's pool, which changes.
    KeptState,
    /// The new value of a state was made elsewhere.
    StateWriteBack,
}

/// A schedule with its memory.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The graph after fusion and pruning.
    pub graph: Graph,
    /// Names of the devices.
    pub devices: Vec<String>,
    /// For each node where it runs and who declined it; `None` for leaves and views.
    pub assignments: Vec<Option<Assignment>>,
    /// What a run does.
    pub steps: Vec<PlanStep>,
    /// All memory.
    pub values: Vec<Value>,
    /// Arena size of each device, in bytes.
    pub arena_bytes: Vec<usize>,
    /// Where the tensors of the graph that was planned are in [`Plan::graph`].
    moves: Moves,
    /// For each node of [`Plan::graph`] the spot of each result that is readable after a run.
    readable: Vec<Vec<Option<Spot>>>,
}

impl Plan {
    /// Plans a graph for devices in order of preference.
    ///
    /// Errors: nothing to compute, a node that no device supports, memory that cannot be addressed.
    pub fn new(graph: &Graph, devices: &Devices) -> Result<Plan, PlanError> {
        Plan::with_options(graph, devices, PlanOptions::default())
    }

    /// [`Plan::new`] with some passes left out.
    ///
    /// Errors: as [`Plan::new`].
    pub fn with_options(graph: &Graph, devices: &Devices, options: PlanOptions) -> Result<Plan, PlanError> {
        let (mut planned, mut moves) = prune(graph)?;
        if options.fuse {
            let (fused, next) = fuse(&planned);
            (planned, moves) = (fused, moves.then(&next));
        }
        debug_assert_eq!(planned.verify(), Ok(()));
        let assignments = assign::assign(&planned, devices)?;
        let names: Vec<String> = devices.backends().iter().map(|backend| backend.name().to_owned()).collect();
        let mut schedule = schedule::schedule(&planned, &assignments);
        let arena_bytes = memory::lay_out(&mut schedule.values, names.len())
            .map_err(|device| PlanError::TooLarge { device: names[device].clone() })?;
        Ok(Plan {
            graph: planned,
            devices: names,
            assignments,
            steps: schedule.steps,
            values: schedule.values,
            arena_bytes,
            moves,
            readable: schedule.readable,
        })
    }

    /// Consecutive steps that one device runs as one program, and copies between them.
    pub fn segments(&self) -> Vec<Segment> {
        let mut segments: Vec<Segment> = Vec::new();
        for (index, step) in self.steps.iter().enumerate() {
            match (step, segments.last_mut()) {
                (PlanStep::Compute { device, .. }, Some(Segment::Compute { device: last, steps }))
                    if device == last =>
                {
                    steps.end = index + 1;
                }
                (PlanStep::Compute { device, .. }, _) => {
                    segments.push(Segment::Compute { device: *device, steps: index..index + 1 });
                }
                (PlanStep::Copy { from, to, .. }, _) => segments.push(Segment::Copy { from: *from, to: *to }),
            }
        }
        segments
    }

    /// The planned graph's handle for a tensor of the original one; `None` when it was fused or pruned away.
    pub(crate) fn moved(&self, tensor: Tensor) -> Option<Tensor> {
        self.moves.of(tensor)
    }

    /// Where a tensor of the planned graph can be read after a run.
    pub(crate) fn readable(&self, tensor: Tensor) -> Option<Spot> {
        self.readable[tensor.node()][tensor.result()]
    }
}

/// A stretch of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Steps that one device runs as one program.
    Compute {
        /// Index of the device.
        device: usize,
        /// Which steps.
        steps: Range<usize>,
    },
    /// A copy of all bytes of a value.
    Copy {
        /// From.
        from: ValueId,
        /// To.
        to: ValueId,
    },
}
