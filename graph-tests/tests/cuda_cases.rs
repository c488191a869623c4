//! What has gone wrong in other libraries, asked of every op at once, on the emulated device and on the CPU: layouts
//! that are claimed but not computed, more rows than a grid axis holds, empty tensors, races, fused ops that
//! overwrite what they still read.

use emulator::engine::Mode;
use graph_tests::arrays::assert_bits;
use graph_tests::case_grid::{accepted, arranged, bases, emptied, grid};
use graph_tests::cuda;
use ssmgraph::backend::{Backend, CpuBackend, Devices};
use ssmgraph::conformance::{Outcome, run_case};
use ssmgraph::ops::binary::{Binary, BinaryFunction};
use ssmgraph::ops::case::{Arrangement, Values};
use ssmgraph::ops::gated_norm::{Gate, GatedNorm, Order};
use ssmgraph::ops::glu::{Glu, GluFunction};
use ssmgraph::ops::l2_norm::{Form, L2Norm};
use ssmgraph::ops::mul_mat::MulMat;
use ssmgraph::ops::tensor::indices;
use ssmgraph::ops::unary::{Function, Unary};
use ssmgraph::ops::{
    Argmax, Attention, Case, Concat, Cpy, Cumsum, DType, GetRows, HostTensor, Layout, Mean, Norm, Op, OpKind,
    Repeat, RmsNorm, Scale, SetRows, SoftMax, SsmConv, SsmConvStep, SsmScan, SumRows, Tolerance,
};
use ssmgraph::{Graph, Session, Tensor};
use std::sync::Arc;

const F32: DType = DType::F32;

fn backends() -> [Arc<dyn Backend>; 2] {
    [cuda::devices().backends()[0].clone(), Arc::new(CpuBackend::new(Some(2)))]
}

/// Runs cases on both backends. Gives what failed, and tells how many were declined.
fn failures(kind: OpKind, cases: &[Case]) -> Vec<String> {
    let mut failures = Vec::new();
    for backend in backends() {
        let mut declined = 0;
        for case in cases {
            match run_case(&backend, case) {
                Outcome::Passed => {}
                Outcome::Declined(_) => declined += 1,
                Outcome::Failed(message) | Outcome::Skipped(message) => {
                    let layouts: Vec<String> =
                        case.inputs.iter().map(|input| input.layout().to_string()).collect();
                    failures.push(format!(
                        "{} {} on {} of {}: {message}",
                        case.op.name(),
                        case.name,
                        backend.name(),
                        layouts.join(", ")
                    ));
                }
            }
        }
        println!("{} on {}: {} cases, {declined} declined", kind.module(), backend.name(), cases.len());
    }
    failures
}

