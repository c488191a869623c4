//! What kernels promise beyond closeness to the reference, to the bit: a sequence's result depends neither on
//! how its tokens are split over calls nor on its neighbours in the batch, a result in an operand's memory is
//! the same as one beside it, and a step of zero leaves the state alone.

use ssmgraph_kernels::{Memory, Place, Program, ProgramError, Step};
use ssmgraph_ops::case::{Arrangement, Values, fill};
use ssmgraph_ops::gated_delta_net::{GatedDeltaNet, Grouping};
use ssmgraph_ops::gated_norm::{Gate, GatedNorm, Order};
use ssmgraph_ops::l2_norm::{Form, L2Norm};
use ssmgraph_ops::{Cumsum, DType, HostTensor, Layout, Op, RmsNorm, SoftMax, SsmConv, SsmConvStep, SsmScan};
use std::ops::Range;
use std::sync::Arc;

fn place(tensor: &HostTensor) -> Place {
    let memory = Memory::zeroed(tensor.bytes().len()).unwrap();
    memory.write(0, tensor.bytes());
    Place { memory: Arc::new(memory), offset_bytes: 0, layout: *tensor.layout() }
}

fn read(place: &Place) -> HostTensor {
    let mut bytes = vec![0; place.layout.span_bytes()];
    place.memory.read(place.offset_bytes, &mut bytes);
    HostTensor::from_bytes(place.layout, bytes).unwrap()
}

fn try_run(op: &Op, tensors: &[HostTensor], reuse: Option<usize>) -> Result<Vec<HostTensor>, ProgramError> {
    let inputs: Vec<Place> = tensors.iter().map(place).collect();
    let layouts: Vec<Layout> = inputs.iter().map(|place| place.layout).collect();
    let mut results: Vec<Place> =
        op.infer(&layouts)?.into_iter().map(|layout| place(&HostTensor::filled(layout, 0xFF))).collect();
    if let Some(operand) = reuse {
        results[0] = inputs[operand].clone();
    }
    let step = Step { op: op.clone(), inputs, results: results.clone() };
    Program::new(vec![step], 3)?.run(None)?;
    Ok(results.iter().map(read).collect())
}

fn run(op: &Op, tensors: &[HostTensor]) -> Vec<HostTensor> {
    try_run(op, tensors, None).unwrap()
}

/// Indices `range` of one axis, as a packed copy.
fn cut(tensor: &HostTensor, axis: usize, range: Range<usize>) -> HostTensor {
    let mut ne = tensor.ne();
    ne[axis] = range.len();
    let layout = Layout::contiguous(tensor.layout().dtype, &ne).unwrap();
    fill(layout, |mut index| {
        index[axis] += range.start;
        tensor.get(index)
    })
}

/// Whether `parts` are the pieces of `whole` along `axis`, to the bit.
fn assert_joined(whole: &HostTensor, parts: &[HostTensor], axis: usize, what: &str) {
    let mut first = 0;
    for part in parts {
        let end = first + part.ne()[axis];
        assert!(
            cut(whole, axis, first..end).bytes() == part.bytes(),
            "{what}: {first}..{end} of axis {axis}"
        );
        first = end;
    }
    assert_eq!(first, whole.ne()[axis], "{what}");
}

/// Operands of a scan: s, x, dt, A, B, C, ids.
fn scan_operands(mamba1: bool, tokens: usize, sequences: usize) -> Vec<HostTensor> {
    let (states, head_dim, heads, groups) = if mamba1 { (16, 1, 37, 1) } else { (40, 21, 4, 2) };
    let mut values = Values::new(7);
    let mut tensor = |ne: &[usize], low, high| values.tensor(DType::F32, ne, low, high);
    vec![
        tensor(&[states, head_dim, heads, sequences], -1.0, 1.0),
        tensor(&[head_dim, heads, tokens, sequences], -1.0, 1.0),
        tensor(&[heads, tokens, sequences], -4.0, 2.0),
        tensor(&[if mamba1 { states } else { 1 }, heads], -4.0, -0.1),
        tensor(&[states, groups, tokens, sequences], -1.0, 1.0),
        tensor(&[states, groups, tokens, sequences], -1.0, 1.0),
        HostTensor::from_i32(&[sequences], &(0..sequences as i32).collect::<Vec<_>>()).unwrap(),
    ]
}

/// The axis of tokens in each operand of a scan.
const SCAN_TOKENS: [Option<usize>; 7] = [None, Some(2), Some(1), None, Some(2), Some(2), None];
/// The axis of sequences.
const SCAN_SEQUENCES: [Option<usize>; 7] = [Some(3), Some(3), Some(2), None, Some(3), Some(3), None];

