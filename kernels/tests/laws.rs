//! What kernels promise beyond closeness to the reference, to the bit: a sequence's result depends neither on
//! how its tokens are split over calls nor on its neighbours in the batch, a result in an operand's memory is
//! the same as one beside it, and a step of zero leaves the state alone.

use ssmgraph_kernels::{Forms, Memory, Place, Program, ProgramError, Step};
use ssmgraph_ops::case::{Arrangement, Values, fill};
use ssmgraph_ops::gated_delta_net::{GatedDeltaNet, Grouping};
use ssmgraph_ops::gated_norm::{Gate, GatedNorm, Order};
use ssmgraph_ops::l2_norm::{Form, L2Norm};
use ssmgraph_ops::rope::{Rope, RopeMode};
use ssmgraph_ops::{
    Attention, Cumsum, DType, HostTensor, Layout, MulMat, MulMatId, Norm, Op, RmsNorm, SoftMax, SsmConv,
    SsmConvStep, SsmScan,
};
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
    try_run_as(Forms::default(), op, tensors, reuse)
}

fn try_run_as(
    forms: Forms,
    op: &Op,
    tensors: &[HostTensor],
    reuse: Option<usize>,
) -> Result<Vec<HostTensor>, ProgramError> {
    let inputs: Vec<Place> = tensors.iter().map(place).collect();
    let layouts: Vec<Layout> = inputs.iter().map(|place| place.layout).collect();
    let mut results: Vec<Place> =
        op.infer(&layouts)?.into_iter().map(|layout| place(&HostTensor::filled(layout, 0xFF))).collect();
    if let Some(operand) = reuse {
        results[0] = inputs[operand].clone();
    }
    let step = Step { op: op.clone(), inputs, results: results.clone() };
    Program::new(vec![step], 3, forms)?.run(None)?;
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

/// The forms of the delta net; each obeys the laws among its own results.
const DELTA_FORMS: [Forms; 2] = [Forms::Named("two_pass"), Forms::Named("one_pass")];

fn run_delta(forms: Forms, snapshots: usize, tensors: &[HostTensor]) -> Vec<HostTensor> {
    let op = GatedDeltaNet { grouping: Grouping::Interleaved, snapshots }.into();
    try_run_as(forms, &op, tensors, None).unwrap()
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

#[test]
fn a_delta_net_may_be_split_over_calls_anywhere() {
    let sizes = [(16, false), (37, true), (64, false), (128, true), (300, false)];
    for (forms, (size, vector_gate)) in DELTA_FORMS.into_iter().flat_map(|forms| sizes.map(|s| (forms, s))) {
        let operands = delta_operands(size, vector_gate, 19, 2);
        let whole = run_delta(forms, 19, &operands);
        for at in [1, 2, 16, 18] {
            let part = |range: Range<usize>, start: &HostTensor| {
                let mut part = operands.clone();
                part[1..6].iter_mut().for_each(|tensor| *tensor = cut(tensor, 2, range.clone()));
                part[0] = start.clone();
                run_delta(forms, 1, &part)
            };
            let first = part(0..at, &operands[0]);
            let second = part(at..19, &first[1]);
            let what = format!("{forms:?}, size {size}, split at {at}");
            assert_joined(&whole[0], &[first[0].clone(), second[0].clone()], 2, &what);
            assert!(whole[1].bytes() == second[1].bytes(), "{what}: final state");
            assert!(whole[20 - at].bytes() == first[1].bytes(), "{what}: state after {at} tokens");
        }
    }
}

#[test]
fn a_delta_net_of_a_batch_is_each_sequence_alone() {
    let sizes = [(16, false), (37, true), (128, false)];
    for (forms, (size, vector_gate)) in DELTA_FORMS.into_iter().flat_map(|forms| sizes.map(|s| (forms, s))) {
        let operands = delta_operands(size, vector_gate, 5, 3);
        let whole = run_delta(forms, 1, &operands);
        let alone = |sequence: usize| {
            let mut part: Vec<HostTensor> =
                operands[..6].iter().map(|tensor| cut(tensor, 3, sequence..sequence + 1)).collect();
            part.push(HostTensor::from_i32(&[1], &[0]).unwrap());
            run_delta(forms, 1, &part)
        };
        let parts: Vec<_> = (0..3).map(alone).collect();
        for result in [0, 1] {
            let parts: Vec<_> = parts.iter().map(|part| part[result].clone()).collect();
            assert_joined(&whole[result], &parts, 3, &format!("{forms:?}, size {size}, result {result}"));
        }
    }
}

#[test]
fn a_strength_of_zero_keeps_a_state_without_decay() {
    let sizes = [(37, false), (128, true)];
    for (forms, (size, vector_gate)) in DELTA_FORMS.into_iter().flat_map(|forms| sizes.map(|s| (forms, s))) {
        let mut operands = delta_operands(size, vector_gate, 2, 1);
        for (operand, value) in [(2, f64::NAN), (3, f64::INFINITY), (4, 0.0), (5, 0.0)] {
            operands[operand] = fill(*operands[operand].layout(), |_| value);
        }
        // Zeros keep their signs, too.
        operands[0] = fill(*operands[0].layout(), |index| [0.0, -0.0, operands[0].get(index)][index[0] % 3]);
        let results = run_delta(forms, 1, &operands);
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
    let ops: [(Op, usize); 9] = [
        (RmsNorm { eps: 1e-5, weight: false }.into(), 0),
        (L2Norm { eps: 1e-5, form: Form::Max }.into(), 0),
        (Norm { eps: 1e-5 }.into(), 0),
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

/// Operands of attention: q, k_cache, v_cache, slots, past. Behind each sequence's last token stands NaN.
fn attention_operands(dtype: DType, tokens: usize, past: &[i32]) -> Vec<HostTensor> {
    let mut values = Values::new(11);
    let sequences = past.len();
    let q = values.tensor(DType::F32, &[72, 6, tokens, sequences], -1.0, 1.0);
    let positions = tokens + *past.iter().max().unwrap() as usize + 3;
    let mut cache = |row: usize| {
        let layout = Layout::contiguous(dtype, &[row, 2, positions, sequences]).unwrap();
        fill(layout, |[_, _, j, slot]| {
            let filled = past[sequences - 1 - slot] as usize + tokens;
            if j < filled { values.uniform(-1.0, 1.0) } else { f64::NAN }
        })
    };
    let (k, v) = (cache(72), cache(45));
    let slots: Vec<i32> = (0..sequences as i32).rev().collect();
    vec![q, k, v, ints(&slots), ints(past)]
}

fn ints(numbers: &[i32]) -> HostTensor {
    HostTensor::from_i32(&[numbers.len()], numbers).unwrap()
}

#[test]
fn attention_of_a_token_does_not_depend_on_others() {
    let op = Op::from(Attention { scale: 0.4 });
    for dtype in [DType::F32, DType::F16] {
        let past = [0, 130, 63];
        let operands = attention_operands(dtype, 70, &past);
        let whole = &run(&op, &operands)[0];
        for (sequence, &past) in past.iter().enumerate() {
            let mut alone = operands.clone();
            alone[0] = cut(&operands[0], 3, sequence..sequence + 1);
            alone[3] = ints(&[2 - sequence as i32]);
            let parts: Vec<HostTensor> = [0..1, 1..9, 9..64, 64..70]
                .into_iter()
                .map(|tokens: Range<usize>| {
                    let mut part = alone.clone();
                    part[0] = cut(&alone[0], 2, tokens.clone());
                    part[4] = ints(&[past + tokens.start as i32]);
                    run(&op, &part).remove(0)
                })
                .collect();
            let expected = cut(whole, 3, sequence..sequence + 1);
            assert_joined(&expected, &parts, 2, &format!("{dtype}, sequence {sequence}"));
            assert!(expected.to_f64().iter().all(|y| y.is_finite()), "{dtype}: something behind was seen");
        }
    }
}

#[test]
fn attention_names_the_first_slot_or_length_that_is_wrong() {
    let op = Op::from(Attention { scale: 1.0 });
    for (slots, past) in [
        ([0, 2], [0, 0]),
        ([0, -1], [9, 0]),
        ([1, 0], [-1, 9]),
        ([0, 1], [5, i32::MAX]),
        ([i32::MIN, 0], [0, 0]),
    ] {
        let mut operands = attention_operands(DType::F32, 2, &[5, 1]);
        (operands[3], operands[4]) = (ints(&slots), ints(&past));
        let refused = op.evaluate(&operands).unwrap_err();
        assert_eq!(try_run(&op, &operands, None).unwrap_err(), ProgramError::Op(refused));
    }
}

#[test]
fn a_row_of_a_picked_expert_is_that_of_its_matrix() {
    let types = [DType::F32, DType::F16, DType::BF16, DType::Q8_0];
    let ops = types.map(|dtype| (dtype, false)).into_iter().chain([(DType::Q8_0, true)]);
    for (dtype, quantize) in ops {
        for (k, rows) in [(96, 1), (1312, 3)] {
            let mut values = Values::new(k as u64);
            let a = values.tensor(dtype, &[k, 11, 5], -1.0, 1.0);
            let b = values.tensor(DType::F32, &[k, rows, 37], -1.0, 1.0);
            let picked: Vec<i32> = (0..3 * 37).map(|_| values.below(6) as i32 - 1).collect();
            let ids = HostTensor::from_i32(&[3, 37], &picked).unwrap();
            let y = &run(&MulMatId { quantize }.into(), &[a.clone(), b.clone(), ids])[0];
            for (row, &expert) in picked.iter().enumerate() {
                let (u, n) = (row % 3, row / 3);
                let got = cut(&cut(y, 1, u..u + 1), 2, n..n + 1);
                let what = format!("{dtype}, quantize {quantize}, {k}: expert {expert}");
                let Ok(expert) = usize::try_from(expert) else {
                    assert!(got.to_f64().iter().all(|&y| y == 0.0), "{what}");
                    continue;
                };
                let bytes = a.layout().nb[2];
                let matrix = a.bytes()[expert * bytes..(expert + 1) * bytes].to_vec();
                let matrix =
                    HostTensor::from_bytes(Layout::contiguous(dtype, &[k, 11]).unwrap(), matrix).unwrap();
                let from = if rows == 1 { 0 } else { u };
                let x = cut(&cut(&b, 2, n..n + 1), 1, from..from + 1);
                let want = run(&MulMat { quantize }.into(), &[matrix, x]);
                assert!(got.bytes() == want[0].bytes(), "{what}");
            }
        }
    }
}

#[test]
fn an_expert_that_is_not_there_is_an_error() {
    for quantize in [false, true] {
        let op = Op::from(MulMatId { quantize });
        let mut values = Values::new(12);
        let a = values.tensor(DType::Q8_0, &[320, 100, 3], -1.0, 1.0);
        let b = values.tensor(DType::F32, &[320, 2, 4], -1.0, 1.0);
        let ids = HostTensor::from_i32(&[2, 4], &[0, 1, 2, -1, 0, 3, -2, 1]).unwrap();
        let operands = [a, b, ids];
        let refused = op.evaluate(&operands).unwrap_err();
        assert_eq!(try_run(&op, &operands, None).unwrap_err(), ProgramError::Op(refused));
    }
}

#[test]
fn a_turned_token_depends_on_its_position_alone_and_may_stay_in_place() {
    let sections = RopeMode::Sections { sections: [11, 11, 10, 0], interleaved: true };
    for mode in [RopeMode::Neox, RopeMode::Normal, sections] {
        let op = Op::from(Rope { mode, n_rot: 64, freq_base: 1e6, freq_scale: 1.0 });
        let mut values = Values::new(13);
        let x = values.tensor(DType::F32, &[80, 5, 40, 2], -1.0, 1.0);
        let shape: &[usize] = if mode == sections { &[40, 4, 2] } else { &[40, 2] };
        let positions =
            fill(Layout::contiguous(DType::I32, shape).unwrap(), |_| values.below(100_000) as f64);
        let operands = [x.clone(), positions.clone()];
        let whole = run(&op, &operands).remove(0);
        let parts: Vec<HostTensor> = [0..1, 1..7, 7..40]
            .into_iter()
            .map(|tokens: Range<usize>| {
                run(&op, &[cut(&x, 2, tokens.clone()), cut(&positions, 0, tokens)]).remove(0)
            })
            .collect();
        assert_joined(&whole, &parts, 2, &format!("{mode:?}"));
        let within = try_run(&op, &operands, Some(0)).unwrap();
        assert!(within[0].bytes() == whole.bytes(), "{mode:?} in place");
    }
}