fn expect_none(failures: Vec<String>) {
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

fn tensor(seed: u64, ne: &[usize]) -> HostTensor {
    Values::new(seed).tensor(F32, ne, -1.0, 1.0)
}

fn ids(values: &[i32]) -> HostTensor {
    HostTensor::from_i32(&[values.len()], values).unwrap()
}

/// A scan over `ne` = [states, rows of a head, heads, tokens, sequences].
fn scan([states, rows, heads, tokens, sequences]: [usize; 5]) -> Case {
    let mut values = Values::new(11);
    let inputs = vec![
        values.tensor(F32, &[states, rows, heads, sequences], -1.0, 1.0),
        values.tensor(F32, &[rows, heads, tokens, sequences], -1.0, 1.0),
        values.tensor(F32, &[heads, tokens, sequences], -2.0, 0.5),
        values.tensor(F32, &[1, heads], -2.0, -0.1),
        values.tensor(F32, &[states, 1, tokens, sequences], -1.0, 1.0),
        values.tensor(F32, &[states, 1, tokens, sequences], -1.0, 1.0),
        ids(&(0..sequences as i32).collect::<Vec<_>>()),
    ];
    Case::new("scan", SsmScan { snapshots: 1 }, inputs, Tolerance { rtol: 1e-5, atol: 1e-5 })
}

/// Sizes between those that kernels like.
fn unusual_sizes() -> Vec<Case> {
    let case = |name: &str, op: Op, inputs: Vec<HostTensor>| Case::new(name, op, inputs, Tolerance::F32_SUM);
    let window = [tensor(1, &[5, 24, 1, 2]), tensor(2, &[24, 3, 2]), tensor(3, &[6, 24]), ids(&[1, 0])];
    vec![
        scan([24, 24, 2, 3, 2]),
        case(
            "width_6",
            SsmConv { bias: false, silu: false }.into(),
            vec![tensor(4, &[11, 24, 2]), tensor(5, &[6, 24])],
        ),
        case("width_6", SsmConvStep { bias: false, silu: false, snapshots: 2 }.into(), window.to_vec()),
        case(
            "heads_of_24",
            GatedNorm { eps: 1e-5, group_size: 24, order: Order::NormThenGate, gate: Gate::Silu }.into(),
            vec![tensor(6, &[72, 3, 2]), tensor(7, &[72, 3, 2]), tensor(8, &[24])],
        ),
        case("heads_of_24", L2Norm { eps: 1e-6, form: Form::Max }.into(), vec![tensor(9, &[24, 3, 2])]),
        case("heads_of_24", RmsNorm { eps: 1e-6, weight: false }.into(), vec![tensor(9, &[24, 3, 2])]),
        case(
            "heads_of_24",
            MulMat { quantize: false }.into(),
            vec![tensor(10, &[24, 7, 2]), tensor(11, &[24, 5, 2])],
        ),
        // The op's own cases have NaN where nothing may be read, so that none of them counts as ordinary.
        case(
            "heads_of_24",
            Attention { scale: 0.2 }.into(),
            vec![
                tensor(12, &[24, 4, 3, 2]),
                tensor(13, &[24, 2, 8, 3]),
                tensor(14, &[24, 2, 8, 3]),
                ids(&[2, 0]),
                ids(&[1, 4]),
            ],
        ),
    ]
}

#[test]
fn supported_layouts_compute_the_right_result() {
    let mut failed = Vec::new();
    for &kind in OpKind::ALL {
        let peers = kind.cases();
        let mut cases: Vec<Case> = bases(kind).iter().flat_map(|case| grid(case, &peers)).collect();
        let unusual = unusual_sizes().into_iter().filter(|case| case.op.kind() == kind);
        cases.extend(unusual.flat_map(|case| grid(&case, &peers)));
        assert!(!cases.is_empty(), "{} has no case to vary", kind.module());
        failed.extend(failures(kind, &cases));
    }
    expect_none(failed);
}

/// Rows of A14's shapes: more than 65535, the most that the second and third axis of a grid hold.
const ROWS: usize = 70_000;

/// The rows that are compared: around the limit, and the last.
const COMPARED: [usize; 5] = [65_534, 65_535, 65_536, 65_537, ROWS - 1];

/// Ops that work along rows, on operands with `ROWS` elements along one of the outer axes.
fn many_rows(axis: usize) -> Vec<Case> {
    let mut ne = [2, 1, 1, 1];
    ne[axis] = ROWS;
    let long = |seed: u64, row: usize| tensor(seed, &[row, ne[1], ne[2], ne[3]]);
    let (x, z) = (long(1, 2), long(2, 2));
    let packed = *x.layout();
    let case = |op: Op, inputs: Vec<HostTensor>| Case::new(op.name(), op, inputs, Tolerance::F32_SUM);
    let one = |op: Op| case(op, vec![x.clone()]);
    let mut cases = vec![
        one(Cumsum.into()),
        one(L2Norm { eps: 1e-6, form: Form::Max }.into()),
        one(Norm { eps: 1e-5 }.into()),
        one(RmsNorm { eps: 1e-6, weight: false }.into()),
        one(Argmax.into()),
        one(Mean.into()),
        one(SumRows.into()),
        one(SoftMax { scale: 0.5, mask: false }.into()),
        one(Unary { function: Function::Silu }.into()),
        one(Scale { scale: 2.0, bias: 1.0 }.into()),
        one(Glu { function: GluFunction::Swiglu, split: false, swapped: false }.into()),
        one(Cpy { to: packed }.into()),
        one(Cpy { to: packed.to_dtype(DType::F16).unwrap() }.into()),
        one(Repeat { ne: [4, packed.ne[1], packed.ne[2], packed.ne[3]] }.into()),
        case(Concat { axis: 0 }.into(), vec![x.clone(), z.clone()]),
        case(RmsNorm { eps: 1e-6, weight: true }.into(), vec![x.clone(), tensor(3, &[2])]),
        case(SoftMax { scale: 0.5, mask: true }.into(), vec![x.clone(), z.clone()]),
        case(Binary { function: BinaryFunction::Add }.into(), vec![x.clone(), z.clone()]),
        case(
            Glu { function: GluFunction::Swiglu, split: true, swapped: false }.into(),
            vec![x.clone(), z.clone()],
        ),
        case(
            GatedNorm { eps: 1e-6, group_size: 2, order: Order::GateThenNorm, gate: Gate::Silu }.into(),
            vec![x.clone(), z.clone(), tensor(4, &[2])],
        ),
        case(MulMat { quantize: false }.into(), vec![tensor(5, &[2, 3]), x.clone()]),
    ];
    cases.extend(match axis {
        1 => vec![
            case(
                SsmConv { bias: false, silu: true }.into(),
                vec![tensor(6, &[4, ROWS]), tensor(7, &[2, ROWS])],
            ),
            case(MulMat { quantize: false }.into(), vec![x.clone(), tensor(8, &[2, 3])]),
            scan([2, ROWS, 1, 2, 1]),
        ],
        2 => vec![
            case(
                SsmConv { bias: false, silu: true }.into(),
                vec![tensor(6, &[4, 1, ROWS]), tensor(7, &[2, 1])],
            ),
            case(GetRows.into(), vec![long(9, 2), zero_ids([1, ROWS, 1])]),
            case(SetRows.into(), vec![long(9, 2), long(10, 2), zero_ids([1, ROWS, 1])]),
            scan([2, 1, ROWS, 1, 1]),
        ],
        _ => vec![
            case(GetRows.into(), vec![long(9, 2), zero_ids([1, 1, ROWS])]),
            case(SetRows.into(), vec![long(9, 2), long(10, 2), zero_ids([1, 1, ROWS])]),
            case(
                SsmConvStep { bias: false, silu: false, snapshots: 1 }.into(),
                vec![
                    tensor(11, &[1, 2, 1, 3]),
                    tensor(12, &[2, 1, ROWS]),
                    tensor(13, &[2, 2]),
                    zero_ids([ROWS, 1, 1]),
                ],
            ),
        ],
    });
    cases
}

fn zero_ids(ne: [usize; 3]) -> HostTensor {
    HostTensor::from_i32(&ne, &vec![0; ne.iter().product()]).unwrap()
}

/// The compared rows alone, of every axis that has `ROWS` elements.
fn picked(x: &HostTensor) -> HostTensor {
    let layout = x.layout();
    let ne = layout.ne.map(|count| if count == ROWS { COMPARED.len() } else { count });
    let mut rows = HostTensor::zeros(Layout::contiguous(layout.dtype, &ne).unwrap());
    let mut view = rows.view_mut().unwrap();
    for index in indices(ne) {
        let of = std::array::from_fn(|axis| match layout.ne[axis] == ROWS {
            true => COMPARED[index[axis]],
            false => index[axis],
        });
        match layout.dtype.is_int() {
            true => view.set_int(index, x.get_int(of)),
            false => view.set(index, x.get(of)),
        }
    }
    rows
}

/// The op for the picked rows.
fn picked_op(op: &Op) -> Op {
    let shorter = |count: usize| if count == ROWS { COMPARED.len() } else { count };
    match op {
        Op::Cpy(Cpy { to }) => Cpy { to: Layout::contiguous(to.dtype, &to.ne.map(shorter)).unwrap() }.into(),
        Op::Repeat(Repeat { ne }) => Repeat { ne: ne.map(shorter) }.into(),
        other => other.clone(),
    }
}

/// A graph of one op with the operands as inputs; a permuted one as a view of an input.
fn graph_of(case: &Case) -> (Graph, Vec<(Tensor, HostTensor)>, Vec<Tensor>) {
    let (mut graph, mut bound, mut operands) = (Graph::new(), Vec::new(), Vec::new());
    for (index, input) in case.inputs.iter().enumerate() {
        let (layout, name) = (input.layout(), format!("operand {index}"));
        let leaf = match layout.is_contiguous() {
            true => graph.input(&name, layout.dtype, &layout.ne).unwrap(),
            false => graph.input(&name, layout.dtype, &[layout.elements()]).unwrap(),
        };
        let flat = Layout::contiguous(layout.dtype, &graph.ne(leaf).unwrap()).unwrap();
        bound.push((leaf, HostTensor::from_bytes(flat, input.bytes().to_vec()).unwrap()));
        operands.push(match layout.is_contiguous() {
            true => leaf,
            false => graph.view(leaf, layout.ne, layout.nb, 0).unwrap(),
        });
    }
    let results = graph.op(case.op.clone(), &operands).unwrap().to_vec();
    results.iter().for_each(|&result| graph.output(result).unwrap());
    (graph, bound, results)
}

fn check_many_rows(backend: &Arc<dyn Backend>, case: &Case) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let (graph, bound, results) = graph_of(case);
    let mut session =
        Session::new(&graph, &Devices::new(vec![backend.clone()])).map_err(|error| text(&error))?;
    for (leaf, values) in &bound {
        session.set_tensor(*leaf, values).map_err(|error| text(&error))?;
    }
    session.run().map_err(|error| text(&error))?;
    let short: Vec<HostTensor> = case.inputs.iter().map(picked).collect();
    let expected = picked_op(&case.op).evaluate(&short).map_err(|error| text(&error))?;
    for (&result, want) in results.iter().zip(&expected) {
        let got = picked(&session.get_tensor(result).map_err(|error| text(&error))?);
        if let Some(mismatch) = case.tolerance.mismatch(&got, want) {
            return Err(mismatch);
        }
    }
    Ok(())
}

