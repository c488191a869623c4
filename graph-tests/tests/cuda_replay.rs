//! Captured graphs on the emulated driver: one launch per step, the same bits as without capture, addresses and
//! parameters that change between sessions, captures that fail.
//!
//! The emulator's counts and faults belong to the process: every test here holds `cuda::alone()`.

use emulator::Fault;
use graph_tests::arrays::assert_bits;
use graph_tests::cuda;
use graph_tests::models::tiny;
use ssmgraph::backend::{Backend, BackendError, Buffer, Declined, Devices, Program, SharedBytes, Step};
use ssmgraph::engine::NodeTracer;
use ssmgraph::ops::{DType, Layout, Op};
use ssmgraph::{Engine, EngineOptions, Graph, Logits, Session, Tensor};
use std::ops::Range;
use std::sync::Arc;

const F32: DType = DType::F32;

const MODELS: [&str; 5] =
    ["mamba1-tiny.f32", "mamba1-tiny.q8_0", "mamba2-g1-tiny.f32", "qwen35-tiny.f32", "qwen3next-tiny.q8_0"];

fn engine(model: &str, devices: &Devices) -> Engine {
    let gguf = tiny(model);
    Engine::load(Arc::new(gguf), devices, EngineOptions::default()).unwrap()
}

fn step(engine: &mut Engine, token: u32) -> Vec<f32> {
    engine.step(&[(0, &[token])], Logits::Last).unwrap().remove(0)
}

#[test]
fn the_second_and_later_tokens_are_one_graph_launch() {
    let _alone = cuda::alone();
    let emulator = cuda::emulator();
    for model in MODELS {
        let mut engine = engine(model, &cuda::with_cpu(cuda::backend()));
        step(&mut engine, 1);
        for token in 2..7 {
            emulator.reset_counts();
            step(&mut engine, token);
            let counts = emulator.counts();
            println!(
                "{model} token {token}: {} graph launches, {} kernel launches, {} uploads of {} bytes, {} downloads \
                 of {} bytes, {} waits, {} calls",
                counts.graph_launches,
                counts.kernel_launches,
                counts.h2d_copies,
                counts.h2d_bytes,
                counts.d2h_copies,
                counts.d2h_bytes,
                counts.synchronisations,
                counts.calls
            );
            assert_eq!((counts.graph_launches, counts.kernel_launches), (1, 0), "{model} token {token}");
            assert_eq!((counts.allocations, counts.module_loads, counts.memsets), (0, 0, 0), "{model}");
            let captured = u64::from(token == 2);
            assert_eq!(
                (counts.captures, counts.instantiations),
                (captured, captured),
                "{model} token {token}"
            );
        }
        assert!(engine.reports().iter().all(|(_, report)| report.notes.is_empty()));
        assert!(
            engine.reports().iter().all(|(_, report)| report.fallbacks().count() == 0),
            "{model} fell back"
        );
    }
}

struct Blind;

