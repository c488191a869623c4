//! Tensors and graphs as a host makes them.

use crate::plugin::{BufferType, Device, free_buffer};
use ssmgraph::ops::{DType, HostTensor, Layout, tensor::indices};
use ssmgraph_ggml::abi;
use std::ops::Range;
use std::ptr::{null, null_mut};

/// Bytes between tensors that nobody may touch.
const GUARD_BYTES: usize = 64;
/// What they hold.
const GUARD: u8 = 0xA5;
/// What tensors are aligned to.
const ALIGN_BYTES: usize = 256;

/// A tensor of a host. Tensors stay to the end of the process.
pub type Node = *mut abi::Tensor;

/// Tensors in one buffer, with guard bytes between them.
pub struct Arena {
    /// The buffer.
    pub buffer: *mut abi::Buffer,
    base: usize,
    used: usize,
    bytes: usize,
}

impl Arena {
    /// An arena in a buffer of the type that the device wants.
    pub fn new(device: Device, bytes: usize) -> Arena {
        Arena::of(device.buffer_type(), bytes)
    }

    /// An arena in a buffer of this type.
    pub fn of(buffer_type: BufferType, bytes: usize) -> Arena {
        let buffer = buffer_type.allocate(bytes);
        assert!(!buffer.is_null(), "a buffer of {bytes} bytes");
        // SAFETY: the buffer lives, and has the entries that must be there.
        let base = unsafe {
            (*buffer).table.clear.expect("is there")(buffer, GUARD);
            (*buffer).table.get_base.expect("is there")(buffer) as usize
        };
        Arena { buffer, base, used: GUARD_BYTES, bytes }
    }

    /// Room for so many bytes, guarded; its address.
    pub fn room(&mut self, bytes: usize) -> usize {
        let start = (self.base + self.used).next_multiple_of(ALIGN_BYTES);
        self.used = start - self.base + bytes + GUARD_BYTES;
        assert!(self.used <= self.bytes, "the arena has {} bytes, {} are needed", self.bytes, self.used);
        start
    }

    /// A tensor at an address.
    pub fn at(&self, address: usize, layout: &Layout) -> Node {
        let tensor = blank(layout);
        // SAFETY: made above.
        unsafe {
            (*tensor).buffer = self.buffer;
            (*tensor).data = address as *mut _;
        }
        tensor
    }

    /// A tensor with room of its own.
    pub fn tensor(&mut self, layout: &Layout) -> Node {
        let address = self.room(layout.span_bytes());
        self.at(address, layout)
    }

    /// A tensor with room of its own and these contents.
    pub fn leaf(&mut self, values: &HostTensor) -> Node {
        let tensor = self.tensor(values.layout());
        self.write(tensor, values.bytes());
        tensor
    }

    /// A packed F32 tensor of these values.
    pub fn floats(&mut self, ne: &[usize], values: &[f32]) -> Node {
        self.leaf(&HostTensor::from_f32(ne, values).expect("as many values"))
    }

    /// A node whose result has room of its own.
    pub fn node(&mut self, op: i32, params: &[i32], sources: &[Node], layout: &Layout) -> Node {
        let address = self.room(layout.span_bytes());
        self.node_at(address, op, params, sources, layout)
    }

    /// A node whose result lies at an address.
    pub fn node_at(
        &self,
        address: usize,
        op: i32,
        params: &[i32],
        sources: &[Node],
        layout: &Layout,
    ) -> Node {
        let node = self.at(address, layout);
        set_op(node, op, params, sources);
        node
    }

    /// Writes into a tensor, through the buffer's own function.
    pub fn write(&self, tensor: Node, bytes: &[u8]) {
        // SAFETY: the tensor has that many bytes.
        unsafe {
            (*self.buffer).table.set_tensor.expect("is there")(
                self.buffer,
                tensor,
                bytes.as_ptr().cast(),
                0,
                bytes.len(),
            );
        }
    }

    /// Reads a tensor.
    pub fn read(&self, tensor: Node) -> HostTensor {
        let layout = layout_of(tensor);
        let mut bytes = vec![0; layout.span_bytes()];
        // SAFETY: the tensor has that many bytes.
        unsafe {
            let get = (*self.buffer).table.get_tensor.expect("is there");
            get(self.buffer, tensor, bytes.as_mut_ptr().cast(), 0, bytes.len());
        }
        HostTensor::from_bytes(layout, bytes).expect("as many bytes")
    }

    /// The values of a tensor.
    pub fn values(&self, tensor: Node) -> Vec<f64> {
        self.read(tensor).to_f64()
    }

    /// All bytes.
    pub fn dump(&self) -> Vec<u8> {
        let whole = Layout::contiguous(DType::I8, &[self.bytes]).expect("fits");
        self.read(self.at(self.base, &whole)).bytes().to_vec()
    }

    /// Where the elements of a tensor lie in the arena.
    pub fn places(&self, tensor: Node) -> impl Iterator<Item = Range<usize>> {
        let layout = layout_of(tensor);
        let start = address_of(tensor) - self.base;
        indices(layout.blocks()).map(move |index| {
            let place = start + layout.offset(index);
            place..place + layout.dtype.block_bytes()
        })
    }

