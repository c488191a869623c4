//! The graph: ops recorded lazily, in the order in which they were written.
//!
//! Nodes are only appended, so index order is topological. A builder method infers shapes at once and
//! returns an error that names what is wrong; nothing is computed before a [`crate::Session`] runs.

mod build;
mod cache;
mod error;
mod rebuild;
mod state;
mod text;

pub use build::{ConvStep, Delta, Scan};
pub use cache::{Cache, Caches};
pub use error::GraphError;
pub use rebuild::Moves;
pub(crate) use rebuild::Rebuild;
pub use state::{SlotInput, Slots, SlotsSpec, State};

use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;
use smallvec::SmallVec;
use ssmgraph_ops::{DType, Layout, Layouts, Op, OpError};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

bitflags::bitflags! {
    /// What a node's results are to the outside.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u8 {
        /// Set by the caller before a run.
        const INPUT = 1;
        /// Bound by name once; never changes.
        const WEIGHT = 1 << 1;
        /// Survives from run to run, one row per slot.
        const STATE = 1 << 2;
        /// A result of the graph: computed and readable after a run.
        const OUTPUT = 1 << 3;
        /// Readable after a run although it is no result of the graph.
        const KEEP = 1 << 4;
        /// A state with a row for every token of a slot, not one for the slot.
        const CACHE = 1 << 5;
    }
}

/// A handle to one result of one node. Cheap to copy, valid for its own graph only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tensor {
    pub(crate) graph: u32,
    pub(crate) node: u32,
    pub(crate) result: u16,
}

impl Tensor {
    /// Index of the node that makes the tensor.
    pub fn node(&self) -> usize {
        self.node as usize
    }

    /// Which of the node's results it is.
    pub fn result(&self) -> usize {
        self.result as usize
    }
}

/// What a node does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Holds a value from outside; the node's flags say which kind.
    Leaf,
    /// Holds what a session knows of the slots that take part in a run.
    Slots(SlotInput),
    /// Computes an op.
    Op(Op),
}

/// One node of a graph.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it does.
    pub action: Action,
    /// Operands in the order of the op's table.
    pub operands: SmallVec<[Tensor; 4]>,
    /// One layout per result.
    pub results: Layouts,
    /// What the results are to the outside.
    pub flags: Flags,
    /// Name given by the caller; leaves always have one.
    pub name: Option<String>,
}

/// A directed acyclic graph of ops over tensors.
#[derive(Clone, Debug)]
pub struct Graph {
    id: u32,
    dag: DiGraph<Node, ()>,
    names: HashMap<String, u32>,
    slots: Option<SlotsSpec>,
    /// Tokens that caches have room for in each slot.
    capacity: Option<usize>,
    /// For each state: its pool, and the tensor whose value the pool has after a run.
    states: Vec<(Tensor, Tensor)>,
}

static NEXT_GRAPH: AtomicU32 = AtomicU32::new(1);

impl Default for Graph {
    fn default() -> Graph {
        Graph::new()
    }
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Graph {
        Graph {
            id: NEXT_GRAPH.fetch_add(1, Ordering::Relaxed),
            dag: DiGraph::new(),
            names: HashMap::new(),
            slots: None,
            capacity: None,
            states: Vec::new(),
        }
    }

    /// A tensor that the caller sets before a run; packed, `ne` innermost first.
    ///
    /// Errors: a name that is taken, a shape that cannot be addressed.
    pub fn input(&mut self, name: &str, dtype: DType, ne: &[usize]) -> Result<Tensor, GraphError> {
        let layout = Layout::contiguous(dtype, ne).map_err(|error| GraphError::leaf(name, error))?;
        self.leaf(name, layout, Flags::INPUT)
    }

