//! Graphs without addresses, which are then placed in memory in one way or another: each value in room of its own, or
//! where the host has put something else before.

use crate::graph::{Arena, Graph, Node, edit, packed, set_op};
use crate::plugin::Host;
use ssmgraph::ops::{HostTensor, Layout, Tolerance};
use ssmgraph_ggml::abi;

/// Values of a sketch are known by their number.
pub type Id = usize;

/// Node kinds that compute nothing.
const VIEWS: [i32; 5] = [abi::OP_NONE, abi::OP_RESHAPE, abi::OP_VIEW, abi::OP_PERMUTE, abi::OP_TRANSPOSE];

/// A tensor.
#[derive(Clone)]
pub struct Value {
    /// What computes it.
    pub op: i32,
    params: Vec<i32>,
    /// Its operands.
    pub sources: Vec<Id>,
    /// Its layout.
    pub layout: Layout,
    /// The value in whose bytes it lies: itself, or what it is a view of.
    pub root: Id,
    offset: usize,
    /// Of a leaf.
    contents: Option<HostTensor>,
    /// Whether it outlives the graph.
    pub is_cache: bool,
    /// Whether the host reads it afterwards.
    pub is_output: bool,
    /// Whether the host wants it computed.
    pub is_wanted: bool,
}

/// A graph without addresses, in the order in which it was drawn.
#[derive(Clone, Default)]
pub struct Sketch {
    /// By number.
    pub values: Vec<Value>,
}

/// Where the roots of a sketch lie, by number, from one start; and the bytes of all.
pub struct Placing {
    /// Of each value; that of a root counts.
    pub starts: Vec<usize>,
    /// How far they reach.
    pub bytes: usize,
}

/// What a graph left behind.
pub struct Done {
    /// How many steps it took.
    pub steps: u64,
    /// Every value, as it lies there afterwards.
    pub values: Vec<HostTensor>,
}

impl Sketch {
    fn push(&mut self, op: i32, params: &[i32], sources: &[Id], layout: &Layout) -> Id {
        let id = self.values.len();
        self.values.push(Value {
            op,
            params: params.to_vec(),
            sources: sources.to_vec(),
            layout: *layout,
            root: id,
            offset: 0,
            contents: None,
            is_cache: false,
            is_output: false,
            is_wanted: true,
        });
        id
    }

    /// An input of the graph.
    pub fn leaf(&mut self, contents: HostTensor) -> Id {
        let id = self.push(abi::OP_NONE, &[], &[], &contents.layout().clone());
        self.values[id].contents = Some(contents);
        id
    }

    /// An input that outlives the graph.
    pub fn cache(&mut self, contents: HostTensor) -> Id {
        let id = self.leaf(contents);
        self.values[id].is_cache = true;
        id
    }

    /// Memory that nobody has written yet.
    pub fn scratch(&mut self, layout: &Layout) -> Id {
        self.push(abi::OP_NONE, &[], &[], layout)
    }

    /// A node.
    pub fn node(&mut self, op: i32, params: &[i32], sources: &[Id], layout: &Layout) -> Id {
        self.push(op, params, sources, layout)
    }

    /// A node whose result lies in the bytes of another value.
    pub fn node_in(
        &mut self,
        whole: Id,
        offset: usize,
        op: i32,
        params: &[i32],
        sources: &[Id],
        layout: &Layout,
    ) -> Id {
        let id = self.push(op, params, sources, layout);
        self.place_in(id, whole, offset);
        id
    }

    /// Moves a value into the bytes of another.
    pub fn place_in(&mut self, id: Id, whole: Id, offset: usize) {
        let (root, before) = (self.values[whole].root, self.values[whole].offset);
        (self.values[id].root, self.values[id].offset) = (root, before + offset);
    }

    /// Gives a view bytes of its own, which nobody has written yet.
    pub fn free(&mut self, id: Id) {
        let value = &mut self.values[id];
        value.op = abi::OP_NONE;
        value.sources.clear();
        (value.root, value.offset) = (id, 0);
    }

    /// Moves a view along the bytes that it shows.
    pub fn shift(&mut self, id: Id, bytes_back: usize) {
        self.values[id].offset -= bytes_back;
    }

    /// A view.
    pub fn view(&mut self, of: Id, layout: &Layout, offset: usize) -> Id {
        self.node_in(of, offset, abi::OP_VIEW, &[], &[of], layout)
    }

    /// A value with its first two axes exchanged.
    pub fn transpose(&mut self, of: Id) -> Id {
        let layout = self.values[of].layout.permute([1, 0, 2, 3]).expect("a permutation");
        self.node_in(of, 0, abi::OP_TRANSPOSE, &[], &[of], &layout)
    }