impl NodeTracer for Blind {
    fn begin(&self, _op: &'static str, _line: &str) {}
    fn end(&self) {}
}

#[test]
fn replayed_is_eager_to_the_bit() {
    let _alone = cuda::alone();
    for model in MODELS {
        let tokens: Vec<u32> = (0..12).map(|i| (i * 37 + 5) % 250).collect();
        let mut replayed = engine(model, &cuda::with_cpu(cuda::backend()));
        let replayed: Vec<f32> = tokens.iter().flat_map(|&token| step(&mut replayed, token)).collect();
        let mut watched = engine(model, &cuda::with_cpu(cuda::backend()));
        // A traced run goes launch by launch.
        watched.trace(Arc::new(Blind));
        cuda::emulator().reset_counts();
        let eager: Vec<f32> = tokens.iter().flat_map(|&token| step(&mut watched, token)).collect();
        let counts = cuda::emulator().counts();
        assert!(
            counts.graph_launches == 0 && counts.kernel_launches > 0,
            "{model}: the traced run was replayed"
        );
        assert_bits(&replayed, &eager, model);
    }
}

/// y = 2·x for x at an offset of p.
fn doubled(offset: usize) -> (Graph, Tensor, Tensor) {
    let mut graph = Graph::new();
    let p = graph.input("p", F32, &[16]).unwrap();
    let x = graph.slice(p, 0, offset, 4).unwrap();
    let y = graph.scale(x, 2.0, 0.0).unwrap();
    graph.output(y).unwrap();
    (graph, p, y)
}

fn run_three_times(session: &mut Session, y: Tensor, expected: &[f32]) {
    for _ in 0..3 {
        session.run().unwrap();
        assert_eq!(session.get::<f32>(y).unwrap(), expected);
    }
}

#[test]
fn a_replay_follows_sources_that_move() {
    let _alone = cuda::alone();
    let (emulator, devices) = (cuda::emulator(), cuda::with_cpu(cuda::backend()));
    emulator.reset_counts();
    for values in [[1.0f32, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]] {
        for offset in 0..5 {
            let (graph, p, y) = doubled(offset);
            let mut session = Session::new(&graph, &devices).unwrap();
            let contents: Vec<f32> = (0..16).map(|i| values[i % 4] + (i / 4) as f32).collect();
            session.set(p, &contents).unwrap();
            let expected: Vec<f32> = contents[offset..offset + 4].iter().map(|v| v * 2.0).collect();
            run_three_times(&mut session, y, &expected);
        }
    }
    let counts = emulator.counts();
    assert_eq!(counts.instantiations, 1, "one graph, patched for each session");
    assert_eq!(counts.exec_updates, 9);
}

#[test]
fn other_sizes_and_parameters_patch_the_graph_too() {
    let _alone = cuda::alone();
    let (emulator, devices) = (cuda::emulator(), cuda::with_cpu(cuda::backend()));
    emulator.reset_counts();
    for (count, factor) in [(3, 2.0), (700, -1.5), (40_000, 0.25), (3, 8.0)] {
        let mut graph = Graph::new();
        let x = graph.input("x", F32, &[count]).unwrap();
        let y = graph.scale(x, factor, 1.0).unwrap();
        graph.output(y).unwrap();
        let mut session = Session::new(&graph, &devices).unwrap();
        let values: Vec<f32> = (0..count).map(|i| i as f32).collect();
        session.set(x, &values).unwrap();
        let expected: Vec<f32> = values.iter().map(|value| value * factor + 1.0).collect();
        run_three_times(&mut session, y, &expected);
    }
    let counts = emulator.counts();
    assert_eq!((counts.instantiations, counts.exec_updates), (1, 3));
}

#[test]
fn sessions_of_several_shapes_replay_side_by_side() {
    let _alone = cuda::alone();
    let devices = cuda::with_cpu(cuda::backend());
    let mut sessions: Vec<(Session, Tensor, Vec<f32>)> = Vec::new();
    for count in 1..6usize {
        let mut graph = Graph::new();
        let x = graph.input("x", F32, &[count * 100]).unwrap();
        let y = graph.cumsum(x).unwrap();
        graph.output(y).unwrap();
        let mut session = Session::new(&graph, &devices).unwrap();
        session.set(x, &vec![count as f32; count * 100]).unwrap();
        sessions.push((session, y, (1..=count * 100).map(|i| (i * count) as f32).collect()));
    }
    for _ in 0..4 {
        for (session, y, expected) in &mut sessions {
            session.run().unwrap();
            assert_eq!(session.get::<f32>(*y).unwrap(), *expected);
        }
    }
}

#[test]
fn sessions_run_on_several_threads_at_once() {
    let _alone = cuda::alone();
    let devices = cuda::with_cpu(cuda::backend());
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let devices = &devices;
            scope.spawn(move || {
                let mut engine = engine("mamba2-g1-tiny.f32", devices);
                let mut alone = self::engine("mamba2-g1-tiny.f32", &Devices::cpu(Some(1)));
                for token in 0..6 {
                    let (ours, cpus) = (step(&mut engine, token + thread), step(&mut alone, token + thread));
                    for (a, b) in ours.iter().zip(&cpus) {
                        assert!((a - b).abs() <= 1e-4 * (1.0 + b.abs()), "thread {thread}: {a} and {b}");
                    }
                }
            });
        }
    });
}

#[test]
fn a_capture_that_fails_leaves_a_session_that_runs_launch_by_launch_and_says_so() {
    let _alone = cuda::alone();
    let emulator = cuda::emulator();
    for (fault, n) in [(Fault::Capture, 1), (Fault::Capture, 2), (Fault::Graph, 1), (Fault::Launch, 1)] {
        let (graph, p, y) = doubled(2);
        let mut session = Session::new(&graph, &cuda::with_cpu(cuda::backend())).unwrap();
        session.set(p, &[3.0f32; 16]).unwrap();
        session.run().unwrap();
        emulator.reset_counts();
        emulator.set_fault(fault, n);
        run_three_times(&mut session, y, &[6.0; 4]);
        emulator.set_fault(fault, 0);
        let notes = session.report().notes;
        assert_eq!(notes.len(), 1, "{fault:?} {n}");
        assert!(notes[0].starts_with("cuda: runs launch by launch, since cu"), "{}", notes[0]);
        assert_eq!(emulator.counts().graph_launches, 0);
        println!("{fault:?} {n}: {}", notes[0]);
        // The device itself is well: another session captures.
        emulator.reset_counts();
        let (graph, p, y) = doubled(1);
        let mut other = Session::new(&graph, session.store().devices()).unwrap();
        other.set(p, &[1.0f32; 16]).unwrap();
        run_three_times(&mut other, y, &[2.0; 4]);
        assert_eq!(emulator.counts().graph_launches, 2);
    }
}