fn many_rows_are_right_on(axis: usize) {
    let mut failed = Vec::new();
    for case in many_rows(axis) {
        let mut permuted = case.clone();
        permuted.inputs.iter_mut().for_each(|input| *input = arranged(input, Arrangement::Transposed));
        // The vectors have packed rows on every axis; this many rows take seconds per op.
        let (form, case) = match axis != 2 && accepted(&permuted) {
            true => ("permuted", permuted),
            false => ("packed", case),
        };
        for backend in backends() {
            if let Err(message) = check_many_rows(&backend, &case) {
                failed.push(format!("{} {form} axis {axis} on {}: {message}", case.name, backend.name()));
            }
        }
    }
    expect_none(failed);
}

#[test]
fn more_rows_than_a_grid_axis_holds_on_axis_1() {
    many_rows_are_right_on(1);
}

#[test]
fn more_rows_than_a_grid_axis_holds_on_axis_2() {
    many_rows_are_right_on(2);
}

#[test]
fn more_rows_than_a_grid_axis_holds_on_axis_3() {
    many_rows_are_right_on(3);
}

/// One op of nothing, and an ordinary op beside and after it, in one session: run, captured, replayed.
fn run_beside_an_ordinary_op(backend: &Arc<dyn Backend>, case: &Case) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let (mut graph, bound, results) = graph_of(case);
    let x = graph.input("x", F32, &[5, 2]).map_err(|error| text(&error))?;
    let ordinary = graph.cumsum(x).and_then(|y| graph.output(y).map(|()| y)).map_err(|error| text(&error))?;
    let mut session =
        Session::new(&graph, &Devices::new(vec![backend.clone()])).map_err(|error| text(&error))?;
    for (leaf, values) in &bound {
        session.set_tensor(*leaf, values).map_err(|error| text(&error))?;
    }
    let expected = case.expected().map_err(|error| text(&error))?;
    for step in 0..4u8 {
        let numbers: Vec<f32> = (0..10u8).map(|i| f32::from(i + step)).collect();
        session.set(x, &numbers).map_err(|error| text(&error))?;
        session.run().map_err(|error| text(&error))?;
        for (&result, want) in results.iter().zip(&expected) {
            let got = session.get_tensor(result).map_err(|error| text(&error))?;
            if let Some(mismatch) = case.tolerance.mismatch(&got, want) {
                return Err(format!("run {step}: {mismatch}"));
            }
        }
        let sums = |row: &[f32]| (1..=5).map(|n| row[..n].iter().sum()).collect::<Vec<f32>>();
        let want = [sums(&numbers[..5]), sums(&numbers[5..])].concat();
        let got = session.get::<f32>(ordinary).map_err(|error| text(&error))?;
        if got != want {
            return Err(format!("run {step}: the ordinary op gave {got:?}, expected {want:?}"));
        }
    }
    Ok(())
}