    /// A copy into the bytes of another value.
    pub fn copy(&mut self, from: Id, to: Id) -> Id {
        let layout = self.values[to].layout;
        self.node_in(to, 0, abi::OP_CPY, &[], &[from, to], &layout)
    }

    /// Marks what the host reads.
    pub fn output(&mut self, id: Id) {
        self.values[id].is_output = true;
    }

    /// Whether a value is computed.
    pub fn computes(&self, id: Id) -> bool {
        let value = &self.values[id];
        value.is_wanted && !VIEWS.contains(&value.op)
    }

    /// Whether a value is there before the graph is computed.
    pub fn is_input(&self, id: Id) -> bool {
        self.values[id].contents.is_some()
    }

    /// Whether a value is a node of the graph.
    fn is_node(&self, id: Id) -> bool {
        self.values[id].op != abi::OP_NONE
    }

    /// In the order in which it was drawn.
    pub fn order(&self) -> Vec<Id> {
        (0..self.values.len()).filter(|&id| self.is_node(id)).collect()
    }

    /// The same, with every value read by the host.
    pub fn watched(&self) -> Sketch {
        let mut watched = self.clone();
        watched.values.iter_mut().for_each(|value| value.is_output = true);
        watched
    }

    /// Each root in room of its own.
    pub fn apart(&self) -> Placing {
        let mut bytes = 0usize;
        let place = |value: &Value| {
            let start = bytes.next_multiple_of(64) + 64;
            bytes = start + value.layout.span_bytes();
            start
        };
        let starts = self.values.iter().map(place).collect();
        Placing { starts, bytes }
    }

    /// Computes the nodes of an order. Memory is NaN before.
    pub fn compute(&self, host: &Host, order: &[Id], placing: &Placing) -> Done {
        let mut arena = Arena::new(host.device(), placing.bytes + 4096);
        let base = arena.room(placing.bytes.next_multiple_of(4));
        let room = arena.at(base, &packed(&[placing.bytes / 4]));
        arena.write(room, &vec![0xff; placing.bytes / 4 * 4]);
        let nodes = self.nodes(&arena, |root| base + placing.starts[root]);
        let order: Vec<Node> = order.iter().map(|&id| nodes[id]).collect();
        for node in &order {
            assert!(host.device().supports(*node), "{}", host.lines());
        }
        let stream = host.device().stream();
        stream.must_compute(&Graph::of(&order));
        let values = nodes.iter().map(|&node| arena.read(node)).collect();
        Done { steps: host.counts(&stream).steps, values }
    }

    fn nodes(&self, arena: &Arena, start: impl Fn(Id) -> usize) -> Vec<Node> {
        let address = |value: &Value| start(value.root) + value.offset;
        let nodes: Vec<Node> =
            self.values.iter().map(|value| arena.at(address(value), &value.layout)).collect();
        for (id, value) in self.values.iter().enumerate() {
            let sources: Vec<Node> = value.sources.iter().map(|&source| nodes[source]).collect();
            set_op(nodes[id], value.op, &value.params, &sources);
            edit(nodes[id], |node| {
                node.flags |= if value.is_output { abi::FLAG_OUTPUT } else { 0 };
                node.flags &= if value.is_wanted { !0 } else { !abi::FLAG_COMPUTE };
                if value.root != id {
                    (node.view_source, node.view_offset) = (nodes[value.root], value.offset);
                }
            });
            if let Some(contents) = &value.contents {
                arena.write(nodes[id], contents.bytes());
            }
        }
        nodes
    }

    /// Values that the host may look at afterwards.
    pub fn results(&self) -> impl Iterator<Item = Id> {
        (0..self.values.len()).filter(|&id| self.values[id].is_output || self.values[id].is_cache)
    }

    /// Computes it in this order and placing, and again with everything apart and watched, so that nothing is folded.
    /// Compares what the host may look at; returns the first.
    pub fn check(&self, host: &Host, order: &[Id], placing: &Placing, tolerance: Tolerance) -> Done {
        let done = self.compute(host, order, placing);
        let plain = self.watched().compute(host, order, &self.apart());
        let computed = order.iter().filter(|&&id| self.computes(id)).count();
        assert!(plain.steps >= computed as u64, "{} steps for {computed} watched nodes", plain.steps);
        for id in self.results() {
            let wrong = tolerance.mismatch(&done.values[id], &plain.values[id]);
            assert_eq!(wrong, None, "value {id} in order {order:?}, placed at {:?}", placing.starts);
        }
        done
    }
}