#[test]
fn every_op_is_captured_at_its_second_run_after_any_growth_of_the_pool() {
    let _alone = cuda::alone();
    let emulator = cuda::emulator();
    let backend = cuda::backend();
    let shared: Arc<dyn Backend> = Arc::new(backend.clone());
    for &kind in ssmgraph::ops::OpKind::ALL {
        let cases = kind.cases();
        for case in cases.iter().step_by(7) {
            let layouts: Vec<Layout> = case.inputs.iter().map(|input| *input.layout()).collect();
            // What may be declined is listed in the conformance suite.
            if backend.supports(&case.op, &layouts).is_err() {
                continue;
            }
            // Held while the case runs, so that its own memory is new to the driver.
            let _grown = backend.allocate(1 << 16).unwrap();
            emulator.reset_counts();
            let outcome = ssmgraph::conformance::run_case(&shared, case);
            assert_eq!(outcome, ssmgraph::conformance::Outcome::Passed, "{} {}", kind.module(), case.name);
            let counts = emulator.counts();
            // The suite runs each graph twice: launch by launch, then captured.
            let captured = counts.instantiations + counts.exec_updates;
            assert_eq!(counts.captures, captured, "{} {}: a capture failed", kind.module(), case.name);
            assert_eq!(counts.graph_launches, captured, "{} {}", kind.module(), case.name);
        }
    }
}

/// The CUDA backend without some ops, as if they had no kernel.
struct Without {
    inner: Arc<dyn Backend>,
    op: &'static str,
}

impl Backend for Without {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn supports(&self, op: &Op, inputs: &[Layout]) -> Result<(), Declined> {
        if op.name() == self.op {
            return Err(Declined(format!("{} is left out", self.op)));
        }
        self.inner.supports(op, inputs)
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Buffer>, BackendError> {
        self.inner.allocate(bytes)
    }

    fn adopt(
        &self,
        bytes: &SharedBytes,
        range: Range<usize>,
    ) -> Result<(Arc<dyn Buffer>, usize), BackendError> {
        self.inner.adopt(bytes, range)
    }

    fn compile(&self, steps: Vec<Step>) -> Result<Box<dyn Program>, BackendError> {
        self.inner.compile(steps)
    }
}

#[test]
fn a_node_without_a_kernel_runs_on_the_cpu_with_just_the_copies_it_needs() {
    let _alone = cuda::alone();
    let emulator = cuda::emulator();
    let mut graph = Graph::new();
    let x = graph.input("x", F32, &[64]).unwrap();
    let a = graph.silu(x).unwrap();
    let b = graph.tanh(a).unwrap();
    let c = graph.cumsum(b).unwrap();
    let y = graph.scale(c, 0.5, 1.0).unwrap();
    graph.output(y).unwrap();
    let cpu: Arc<dyn Backend> = Arc::new(ssmgraph::backend::CpuBackend::new(Some(1)));
    let partial: Arc<dyn Backend> = Arc::new(Without { inner: Arc::new(cuda::backend()), op: "cumsum" });
    let mut mixed = Session::new(&graph, &Devices::new(vec![partial, cpu])).unwrap();
    let mut whole = Session::new(&graph, &cuda::with_cpu(cuda::backend())).unwrap();
    let values: Vec<f32> = (0..64).map(|i| (i as f32 - 30.0) / 9.0).collect();
    for session in [&mut mixed, &mut whole] {
        session.set(x, &values).unwrap();
        session.run().unwrap();
        session.run().unwrap();
    }
    emulator.reset_counts();
    mixed.run().unwrap();
    let counts = emulator.counts();
    assert_eq!((counts.graph_launches, counts.kernel_launches), (2, 0), "a graph before and one after");
    assert_eq!((counts.d2h_copies, counts.h2d_copies), (1, 1));
    let report = mixed.report();
    assert_eq!((report.copies, report.bytes_copied), (2, 2 * 64 * 4));
    let fallen: Vec<_> = report.fallbacks().collect();
    assert_eq!(fallen.len(), 1);
    assert_eq!(
        (fallen[0].device.as_str(), fallen[0].declined.as_slice()),
        ("cpu", &["cuda: cumsum is left out".to_owned()][..])
    );
    for (a, b) in mixed.get::<f32>(y).unwrap().iter().zip(whole.get::<f32>(y).unwrap()) {
        assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "{a} and {b}");
    }
}