#[test]
fn ordinary_ops_are_right_beside_and_after_ops_of_nothing() {
    let mut failed = Vec::new();
    for &kind in OpKind::ALL {
        let cases = emptied(kind);
        println!("{}: {} cases", kind.module(), cases.len());
        assert!(!cases.is_empty(), "{} has no case of nothing", kind.module());
        for backend in backends() {
            for case in &cases {
                if let Err(message) = run_beside_an_ordinary_op(&backend, case) {
                    failed.push(format!("{} {} on {}: {message}", case.op.name(), case.name, backend.name()));
                }
            }
        }
    }
    expect_none(failed);
}

/// Kernels that use shared memory again and again, or tiles of it.
fn prone_to_races() -> Vec<Case> {
    let x = tensor(20, &[255, 5, 4, 3]);
    let permuted = arranged(&tensor(21, &[10, 10, 5, 1]), Arrangement::Permuted);
    let transposed = arranged(&tensor(22, &[40, 33, 2, 1]), Arrangement::Transposed);
    let copy = |x: HostTensor| {
        let to = x.layout().to_contiguous();
        Case::new("cont", Cpy { to }, vec![x], Tolerance::EXACT)
    };
    let mut scans = [scan([16, 4, 2, 32, 4]), scan([128, 4, 2, 32, 4])];
    for scan in &mut scans {
        scan.tolerance = Tolerance { rtol: 1e-4, atol: 1e-4 };
    }
    let [narrow, wide] = scans;
    vec![
        Case::new("cumsum", Cumsum, vec![x], Tolerance::sum_of(255, 1.0)),
        narrow,
        wide,
        copy(permuted),
        copy(transposed),
    ]
}