    /// A tensor bound by name when a session is made, such as a tensor of a model file.
    ///
    /// Errors: a name that is taken, a layout that [`Layout::strided`] refuses.
    pub fn weight(&mut self, name: &str, layout: Layout) -> Result<Tensor, GraphError> {
        // The fields of a layout are public; everything after this relies on what its constructors check.
        let Layout { dtype, ne, nb } = layout;
        let layout = Layout::strided(dtype, ne, nb).map_err(|error| GraphError::leaf(name, error))?;
        self.leaf(name, layout, Flags::WEIGHT)
    }

    /// Appends `op`. The short methods (`add`, `mul_mat`, …) call this.
    ///
    /// Errors: a handle of another graph, or whatever the op's shape rule refuses.
    pub fn op(
        &mut self,
        op: impl Into<Op>,
        operands: &[Tensor],
    ) -> Result<SmallVec<[Tensor; 2]>, GraphError> {
        let op = op.into();
        let mut layouts: SmallVec<[Layout; 8]> = SmallVec::new();
        for (index, &operand) in operands.iter().enumerate() {
            let name = op.operands().get(index).or(op.operands().last()).map_or("operand", |o| o.name);
            layouts.push(self.checked(operand, op.name(), name)?);
        }
        let results = op.infer(&layouts)?;
        let count = u16::try_from(results.len()).map_err(|_| {
            let most = u16::MAX;
            OpError::new(op.name(), format!("{} results, at most {most} can be named", results.len()))
        })?;
        let node = self.append(Node {
            action: Action::Op(op),
            operands: operands.iter().copied().collect(),
            results,
            flags: Flags::empty(),
            name: None,
        });
        Ok((0..count).map(|result| Tensor { graph: self.id, node, result }).collect())
    }

    /// Appends an op with one result.
    pub(crate) fn op1(&mut self, op: impl Into<Op>, operands: &[Tensor]) -> Result<Tensor, GraphError> {
        Ok(self.op(op, operands)?[0])
    }

    /// Marks a tensor as a result of the graph.
    ///
    /// Errors: a handle of another graph.
    pub fn output(&mut self, tensor: Tensor) -> Result<(), GraphError> {
        self.flag(tensor, Flags::OUTPUT)
    }

    /// Keeps a tensor readable after a run.
    ///
    /// Errors: a handle of another graph.
    pub fn keep(&mut self, tensor: Tensor) -> Result<(), GraphError> {
        self.flag(tensor, Flags::KEEP)
    }

    /// Names the node that makes a tensor, for texts and traces.
    ///
    /// Errors: a handle of another graph, a name that is taken.
    pub fn name(&mut self, tensor: Tensor, name: &str) -> Result<(), GraphError> {
        self.checked(tensor, "name", name)?;
        self.take_name(name, tensor.node)?;
        self.dag[NodeIndex::new(tensor.node())].name = Some(name.to_owned());
        Ok(())
    }

    /// Where a tensor's elements lie.
    ///
    /// Errors: a handle of another graph.
    pub fn layout(&self, tensor: Tensor) -> Result<Layout, GraphError> {
        self.checked(tensor, "layout", "tensor")
    }

    /// Element counts of a tensor, innermost axis first.
    ///
    /// Errors: a handle of another graph.
    pub fn ne(&self, tensor: Tensor) -> Result<[usize; 4], GraphError> {
        Ok(self.layout(tensor)?.ne)
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.dag.node_count()
    }

    /// Whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A node by index.
    ///
    /// Panics when the index is not below [`Graph::len`].
    pub fn node(&self, index: usize) -> &Node {
        &self.dag[NodeIndex::new(index)]
    }

    /// All nodes in index order, which is topological.
    pub fn nodes(&self) -> impl Iterator<Item = (usize, &Node)> {
        self.dag.node_indices().map(|index| (index.index(), &self.dag[index]))
    }

    /// The nodes that have results of a node as operands; one that uses several comes several times.
    pub fn users(&self, node: usize) -> impl Iterator<Item = usize> {
        let edges = self.dag.edges_directed(NodeIndex::new(node), Direction::Outgoing);
        edges.map(|edge| edge.target().index())
    }

