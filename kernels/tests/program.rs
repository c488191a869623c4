//! What a program refuses before it runs, and how it ends when a step fails.

use ssmgraph_kernels::{Forms, Memory, Place, Program, ProgramError, Step};
use ssmgraph_ops::cpy::Cpy;
use ssmgraph_ops::unary::{Function, Unary};
use ssmgraph_ops::{DType, GetRows, Layout, Op, SetRows};
use std::sync::{Arc, mpsc};
use std::time::Duration;

fn place(dtype: DType, ne: &[usize]) -> Place {
    let layout = Layout::contiguous(dtype, ne).unwrap();
    Place { memory: Arc::new(Memory::zeroed(layout.span_bytes()).unwrap()), offset_bytes: 0, layout }
}

fn step(op: impl Into<Op>, inputs: &[&Place], results: &[&Place]) -> Step {
    let owned = |places: &[&Place]| places.iter().map(|&place| place.clone()).collect();
    Step { op: op.into(), inputs: owned(inputs), results: owned(results) }
}

fn refusal(step: Step) -> String {
    Program::new(vec![step], 2, Forms::default()).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn workers_that_learn_of_an_error_late_still_meet_the_others() {
    let (table, ids) = (place(DType::F32, &[1024, 4]), place(DType::I32, &[64]));
    ids.memory.write(63 * 4, &7i32.to_le_bytes());
    let (picked, copy) = (place(DType::F32, &[1024, 64]), place(DType::F32, &[1024, 64]));
    let steps = vec![
        step(GetRows, &[&table, &ids], &[&picked]),
        step(Cpy { to: copy.layout }, &[&picked], &[&copy]),
        step(Cpy { to: copy.layout }, &[&copy], &[&picked]),
    ];
    let program = Program::new(steps, 4, Forms::default()).unwrap();
    let (done, finished) = mpsc::channel();
    std::thread::spawn(move || {
        for _ in 0..2_000 {
            let error = program.run(None).unwrap_err();
            assert_eq!(error.to_string(), "get_rows: ids[63, 0, 0] = 7, expected −1 or a row below 4");
        }
        done.send(()).unwrap();
    });
    finished.recv_timeout(Duration::from_secs(120)).expect("no run waits for a worker that has left");
}

#[test]
fn a_program_keeps_the_memory_that_it_only_reads() {
    let (x, y) = (place(DType::F32, &[1024]), place(DType::F32, &[1024]));
    let bytes: Arc<Vec<u8>> = Arc::new(1f32.to_le_bytes().repeat(1024));
    let kept = Arc::downgrade(&bytes);
    let x = Place { memory: Arc::new(Memory::shared(bytes)), ..x };
    let program = Program::new(vec![step(Cpy { to: y.layout }, &[&x], &[&y])], 1, Forms::default()).unwrap();
    drop(x);
    assert!(kept.upgrade().is_some(), "the program points into it");
    program.run(None).unwrap();
    let mut last = [0; 4];
    y.memory.read(1023 * 4, &mut last);
    assert_eq!(f32::from_le_bytes(last), 1.0);
    drop(program);
    assert!(kept.upgrade().is_none());
}

#[test]
fn a_layout_that_no_constructor_would_make_is_refused() {
    let (good, mut bad) = (place(DType::F32, &[4]), place(DType::F32, &[4]));
    bad.layout.nb[0] = 2;
    let silu = Unary { function: Function::Silu };
    let text = refusal(step(silu, &[&bad], &[&good]));
    assert!(text.contains("operand 0") && text.contains("nb[0] = 2 is not a multiple of 4"), "{text}");
}

#[test]
fn results_of_another_shape_are_refused() {
    let silu = Unary { function: Function::Silu };
    let (four, five) = (place(DType::F32, &[4]), place(DType::F32, &[5]));
    assert!(refusal(step(silu, &[&four], &[&five])).contains("result 0 is"));
    assert!(refusal(step(silu, &[&four], &[])).contains("0 results, expected 1"));
    assert!(refusal(step(silu, &[&four, &five], &[&four])).contains("2 operands, expected 1"));
}

#[test]
fn an_update_beside_its_operand_is_refused() {
    let (table, rows, ids) =
        (place(DType::F32, &[4, 3]), place(DType::F32, &[4, 1]), place(DType::I32, &[1]));
    let elsewhere = place(DType::F32, &[4, 3]);
    assert!(refusal(step(SetRows, &[&table, &rows, &ids], &[&elsewhere])).contains("which it updates"));
    let program =
        Program::new(vec![step(SetRows, &[&table, &rows, &ids], &[&table])], 1, Forms::default()).unwrap();
    assert_eq!(program.run(None), Ok::<(), ProgramError>(()));
}