/// What an op gives on a backend that the emulated device runs with its present settings.
fn results(backend: &Arc<dyn Backend>, case: &Case) -> Vec<HostTensor> {
    let (graph, bound, results) = graph_of(case);
    let mut session = Session::new(&graph, &Devices::new(vec![backend.clone()])).unwrap();
    bound.iter().for_each(|(leaf, values)| session.set_tensor(*leaf, values).unwrap());
    session.run().unwrap();
    results.iter().map(|&result| session.get_tensor(result).unwrap()).collect()
}

#[test]
fn no_order_of_threads_and_blocks_changes_a_bit_and_no_access_races() {
    let (_alone, emulator) = (cuda::alone(), cuda::emulator());
    let backend: Arc<dyn Backend> = Arc::new(cuda::backend());
    for case in prone_to_races() {
        let expected = case.expected().unwrap();
        let mut first: Option<Vec<HostTensor>> = None;
        for seed in 0..40 {
            emulator.set_seed(seed);
            let got = results(&backend, &case);
            for (got, want) in got.iter().zip(&expected) {
                assert_eq!(case.tolerance.mismatch(got, want), None, "{} seed {seed}", case.name);
            }
            assert!(first.get_or_insert_with(|| got.clone()) == &got, "{} seed {seed}", case.name);
        }
    }
    emulator.set_seed(0);
    emulator.set_mode(Mode::Check);
    let checked: Arc<dyn Backend> = Arc::new(cuda::backend());
    for case in prone_to_races() {
        let expected = case.expected().unwrap();
        for (got, want) in results(&checked, &case).iter().zip(&expected) {
            assert_eq!(case.tolerance.mismatch(got, want), None, "{} checked", case.name);
        }
    }
    emulator.set_mode(Mode::Fast);
    assert_eq!(emulator.last_problem(), "");
}

/// Runs a graph twice over and gives its result with its plan.
fn run_planned(
    graph: &Graph,
    y: Tensor,
    inputs: &[(Tensor, HostTensor)],
    devices: &Devices,
) -> (Vec<f32>, String) {
    let mut session = Session::new(graph, devices).unwrap();
    inputs.iter().for_each(|(leaf, values)| session.set_tensor(*leaf, values).unwrap());
    session.run().unwrap();
    let first = session.get::<f32>(y).unwrap();
    for _ in 0..2 {
        session.run().unwrap();
        assert!(session.get::<f32>(y).unwrap() == first, "a replay gave other bits");
    }
    (first, session.plan().to_text())
}