#[test]
fn a_scan_may_be_split_over_calls_anywhere() {
    let op = Op::from(SsmScan { snapshots: 1 });
    for mamba1 in [true, false] {
        let operands = scan_operands(mamba1, 70, 2);
        let whole = run(&op, &operands);
        for at in [1, 3, 64, 69] {
            let part = |range: Range<usize>, start: &HostTensor| {
                let mut part: Vec<HostTensor> = operands
                    .iter()
                    .zip(SCAN_TOKENS)
                    .map(|(tensor, axis)| {
                        axis.map_or(tensor.clone(), |axis| cut(tensor, axis, range.clone()))
                    })
                    .collect();
                part[0] = start.clone();
                run(&op, &part)
            };
            let first = part(0..at, &operands[0]);
            let second = part(at..70, &first[1]);
            let what = format!("mamba1 {mamba1}, split at {at}");
            assert_joined(&whole[0], &[first[0].clone(), second[0].clone()], 2, &what);
            assert!(whole[1].bytes() == second[1].bytes(), "{what}: final state");
        }
    }
}

#[test]
fn a_scan_of_a_batch_is_each_sequence_alone() {
    let op = Op::from(SsmScan { snapshots: 1 });
    for mamba1 in [true, false] {
        let operands = scan_operands(mamba1, 5, 3);
        let whole = run(&op, &operands);
        let alone = |sequence: usize| {
            let mut part: Vec<HostTensor> = operands
                .iter()
                .zip(SCAN_SEQUENCES)
                .map(|(tensor, axis)| {
                    axis.map_or(tensor.clone(), |axis| cut(tensor, axis, sequence..sequence + 1))
                })
                .collect();
            part[6] = HostTensor::from_i32(&[1], &[0]).unwrap();
            run(&op, &part)
        };
        let parts: Vec<_> = (0..3).map(alone).collect();
        for (result, name) in [(0, "y"), (1, "state")] {
            let parts: Vec<_> = parts.iter().map(|part| part[result].clone()).collect();
            assert_joined(&whole[result], &parts, 3, &format!("mamba1 {mamba1}: {name}"));
        }
    }
}

#[test]
fn a_step_of_zero_keeps_the_state_whatever_the_input() {
    let op = Op::from(SsmScan { snapshots: 1 });
    for mamba1 in [true, false] {
        let mut operands = scan_operands(mamba1, 2, 1);
        operands[1] = fill(*operands[1].layout(), |index| [f64::NAN, f64::INFINITY][index[0] % 2]);
        operands[2] = fill(*operands[2].layout(), |_| f64::NEG_INFINITY);
        let results = run(&op, &operands);
        assert!(results[1].bytes() == operands[0].bytes(), "mamba1 {mamba1}");
        assert!(results[0].to_f64().iter().all(|y| y.is_finite()), "mamba1 {mamba1}");
    }
}

#[test]
fn a_start_row_outside_the_pool_is_an_error() {
    let op = Op::from(SsmScan { snapshots: 1 });
    for (mamba1, id) in [(true, 2), (false, -2), (true, i32::MIN), (false, i32::MAX)] {
        let mut operands = scan_operands(mamba1, 2, 2);
        operands[6] = HostTensor::from_i32(&[2], &[0, id]).unwrap();
        let refused = op.evaluate(&operands).unwrap_err();
        assert_eq!(try_run(&op, &operands, None).unwrap_err(), ProgramError::Op(refused));
    }
}

/// Operands of a delta net: state, q, k, v, g, beta, ids.
fn delta_operands(size: usize, vector_gate: bool, tokens: usize, sequences: usize) -> Vec<HostTensor> {
    let (key_heads, heads) = (2, 4);
    let mut values = Values::new(9);
    let mut tensor = |ne: &[usize], low, high| values.tensor(DType::F32, ne, low, high);
    let unit = 1.7 / (size as f64).sqrt();
    vec![
        tensor(&[size, size, heads, sequences], -1.0, 1.0),
        tensor(&[size, key_heads, tokens, sequences], -unit, unit),
        tensor(&[size, key_heads, tokens, sequences], -unit, unit),
        tensor(&[size, heads, tokens, sequences], -1.0, 1.0),
        tensor(&[if vector_gate { size } else { 1 }, heads, tokens, sequences], -2.0, 0.0),
        tensor(&[1, heads, tokens, sequences], 0.0, 1.0),
        HostTensor::from_i32(&[sequences], &(0..sequences as i32).collect::<Vec<_>>()).unwrap(),
    ]
}

fn delta_op(snapshots: usize) -> Op {
    GatedDeltaNet { grouping: Grouping::Interleaved, snapshots }.into()
}