    /// Checks that nothing has changed but the elements of these tensors.
    pub fn only_changed(&self, mut before: Vec<u8>, tensors: &[Node]) {
        let after = self.dump();
        for place in tensors.iter().flat_map(|&tensor| self.places(tensor)) {
            before[place.clone()].copy_from_slice(&after[place]);
        }
        let changed = before.iter().zip(&after).position(|(before, after)| before != after);
        assert_eq!(changed, None, "a byte outside the results has changed");
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        free_buffer(self.buffer);
    }
}

/// A tensor without memory.
pub fn blank(layout: &Layout) -> Node {
    Box::into_raw(Box::new(abi::Tensor {
        dtype: layout.dtype.gguf_id() as i32,
        buffer: null_mut(),
        ne: layout.ne.map(|count| count as i64),
        nb: layout.nb,
        op: abi::OP_NONE,
        params: [0; abi::PARAMS],
        flags: abi::FLAG_COMPUTE,
        sources: [null_mut(); abi::SOURCES],
        view_source: null_mut(),
        view_offset: 0,
        data: null_mut(),
        name: [0; 64],
        extra: null_mut(),
        padding: [0; 8],
    }))
}

/// Makes a tensor the result of an op.
pub fn set_op(node: Node, op: i32, params: &[i32], sources: &[Node]) {
    edit(node, |node| {
        node.op = op;
        node.params[..params.len()].copy_from_slice(params);
        node.sources[..sources.len()].copy_from_slice(sources);
    });
}

/// Changes a tensor.
pub fn edit(node: Node, change: impl FnOnce(&mut abi::Tensor)) {
    // SAFETY: tensors stay to the end of the process, and nobody else looks meanwhile.
    change(unsafe { &mut *node });
}

/// Address of element 0.
pub fn address_of(node: Node) -> usize {
    // SAFETY: as above.
    unsafe { (*node).data as usize }
}

/// The layout of a tensor.
pub fn layout_of(node: Node) -> Layout {
    // SAFETY: as above.
    let tensor = unsafe { &*node };
    let dtype = DType::from_gguf_id(tensor.dtype as u32).expect("a test's type");
    Layout::strided(dtype, tensor.ne.map(|count| count as usize), tensor.nb).expect("a test's layout")
}

/// A packed F32 layout.
pub fn packed(ne: &[usize]) -> Layout {
    Layout::contiguous(DType::F32, ne).expect("a test's shape")
}

/// The bits of a float, as parameters hold it.
pub fn float(value: f32) -> i32 {
    value.to_bits() as i32
}

/// A graph of a host, with the table of readers as ggml fills it.
pub struct Graph {
    graph: Box<abi::Graph>,
    nodes: Vec<Node>,
    used: Vec<u32>,
    keys: Vec<*const abi::Tensor>,
    use_counts: Vec<i32>,
}

impl Graph {
    /// A graph without a number.
    pub fn of(nodes: &[Node]) -> Graph {
        Graph::numbered(nodes, 0)
    }

    /// A graph with a number.
    pub fn numbered(nodes: &[Node], uid: u64) -> Graph {
        let size = 2 * nodes.len() * 4 + 1;
        let mut graph = Graph {
            nodes: nodes.to_vec(),
            used: vec![0; size.div_ceil(32)],
            keys: vec![null(); size],
            use_counts: vec![0; size],
            graph: Box::new(abi::Graph {
                size: nodes.len() as i32,
                node_count: nodes.len() as i32,
                leaf_count: 0,
                nodes: null(),
                gradients: null_mut(),
                gradient_sums: null_mut(),
                leaves: null_mut(),
                use_counts: null(),
                visited: abi::HashSet { size, used: null(), keys: null() },
                order: 0,
                uid,
            }),
        };
        for &node in nodes {
            graph.place(node);
            // SAFETY: a test's tensor.
            for source in unsafe { (*node).sources }.into_iter().filter(|source| !source.is_null()) {
                let place = graph.place(source);
                graph.use_counts[place] += 1;
            }
        }
        graph.graph.nodes = graph.nodes.as_ptr();
        graph.graph.use_counts = graph.use_counts.as_ptr();
        graph.graph.visited.used = graph.used.as_ptr();
        graph.graph.visited.keys = graph.keys.as_ptr();
        graph
    }

    /// Where a tensor stands in the table; it is put there if it is not yet.
    fn place(&mut self, tensor: Node) -> usize {
        let size = self.keys.len();
        let mut place = (tensor as usize >> 4) % size;
        while self.used[place / 32] >> (place % 32) & 1 == 1 && self.keys[place] != tensor.cast_const() {
            place = (place + 1) % size;
        }
        self.used[place / 32] |= 1 << (place % 32);
        self.keys[place] = tensor;
        place
    }

    /// Gives it another number.
    pub fn set_uid(&mut self, uid: u64) {
        self.graph.uid = uid;
    }

    /// Counts one reader more of a tensor: in a part of the whole graph that is computed elsewhere.
    pub fn add_reader(&mut self, tensor: Node) {
        let place = self.place(tensor);
        self.use_counts[place] += 1;
    }

    /// Takes the table of readers away.
    pub fn forget_readers(&mut self) {
        self.graph.use_counts = null();
        self.graph.visited = abi::HashSet { size: 0, used: null(), keys: null() };
    }

    /// What the host passes.
    pub fn pointer(&self) -> *mut abi::Graph {
        (&raw const *self.graph).cast_mut()
    }
}