/// A graph under test: what is set, what is computed between, and the result.
struct Chain {
    graph: Graph,
    inputs: Vec<(Tensor, HostTensor)>,
    between: Vec<Tensor>,
    y: Tensor,
}

impl Chain {
    /// The same graph with every intermediate kept: nothing is fused, nothing takes another's memory.
    fn kept(mut self) -> Chain {
        self.between.iter().for_each(|&tensor| self.graph.keep(tensor).unwrap());
        self
    }
}

fn input(
    graph: &mut Graph,
    inputs: &mut Vec<(Tensor, HostTensor)>,
    name: &str,
    seed: u64,
    ne: &[usize],
) -> Tensor {
    let leaf = graph.input(name, F32, ne).unwrap();
    inputs.push((leaf, tensor(seed, ne)));
    leaf
}

/// sx → convolution → + bias → SiLU, and one op more that may take the memory of sx. The result of the convolution
/// fits where sx lies.
fn convolution() -> Chain {
    let (mut graph, mut inputs) = (Graph::new(), Vec::new());
    let raw = input(&mut graph, &mut inputs, "raw", 1, &[67, 128]);
    let taps = input(&mut graph, &mut inputs, "taps", 2, &[4, 128]);
    let bias = input(&mut graph, &mut inputs, "bias", 3, &[128]);
    let sx = graph.scale(raw, 1.5, 0.25).unwrap();
    let convolved = graph.ssm_conv(sx, taps, None, false).unwrap();
    let shifted = graph.add(convolved, bias).unwrap();
    let activated = graph.silu(shifted).unwrap();
    let y = graph.scale(activated, 2.0, -1.0).unwrap();
    graph.output(y).unwrap();
    Chain { graph, inputs, between: vec![sx, convolved, shifted, activated], y }
}

/// x → RMS norm → · w → + residual, which is another tensor or x itself.
fn norm(residual_is_x: bool) -> Chain {
    let (mut graph, mut inputs) = (Graph::new(), Vec::new());
    let raw = input(&mut graph, &mut inputs, "raw", 4, &[96, 33]);
    let w = input(&mut graph, &mut inputs, "w", 5, &[96]);
    let x = graph.scale(raw, 1.5, 0.25).unwrap();
    let residual = if residual_is_x { x } else { input(&mut graph, &mut inputs, "residual", 6, &[96, 33]) };
    let normalised = graph.rms_norm(x, None, 1e-5).unwrap();
    let scaled = graph.mul(normalised, w).unwrap();
    let y = graph.add(scaled, residual).unwrap();
    graph.output(y).unwrap();
    Chain { graph, inputs, between: vec![x, normalised, scaled], y }
}

#[test]
fn fusing_and_reusing_memory_changes_no_bit() {
    type Make = fn() -> Chain;
    let chains: [(&str, Make, &str, bool); 3] = [
        ("convolution", convolution, "bias, silu", false),
        ("norm", || norm(false), "weight", true),
        ("norm with itself", || norm(true), "weight", true),
    ];
    let on_cpu = Devices::cpu(Some(2));
    for (name, chain, fused_attributes, fits_in_place) in chains {
        for devices in [&cuda::devices(), &on_cpu] {
            let device = devices.backends()[0].name();
            let Chain { graph, inputs, y, .. } = chain();
            let (reused, reused_plan) = run_planned(&graph, y, &inputs, devices);
            let Chain { graph, inputs, y, .. } = chain().kept();
            let (kept, kept_plan) = run_planned(&graph, y, &inputs, devices);
            println!("{name} on {device}\n{reused_plan}\n{kept_plan}");
            assert!(reused_plan.contains(fused_attributes), "{name}: not fused");
            assert!(
                !fits_in_place || reused_plan.contains(" in place"),
                "{name}: nothing takes another's memory"
            );
            assert!(!kept_plan.contains(fused_attributes), "{name}: fused although kept");
            assert_bits(&reused, &kept, &format!("{name} on {device}"));
        }
    }
}