#[test]
fn a_delta_net_may_be_split_over_calls_anywhere() {
    for (size, vector_gate) in [(16, false), (37, true), (64, false), (128, true), (300, false)] {
        let operands = delta_operands(size, vector_gate, 19, 2);
        let whole = run(&delta_op(19), &operands);
        for at in [1, 2, 16, 18] {
            let part = |range: Range<usize>, start: &HostTensor| {
                let mut part = operands.clone();
                part[1..6].iter_mut().for_each(|tensor| *tensor = cut(tensor, 2, range.clone()));
                part[0] = start.clone();
                run(&delta_op(1), &part)
            };
            let first = part(0..at, &operands[0]);
            let second = part(at..19, &first[1]);
            let what = format!("size {size}, split at {at}");
            assert_joined(&whole[0], &[first[0].clone(), second[0].clone()], 2, &what);
            assert!(whole[1].bytes() == second[1].bytes(), "{what}: final state");
            assert!(whole[20 - at].bytes() == first[1].bytes(), "{what}: state after {at} tokens");
        }
    }
}

#[test]
fn a_delta_net_of_a_batch_is_each_sequence_alone() {
    for (size, vector_gate) in [(16, false), (37, true), (128, false)] {
        let operands = delta_operands(size, vector_gate, 5, 3);
        let whole = run(&delta_op(1), &operands);
        let alone = |sequence: usize| {
            let mut part: Vec<HostTensor> =
                operands[..6].iter().map(|tensor| cut(tensor, 3, sequence..sequence + 1)).collect();
            part.push(HostTensor::from_i32(&[1], &[0]).unwrap());
            run(&delta_op(1), &part)
        };
        let parts: Vec<_> = (0..3).map(alone).collect();
        for result in [0, 1] {
            let parts: Vec<_> = parts.iter().map(|part| part[result].clone()).collect();
            assert_joined(&whole[result], &parts, 3, &format!("size {size}, result {result}"));
        }
    }
}

#[test]
fn a_strength_of_zero_keeps_a_state_without_decay() {
    for (size, vector_gate) in [(37, false), (128, true)] {
        let mut operands = delta_operands(size, vector_gate, 2, 1);
        for (operand, value) in [(2, f64::NAN), (3, f64::INFINITY), (4, 0.0), (5, 0.0)] {
            operands[operand] = fill(*operands[operand].layout(), |_| value);
        }
        // Zeros keep their signs, too.
        operands[0] = fill(*operands[0].layout(), |index| [0.0, -0.0, operands[0].get(index)][index[0] % 3]);
        let results = run(&delta_op(1), &operands);
        assert!(results[1].bytes() == operands[0].bytes(), "size {size}");
        assert!(results[0].to_f64().iter().all(|y| y.is_finite()), "size {size}");
    }
}

#[test]
fn a_convolution_may_be_split_over_calls_anywhere() {
    let mut values = Values::new(8);
    for width in [1, 3, 4] {
        let op = Op::from(SsmConv { bias: true, silu: true });
        let sx = values.tensor(DType::F32, &[width - 1 + 70, 130, 2], -1.0, 1.0);
        let w = values.tensor(DType::F32, &[width, 130], -1.0, 1.0);
        let bias = values.tensor(DType::F32, &[130], -1.0, 1.0);
        let whole = &run(&op, &[sx.clone(), w.clone(), bias.clone()])[0];
        for at in [1, 63, 65] {
            let part = |tokens: Range<usize>| {
                let window = cut(&sx, 0, tokens.start..tokens.end + width - 1);
                run(&op, &[window, w.clone(), bias.clone()])[0].clone()
            };
            assert_joined(whole, &[part(0..at), part(at..70)], 1, &format!("width {width}, split at {at}"));
        }
    }
}

/// Operands of a convolution with its window: s, x, w, bias, ids.
fn conv_step_operands(width: usize, channels: usize, tokens: usize, sequences: usize) -> Vec<HostTensor> {
    let mut values = Values::new(10);
    let mut tensor = |ne: &[usize]| values.tensor(DType::F32, ne, -1.0, 1.0);
    vec![
        tensor(&[width - 1, channels, 1, sequences]),
        tensor(&[channels, tokens, sequences]),
        tensor(&[width, channels]),
        tensor(&[channels]),
        HostTensor::from_i32(&[sequences], &(0..sequences as i32).collect::<Vec<_>>()).unwrap(),
    ]
}