    /// The handle of a node's result.
    ///
    /// Panics when there is no such node or result.
    pub fn tensor(&self, node: usize, result: usize) -> Tensor {
        assert!(result < self.node(node).results.len(), "node {node} has no result {result}");
        Tensor { graph: self.id, node: node as u32, result: result as u16 }
    }

    /// The tensor with this name; the first result of a named node.
    pub fn find(&self, name: &str) -> Option<Tensor> {
        self.names.get(name).map(|&node| Tensor { graph: self.id, node, result: 0 })
    }

    /// The slot space of the graph's states, if it has any.
    pub fn slots_spec(&self) -> Option<&SlotsSpec> {
        self.slots.as_ref()
    }

    /// For each state: its pool, and the tensor whose value the pool has after a run.
    pub fn states(&self) -> &[(Tensor, Tensor)] {
        &self.states
    }

    /// Checks what passes rely on: operands come before their users, layouts are what the ops infer, edges
    /// and operands agree.
    ///
    /// Errors: what is broken, as text; a graph made by the builder never is.
    pub fn verify(&self) -> Result<(), String> {
        for (index, node) in self.nodes() {
            for operand in &node.operands {
                if operand.graph != self.id || operand.node() >= index {
                    return Err(format!("node {index} uses {operand:?}, which does not come before it"));
                }
                if operand.result() >= self.node(operand.node()).results.len() {
                    return Err(format!("node {index} uses a result that node {} lacks", operand.node));
                }
            }
            let edges = self.dag.edges_directed(NodeIndex::new(index), Direction::Incoming).count();
            if edges != node.operands.len() {
                return Err(format!("node {index} has {} operands and {edges} edges", node.operands.len()));
            }
            if let Action::Op(op) = &node.action {
                let layouts: Vec<Layout> =
                    node.operands.iter().map(|t| self.node(t.node()).results[t.result()]).collect();
                let inferred = op.infer(&layouts).map_err(|error| format!("node {index}: {error}"))?;
                if inferred != node.results {
                    return Err(format!("node {index} ({}) has other results than its op infers", op.name()));
                }
            }
        }
        Ok(())
    }

    /// The layout of a tensor that must belong to this graph.
    pub(crate) fn checked(
        &self,
        tensor: Tensor,
        op: &'static str,
        operand: &str,
    ) -> Result<Layout, GraphError> {
        // A clone that went its own way shares the id, but not the nodes that were added since.
        let node = (tensor.graph == self.id).then(|| self.dag.node_weight(NodeIndex::new(tensor.node())));
        let layout = node.flatten().and_then(|node| node.results.get(tensor.result()));
        layout.copied().ok_or_else(|| GraphError::Foreign { op, operand: operand.to_owned() })
    }

    fn leaf(&mut self, name: &str, layout: Layout, flags: Flags) -> Result<Tensor, GraphError> {
        self.take_name(name, self.len() as u32)?;
        let node = self.append(Node {
            action: Action::Leaf,
            operands: SmallVec::new(),
            results: SmallVec::from_slice(&[layout]),
            flags,
            name: Some(name.to_owned()),
        });
        Ok(Tensor { graph: self.id, node, result: 0 })
    }

    fn take_name(&mut self, name: &str, node: u32) -> Result<(), GraphError> {
        match self.names.get(name) {
            Some(&taken) if taken != node => Err(GraphError::NameTaken { name: name.to_owned() }),
            _ => {
                self.names.insert(name.to_owned(), node);
                Ok(())
            }
        }
    }

    fn flag(&mut self, tensor: Tensor, flags: Flags) -> Result<(), GraphError> {
        self.checked(tensor, "output", "tensor")?;
        self.dag[NodeIndex::new(tensor.node())].flags |= flags;
        Ok(())
    }

    fn append(&mut self, node: Node) -> u32 {
        let operands = node.operands.clone();
        let index = self.dag.add_node(node);
        for operand in operands {
            self.dag.add_edge(NodeIndex::new(operand.node()), index, ());
        }
        index.index() as u32
    }
}
