//! What the plugin adds to a node: one graph of many small nodes, computed again and again as a host does at each token,
//! against the same steps given to the backend directly.
//!
//! `cargo run --release -p ssmgraph-ggml --example overhead`

use ssmgraph::backend::{Backend, CpuBackend, Program, Slice, Step};
use ssmgraph_ggml::abi;
use ssmgraph_ops::binary::{Binary, BinaryFunction};
use ssmgraph_ops::{DType, Layout};
use std::ffi::c_int;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

/// Nodes of one token in a model of 24 layers.
const NODES: usize = 700;
/// Elements of a node: so few that a node's own work is next to nothing.
const ELEMENTS: usize = 64;
/// Bytes from one tensor to the next.
const PITCH_BYTES: usize = 256;
/// Times that each way is measured; the ways take turns.
const ROUNDS: usize = 400;
/// More would measure how threads meet.
const THREADS: c_int = 1;

fn layout() -> Layout {
    Layout::contiguous(DType::F32, &[ELEMENTS]).expect("a small shape")
}

/// The steps without a host.
struct Direct(Box<dyn Program>);

impl Direct {
    fn new() -> Direct {
        let backend = CpuBackend::new(Some(THREADS as usize));
        let buffer = backend.allocate((NODES + 1) * PITCH_BYTES).expect("little memory");
        let slice = |index: usize| Slice {
            buffer: buffer.clone(),
            offset_bytes: index * PITCH_BYTES,
            layout: layout(),
        };
        let step = |index: usize| Step {
            op: Binary { function: BinaryFunction::Add }.into(),
            inputs: vec![slice(index), slice(0)],
            results: vec![slice(index + 1)],
        };
        Direct(backend.compile((0..NODES).map(step).collect()).expect("the CPU adds"))
    }

    fn run(&mut self) {
        self.0.run(None).expect("the CPU adds");
    }
}

/// The same as a graph of a host.
struct Hosted {
    stream: *mut abi::Backend,
    graph: Box<abi::Graph>,
    _nodes: Vec<*mut abi::Tensor>,
}

impl Hosted {
    fn new() -> Hosted {
        let registry = ssmgraph_ggml::ggml_backend_init();
        assert!(!registry.is_null());
        // SAFETY: the plugin's own structs, used as their interface says; they stay to the end of the process.
        let (stream, buffer, base) = unsafe {
            let table = &(*registry).table;
            let device = (table.get_device)(registry, 0);
            let stream = ((*device).table.init_backend)(device, null());
            let set_threads = table.get_proc_address.expect("is there");
            let set_threads = set_threads(registry, c"ggml_backend_set_n_threads".as_ptr());
            let set_threads: unsafe extern "C" fn(*mut abi::Backend, c_int) =
                std::mem::transmute(set_threads);
            set_threads(stream, THREADS);
            let buffer_type = ((*device).table.get_buffer_type)(device);
            // The entry is the second in both versions.
            let allocate = (*buffer_type.cast::<abi::BufferType2>()).alloc_buffer;
            let buffer = allocate(buffer_type, (NODES + 1) * PITCH_BYTES);
            assert!(!buffer.is_null());
            (stream, buffer, (*buffer).table.get_base.expect("is there")(buffer).cast::<u8>())
        };
        let tensor = |index: usize, sources: [*mut abi::Tensor; 2]| {
            let mut all = [null_mut(); abi::SOURCES];
            all[..2].copy_from_slice(&sources);
            Box::into_raw(Box::new(abi::Tensor {
                dtype: 0,
                buffer,
                ne: layout().ne.map(|count| count as i64),
                nb: layout().nb,
                op: if sources[0].is_null() { abi::OP_NONE } else { abi::OP_ADD },
                params: [0; abi::PARAMS],
                flags: abi::FLAG_COMPUTE,
                sources: all,
                view_source: null_mut(),
                view_offset: 0,
                data: base.wrapping_add(index * PITCH_BYTES).cast(),
                name: [0; 64],
                extra: null_mut(),
                padding: [0; 8],
            }))
        };
        let first = tensor(0, [null_mut(); 2]);
        let mut nodes: Vec<*mut abi::Tensor> = Vec::new();
        for index in 0..NODES {
            let last = nodes.last().copied().unwrap_or(first);
            nodes.push(tensor(index + 1, [last, first]));
        }
        let graph = Box::new(abi::Graph {
            size: NODES as c_int,
            node_count: NODES as c_int,
            leaf_count: 0,
            nodes: nodes.as_ptr(),
            gradients: null_mut(),
            gradient_sums: null_mut(),
            leaves: null_mut(),
            use_counts: null(),
            visited: abi::HashSet { size: 0, used: null(), keys: null() },
            order: 0,
            uid: 0,
        });
        Hosted { stream, graph, _nodes: nodes }
    }

    fn run(&mut self, uid: u64) {
        self.graph.uid = uid;
        // SAFETY: stream and graph live, and this is the only call on them.
        let status = unsafe { ((*self.stream).table.graph_compute)(self.stream, &mut *self.graph) };
        assert_eq!(status, abi::STATUS_SUCCESS);
    }
}

fn time(run: impl FnOnce()) -> Duration {
    let start = Instant::now();
    run();
    start.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn main() {
    let (mut direct, mut hosted) = (Direct::new(), Hosted::new());
    let planning = time(|| hosted.run(0));
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        times[0].push(time(|| direct.run()));
        times[1].push(time(|| hosted.run(0)));
        hosted.run(7);
        times[2].push(time(|| hosted.run(7)));
    }
    let [alone, compared, numbered] = times.map(median);
    let per_node = |time: Duration| time.as_secs_f64() * 1e6 / NODES as f64;
    let added = |time: Duration| per_node(time) - per_node(alone);
    println!("{NODES} nodes of {ELEMENTS} elements, {THREADS} thread, median of {ROUNDS}, µs per node:");
    println!("  backend alone                 {:7.3}", per_node(alone));
    println!("  graph without a number        {:7.3}   adds {:6.3}", per_node(compared), added(compared));
    println!("  graph with a number           {:7.3}   adds {:6.3}", per_node(numbered), added(numbered));
    println!("  the first time (planned)      {:7.3}", per_node(planning));
}