#[test]
fn a_convolution_with_its_window_is_one_of_joined_inputs() {
    for (width, silu) in [1, 2, 3, 4, 5, 9].into_iter().zip([true, false].into_iter().cycle()) {
        for (channels, tokens) in [(130, 70), (19, 1), (64, 0)] {
            let operands = conv_step_operands(width, channels, tokens, 2);
            let [s, x, w, bias, _] = &operands[..] else { unreachable!("five operands") };
            let joined = Layout::contiguous(DType::F32, &[width - 1 + tokens, channels, 2]).unwrap();
            let joined = fill(joined, |[place, channel, sequence, _]| match place.checked_sub(width - 1) {
                Some(token) => x.get([channel, token, sequence, 0]),
                None => s.get([place, channel, 0, sequence]),
            });
            let stepped = run(&SsmConvStep { bias: true, silu, snapshots: 3 }.into(), &operands);
            let whole = run(&SsmConv { bias: true, silu }.into(), &[joined.clone(), w.clone(), bias.clone()]);
            let what = format!("width {width}, {channels} channels, {tokens} tokens");
            assert!(stepped[0].bytes() == whole[0].bytes(), "{what}");
            for (back, state) in stepped[1..].iter().enumerate() {
                let window = cut(&joined, 0, tokens - back..tokens - back + width - 1);
                assert!(window.bytes() == state.bytes(), "{what}: {back} tokens back");
            }
        }
    }
}

#[test]
fn a_convolution_with_its_window_may_be_split_over_calls_anywhere() {
    for width in [1, 3, 4, 9] {
        let op = Op::from(SsmConvStep { bias: true, silu: true, snapshots: 1 });
        let operands = conv_step_operands(width, 130, 70, 2);
        let whole = run(&op, &operands);
        for at in [1, 15, 16, 17, 63, 69] {
            let part = |state: &HostTensor, tokens: Range<usize>| {
                let mut part = operands.clone();
                (part[0], part[1]) = (state.clone(), cut(&operands[1], 1, tokens));
                run(&op, &part)
            };
            let first = part(&operands[0], 0..at);
            let second = part(&first[1], at..70);
            let what = format!("width {width}, split at {at}");
            assert_joined(&whole[0], &[first[0].clone(), second[0].clone()], 1, &what);
            assert!(whole[1].bytes() == second[1].bytes(), "{what}: final window");
        }
        let alone = |sequence: i32| {
            let mut part = operands.clone();
            part[1] = cut(&operands[1], 2, sequence as usize..sequence as usize + 1);
            part[4] = HostTensor::from_i32(&[1], &[sequence]).unwrap();
            run(&op, &part)[0].clone()
        };
        assert_joined(&whole[0], &[alone(0), alone(1)], 2, &format!("width {width}: each alone"));
    }
}

#[test]
fn a_window_outside_the_pool_is_an_error() {
    let op = Op::from(SsmConvStep { bias: true, silu: true, snapshots: 1 });
    for (width, id) in [(4, 2), (1, -2), (4, i32::MIN), (2, i32::MAX)] {
        let mut operands = conv_step_operands(width, 5, 2, 2);
        operands[4] = HostTensor::from_i32(&[2], &[0, id]).unwrap();
        let refused = op.evaluate(&operands).unwrap_err();
        assert_eq!(try_run(&op, &operands, None).unwrap_err(), ProgramError::Op(refused));
    }
}

#[test]
fn a_result_in_an_operands_memory_is_the_same() {
    let gated = |order| Op::from(GatedNorm { eps: 1e-5, group_size: 150, order, gate: Gate::Silu });
    let ops: [(Op, usize); 8] = [
        (RmsNorm { eps: 1e-5, weight: false }.into(), 0),
        (L2Norm { eps: 1e-5, form: Form::Max }.into(), 0),
        (SoftMax { scale: 0.5, mask: false }.into(), 0),
        (Cumsum.into(), 0),
        (gated(Order::NormThenGate), 0),
        (gated(Order::NormThenGate), 1),
        (gated(Order::GateThenNorm), 0),
        (gated(Order::GateThenNorm), 1),
    ];
    for (op, operand) in ops {
        for ne in [[300, 100, 1, 1], [90_000, 1, 1, 1]] {
            let mut values = Values::new(9);
            let mut inputs = vec![values.arranged(Arrangement::Contiguous, DType::F32, &ne, -2.0, 2.0)];
            if op.operands().len() == 3 {
                inputs.push(values.tensor(DType::F32, &ne, -2.0, 2.0));
                inputs.push(values.tensor(DType::F32, &[150], 0.5, 1.5));
            }
            let beside = try_run(&op, &inputs, None).unwrap();
            let within = try_run(&op, &inputs, Some(operand)).unwrap();
            assert!(beside[0].bytes() == within[0].bytes(), "{} over operand {operand}, {ne:?}", op.name());
        }
    }
}
