//! Device memory between programs on the emulated driver: blocks that change hands while copies are queued, records
//! that a failed run leaves, buffers that a program uses.

use emulator::Fault;
use graph_tests::cuda;
use ssmgraph::backend::{Backend, Buffer, Observer, Slice, Step};
use ssmgraph::ops::scale::Scale;
use ssmgraph::ops::{DType, Layout};
use ssmgraph::{Graph, Session, Tensor};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// y = 2·(rows of a table); the table and the ids.
fn rows_doubled() -> (Graph, [Tensor; 2], Tensor) {
    let mut graph = Graph::new();
    let table = graph.input("table", DType::F32, &[4, 3]).unwrap();
    let ids = graph.input("ids", DType::I32, &[2]).unwrap();
    let rows = graph.get_rows(table, ids).unwrap();
    let y = graph.scale(rows, 2.0, 0.0).unwrap();
    graph.output(y).unwrap();
    (graph, [table, ids], y)
}

fn run_three_times(session: &mut Session, y: Tensor) {
    for _ in 0..3 {
        session.run().unwrap();
        assert_eq!(session.get::<f32>(y).unwrap(), [3.0; 8]);
    }
}

#[test]
fn what_a_dropped_buffer_was_to_receive_does_not_pass_for_a_fault() {
    let _alone = cuda::alone();
    let backend = cuda::backend();
    // More than a session takes for its tensors, so that the program's own memory is among them.
    let buffers: Vec<_> = (0..16).map(|_| backend.allocate(256).unwrap()).collect();
    for buffer in &buffers {
        buffer.write(0, &[0xff; 256]).unwrap();
    }
    drop(buffers);
    let (graph, [table, ids], y) = rows_doubled();
    let mut session = Session::new(&graph, &cuda::with_cpu(backend)).unwrap();
    session.set(table, &[1.5f32; 12]).unwrap();
    session.set(ids, &[2i32, 0]).unwrap();
    run_three_times(&mut session, y);
}

#[test]
fn a_run_that_failed_does_not_leave_its_ids_to_the_next() {
    let _alone = cuda::alone();
    let emulator = cuda::emulator();
    let (graph, [table, ids], y) = rows_doubled();
    let mut session = Session::new(&graph, &cuda::with_cpu(cuda::backend())).unwrap();
    session.set(table, &[1.5f32; 12]).unwrap();
    session.set(ids, &[1i32, 7]).unwrap();
    emulator.set_fault(Fault::Launch, 2);
    let error = session.run().unwrap_err().to_string();
    assert!(error.contains("cuLaunchKernel failed: scale"), "{error}");
    session.set(ids, &[1i32, 2]).unwrap();
    run_three_times(&mut session, y);
}

/// Lets a writer go at the start of a run, and sees at the end whether it came through.
struct Watch<'a> {
    go: Sender<()>,
    written: &'a AtomicBool,
    during_run: &'a AtomicBool,
}

impl Observer for Watch<'_> {
    fn begin(&self, _step: usize) {
        self.go.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }

    fn end(&self, _step: usize) {
        self.during_run.store(self.written.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

fn write_when_told(told: &Receiver<()>, buffer: &Arc<dyn Buffer>, written: &AtomicBool) {
    told.recv().unwrap();
    buffer.write(0, &5.0f32.to_le_bytes()).unwrap();
    written.store(true, Ordering::SeqCst);
}

#[test]
fn nobody_writes_a_buffer_while_a_program_runs_on_it() {
    let _alone = cuda::alone();
    let backend = cuda::backend();
    let layout = Layout::contiguous(DType::F32, &[1]).unwrap();
    let slice = |buffer: &Arc<dyn Buffer>| Slice { buffer: buffer.clone(), offset_bytes: 0, layout };
    let (x, y) = (backend.allocate(4).unwrap(), backend.allocate(4).unwrap());
    x.write(0, &1.0f32.to_le_bytes()).unwrap();
    let op = Scale { scale: 2.0, bias: 0.0 }.into();
    let steps = vec![Step { op, inputs: vec![slice(&x)], results: vec![slice(&y)] }];
    let mut program = backend.compile(steps).unwrap();
    let (written, during_run) = (AtomicBool::new(false), AtomicBool::new(false));
    let (go, told) = channel();
    std::thread::scope(|scope| {
        let (x, written) = (&x, &written);
        scope.spawn(move || write_when_told(&told, x, written));
        program.run(Some(&Watch { go, written, during_run: &during_run })).unwrap();
    });
    assert!(written.into_inner() && !during_run.into_inner(), "the write did not wait");
    let mut found = [0; 4];
    y.read(0, &mut found).unwrap();
    assert_eq!(f32::from_le_bytes(found), 2.0);
}
