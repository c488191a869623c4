//! Graphs, and what instantiation made of them.

use super::capture::Place;
use super::counts::count;
use super::launch::Launch;
use super::state::{Driver, Handle, new_handles};
use super::status::{Outcome, Status};
use super::stream::Ticket;
use super::work::Work;
use std::ffi::c_int;
use std::sync::Arc;

/// One node: work, and the nodes before it.
#[derive(Clone)]
pub struct Node {
    /// What it does.
    pub work: Work,
    /// Earlier nodes of the graph that it follows.
    pub after: Vec<usize>,
}

/// A recorded graph. Nodes come after those they follow.
pub struct Graph {
    /// The nodes.
    pub nodes: Vec<Node>,
}

/// An instantiated graph.
pub struct Exec {
    /// The graph whose nodes name this one's.
    source: Handle,
    nodes: Arc<Vec<Node>>,
    /// Its last launch: launches of one instance do not overlap.
    last: Option<Ticket>,
}

/// Why an update is refused, as a `CUgraphExecUpdateResult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// Other nodes or edges.
    Topology = 2,
    /// A node that does something else.
    NodeType = 3,
    /// A copy of another kind or size.
    Parameters = 5,
}

impl Node {
    /// A `CUgraphNodeType`.
    pub fn kind(&self) -> c_int {
        match self.work {
            Work::Kernel(_) => 0,
            Work::Copy(_) | Work::Write { .. } => 1,
            Work::Fill(_) => 2,
            Work::Host(..) => 3,
            _ => 5,
        }
    }

    fn mismatch(&self, new: &Node) -> Option<Mismatch> {
        if self.after != new.after {
            return Some(Mismatch::Topology);
        }
        if self.kind() != new.kind() {
            return Some(Mismatch::NodeType);
        }
        match (&self.work, &new.work) {
            (Work::Copy(old), Work::Copy(new))
                if old.direction != new.direction || old.bytes != new.bytes =>
            {
                Some(Mismatch::Parameters)
            }
            _ => None,
        }
    }
}

impl Driver {
    /// A graph's nodes.
    pub fn graph(&self, graph: Handle) -> Outcome<&Graph> {
        self.graphs.get(&graph).ok_or(Status::INVALID_VALUE)
    }

    /// The graph and position of a node.
    fn node_place(&self, node: Handle) -> Outcome<(Handle, usize)> {
        let (&handle, graph) = self.graphs.range(..node).next_back().ok_or(Status::INVALID_VALUE)?;
        let position = node - handle - 1;
        if position < graph.nodes.len() { Ok((handle, position)) } else { Err(Status::INVALID_VALUE) }
    }

    /// A node.
    pub fn node(&self, node: Handle) -> Outcome<&Node> {
        let (graph, position) = self.node_place(node)?;
        Ok(&self.graph(graph)?.nodes[position])
    }

    /// Forgets a graph; what was instantiated from it stays.
    pub fn destroy_graph(&mut self, graph: Handle) -> Outcome {
        self.graphs.remove(&graph).map(|_| ()).ok_or(Status::INVALID_VALUE)
    }

    /// Makes a graph ready to launch.
    pub fn instantiate(&mut self, graph: Handle, flags: u64) -> Outcome<Handle> {
        // Bit 0 frees automatically, bit 2 launches from the device, which excludes it.
        if flags & !15 != 0 || flags & 5 == 5 {
            return Err(Status::INVALID_VALUE);
        }
        let nodes = Arc::new(self.graph(graph)?.nodes.clone());
        let exec = new_handles(1);
        self.execs.insert(exec, Exec { source: graph, nodes, last: None });
        count(|counts| counts.instantiations += 1);
        Ok(exec)
    }

    fn exec(&mut self, exec: Handle) -> Outcome<&mut Exec> {
        self.execs.get_mut(&exec).ok_or(Status::INVALID_VALUE)
    }

    /// Checks that an instance may be brought to the device.
    pub fn upload_graph(&mut self, exec: Handle, stream: Handle) -> Outcome {
        self.stream(stream)?;
        self.exec(exec).map(|_| ())
    }

    /// Launches an instance behind a stream's work and behind its own last launch.
    pub fn launch_graph(&mut self, exec: Handle, stream: Handle) -> Outcome {
        let capturing: Option<&Place> = self.stream(stream)?.capturing.as_ref();
        if capturing.is_some() {
            return Err(Status::NOT_SUPPORTED);
        }
        let queue = self.stream(stream)?.queue;
        let (nodes, last) = (self.exec(exec)?.nodes.clone(), self.exec(exec)?.last);
        if let Some(ticket) = last.filter(|ticket| self.pending.contains_key(ticket)) {
            self.submit(stream, Work::Wait(ticket))?;
        }
        let ticket = self.new_ticket(queue);
        self.exec(exec)?.last = Some(ticket);
        self.submit(stream, Work::Graph(nodes))?;
        count(|counts| counts.graph_launches += 1);
        self.submit(stream, Work::Record(ticket, 0))
    }

    /// Ends an instance; launches under way are not touched.
    pub fn destroy_exec(&mut self, exec: Handle) -> Outcome {
        self.execs.remove(&exec).map(|_| ()).ok_or(Status::INVALID_VALUE)
    }

    /// Takes another graph's parameters over into an instance.
    ///
    /// Errors: a graph that differs in more than parameters, with the node at fault.
    pub fn update_exec(&mut self, exec: Handle, graph: Handle) -> Outcome<Result<(), (Mismatch, Handle)>> {
        let new = self.graph(graph)?.nodes.clone();
        let old = self.exec(exec)?;
        if old.nodes.len() != new.len() {
            return Ok(Err((Mismatch::Topology, 0)));
        }
        let pairs = old.nodes.iter().zip(&new).enumerate();
        let mut mismatches = pairs.filter_map(|(at, (old, new))| Some((old.mismatch(new)?, graph + 1 + at)));
        if let Some(mismatch) = mismatches.next() {
            return Ok(Err(mismatch));
        }
        old.nodes = Arc::new(new);
        count(|counts| counts.exec_updates += 1);
        Ok(Ok(()))
    }

    /// Gives a kernel node of an instance another launch. The node is named by the graph it came from.
    pub fn set_node(&mut self, exec: Handle, node: Handle, launch: Launch) -> Outcome {
        let (graph, position) = self.node_place(node)?;
        let exec = self.exec(exec)?;
        let nodes = Arc::make_mut(&mut exec.nodes);
        match nodes.get_mut(position) {
            Some(node) if exec.source == graph && matches!(node.work, Work::Kernel(_)) => {
                node.work = Work::Kernel(Arc::new(launch));
                count(|counts| counts.node_param_sets += 1);
                Ok(())
            }
            _ => Err(Status::INVALID_VALUE),
        }
    }

    /// Runs a graph's nodes in an order that its edges allow.
    pub(super) fn run_graph(&mut self, nodes: &[Node]) {
        let mut missing: Vec<usize> = nodes.iter().map(|node| node.after.len()).collect();
        let mut followers = vec![Vec::new(); nodes.len()];
        for (position, node) in nodes.iter().enumerate() {
            node.after.iter().for_each(|&before| followers[before].push(position));
        }
        let mut ready: Vec<usize> = (0..nodes.len()).filter(|&node| missing[node] == 0).collect();
        while !ready.is_empty() && self.sticky.is_none() {
            let next = self.random_below(ready.len());
            let node = ready.remove(next);
            self.perform(nodes[node].work.clone());
            for &follower in &followers[node] {
                missing[follower] -= 1;
                if missing[follower] == 0 {
                    ready.push(follower);
                }
            }
        }
    }
}
