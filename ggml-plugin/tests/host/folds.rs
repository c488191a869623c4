//! Parts that do not stand side by side: the convolution with its window, the gated norm, a state and its copy. Folded
//! where that is right, and right where it is not.

use crate::graph::{float, packed};
use crate::nodes::ramp;
use crate::plugin::Host;
use crate::sketch::{Done, Id, Sketch};
use crate::{Add, Hosts};
use ssmgraph::ops::gated_delta_net::{GatedDeltaNet, Grouping};
use ssmgraph::ops::gated_norm::{Gate, GatedNorm, Order};
use ssmgraph::ops::{DType, HostTensor, Layout, Op, SsmConvStep, SsmScan, Tolerance};
use ssmgraph_ggml::abi;

const EPS: f32 = 1e-5;
const TAPS: usize = 4;
const CHANNELS: usize = 3;
const WINDOW: usize = (TAPS - 1) * CHANNELS;
/// Numbers of unary functions.
pub const SILU: i32 = 10;
pub const SIGMOID: i32 = 7;

pub fn add(add: Add<'_>) {
    add("folds::convolutions", Hosts::All, convolutions);
    add("folds::convolution_read_elsewhere", Hosts::All, convolution_read_elsewhere);
    add("folds::convolution_copies", Hosts::All, convolution_copies);
    add("folds::convolution_memory", Hosts::All, convolution_memory);
    add("folds::gated_norms", Hosts::All, gated_norms);
    add("folds::gated_norm_read_elsewhere", Hosts::All, gated_norm_read_elsewhere);
    add("folds::gated_norm_memory", Hosts::All, gated_norm_memory);
    add("folds::gated_norm_in_place", Hosts::All, gated_norm_in_place);
    add("folds::delta_net_states", Hosts::All, delta_net_states);
    add("folds::scan_states", Hosts::All, scan_states);
    add("folds::state_read_elsewhere", Hosts::All, state_read_elsewhere);
    add("folds::state_memory", Hosts::All, state_memory);
}

/// Values that differ from leaf to leaf.
pub fn tensor(ne: &[usize], scale: f32, shift: f32) -> HostTensor {
    let values: Vec<f32> = ramp(ne).iter().map(|value| value * scale + shift).collect();
    HostTensor::from_f32(ne, &values).expect("as many")
}

fn evaluate(op: impl Into<Op>, inputs: &[HostTensor]) -> Vec<HostTensor> {
    op.into().evaluate(inputs).expect("a right case")
}

/// Computes in the order of drawing; places are apart but for these, which lie over others at a distance.
fn check(host: &Host, sketch: &Sketch, over: &[(Id, Id, usize)], steps: u64) -> Done {
    check_in(host, sketch, &sketch.order(), over, steps)
}

fn check_in(host: &Host, sketch: &Sketch, order: &[Id], over: &[(Id, Id, usize)], steps: u64) -> Done {
    let mut placing = sketch.apart();
    for &(id, other, distance) in over {
        placing.starts[id] = placing.starts[other] + distance;
        placing.bytes = placing.bytes.max(placing.starts[id] + sketch.values[id].layout.span_bytes());
    }
    let done = sketch.check(host, order, &placing, Tolerance::F32_SUM);
    assert_eq!(done.steps, steps);
    done
}

/// A convolution with its window, as llama.cpp draws it.
struct Convolution {
    sketch: Sketch,
    inputs: Vec<HostTensor>,
    cache: Id,
    window: Id,
    tokens: Id,
    weight: Id,
    joined: Id,
    last: Id,
    copy: Id,
    conv: Id,
    y: Id,
}

impl Convolution {
    /// The copy stands before the convolution.
    fn new(tokens_count: usize, sequences: usize, bias: bool, silu: bool) -> Convolution {
        let ne = [CHANNELS, tokens_count, sequences];
        let mut inputs = vec![
            tensor(&[TAPS - 1, CHANNELS, 1, sequences], 0.9, 0.1),
            tensor(&ne, 0.7, -0.2),
            tensor(&[TAPS, CHANNELS], 0.4, 0.05),
        ];
        if bias {
            inputs.push(tensor(&[CHANNELS], 0.3, 0.2));
        }
        let mut sketch = Sketch::default();
        let window = sketch.leaf(tensor(&[TAPS - 1, CHANNELS, sequences], 0.9, 0.1));
        let tokens = sketch.leaf(inputs[1].clone());
        let weight = sketch.leaf(inputs[2].clone());
        // Two rows of the cache more than there are sequences.
        let cache = sketch.cache(tensor(&[WINDOW * (sequences + 2)], 5.0, 0.0));
        let turned = sketch.transpose(tokens);
        let columns = TAPS - 1 + tokens_count;
        let whole = packed(&[columns, CHANNELS, sequences]);
        let joined = sketch.node(abi::OP_CONCAT, &[0], &[window, turned], &whole);
        let shown = Layout { ne: [TAPS - 1, CHANNELS, sequences, 1], ..whole };
        let last = sketch.view(joined, &shown, 4 * tokens_count);
        let target = sketch.view(cache, &packed(&[WINDOW * sequences]), 4 * WINDOW);
        let copy = sketch.copy(last, target);
        let conv = sketch.node(abi::OP_SSM_CONV, &[], &[joined, weight], &packed(&ne));
        let mut y = conv;
        if bias {
            let leaf = sketch.leaf(inputs[3].clone());
            y = sketch.node(abi::OP_ADD, &[], &[y, leaf], &packed(&ne));
        }
        if silu {
            y = sketch.node(abi::OP_UNARY, &[SILU], &[y], &packed(&ne));
        }
        sketch.output(y);
        let ids: Vec<i32> = (0..sequences as i32).collect();
        inputs.push(HostTensor::from_i32(&[sequences], &ids).expect("as many"));
        Convolution { sketch, inputs, cache, window, tokens, weight, joined, last, copy, conv, y }
    }

    /// The order with the copy behind everything else.
    fn copy_last(&self) -> Vec<Id> {
        let mut order = self.sketch.order();
        order.retain(|&id| id != self.copy);
        order.push(self.copy);
        order
    }

    /// Checks in both orders.
    fn check(&self, host: &Host, over: &[(Id, Id, usize)], steps: u64) {
        check(host, &self.sketch, over, steps);
        check_in(host, &self.sketch, &self.copy_last(), over, steps);
    }
}

fn convolutions(host: Host) {
    for (bias, silu) in [(false, false), (false, true), (true, false), (true, true)] {
        for (tokens, sequences) in [(1, 1), (2, 3), (7, 1), (1, 3), (7, 3), (2, 1)] {
            let drawn = Convolution::new(tokens, sequences, bias, silu);
            let want = evaluate(SsmConvStep { bias, silu, snapshots: 1 }, &drawn.inputs);
            for order in [drawn.sketch.order(), drawn.copy_last()] {
                let done = check_in(&host, &drawn.sketch, &order, &[], 1);
                assert_eq!(Tolerance::F32_SUM.mismatch(&done.values[drawn.y], &want[0]), None);
                let before = &drawn.sketch.watched().compute(&host, &order, &drawn.sketch.apart());
                assert_eq!(done.values[drawn.cache].bytes(), before.values[drawn.cache].bytes());
                assert_eq!(
                    done.values[drawn.cache].bytes()[4 * WINDOW..][..4 * WINDOW * sequences],
                    *want[1].bytes()
                );
                // What was joined was never written.
                assert!(done.values[drawn.joined].to_f64().iter().all(|value| value.is_nan()));
            }
        }
    }
}

fn convolution_read_elsewhere(host: Host) {
    // Each change with the steps that are left: nothing is folded but what is no part of the window.
    type Change = fn(&mut Convolution);
    let changes: [Change; 6] = [
        |drawn| drawn.sketch.output(drawn.joined),
        |drawn| drawn.sketch.output(drawn.last),
        |drawn| {
            let layout = drawn.sketch.values[drawn.joined].layout;
            let other = drawn.sketch.node(abi::OP_CONT, &[], &[drawn.joined], &layout);
            drawn.sketch.output(other);
        },
        |drawn| {
            let layout = drawn.sketch.values[drawn.last].layout.to_contiguous();
            let other = drawn.sketch.node(abi::OP_CONT, &[], &[drawn.last], &layout);
            drawn.sketch.output(other);
        },
        |drawn| {
            let part = drawn.sketch.view(drawn.joined, &packed(&[2]), 4);
            let other = drawn.sketch.node(abi::OP_CONT, &[], &[part], &packed(&[2]));
            drawn.sketch.output(other);
        },
        |drawn| {
            let part = drawn.sketch.view(drawn.last, &packed(&[2]), 0);
            let other = drawn.sketch.node(abi::OP_CONT, &[], &[part], &packed(&[2]));
            drawn.sketch.output(other);
        },
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut drawn = Convolution::new(2, 3, true, true);
        change(&mut drawn);
        // Concat, copy, convolution with bias and SiLU, and the other reader where there is one.
        drawn.check(&host, &[], 3 + u64::from(index >= 2));
    }
    // A reader in a part of the graph that is not wanted counts as well.
    let mut drawn = Convolution::new(2, 3, false, false);
    let other = drawn.sketch.node(abi::OP_CONT, &[], &[drawn.joined], &packed(&[5, CHANNELS, 3]));
    drawn.sketch.values[other].is_wanted = false;
    drawn.check(&host, &[], 3);
    // The convolution's own result may be read by many.
    let mut drawn = Convolution::new(2, 3, false, true);
    drawn.sketch.output(drawn.conv);
    drawn.check(&host, &[], 2);
}

/// Copies that are of another kind.
fn convolution_copies(host: Host) {
    let to = |layout: &Layout, from_start: usize| {
        let mut drawn = Convolution::new(2, 1, false, false);
        let target = drawn.sketch.values[drawn.copy].sources[1];
        drawn.sketch.values[target].layout = *layout;
        drawn.sketch.values[drawn.copy].layout = *layout;
        let last = drawn.last;
        drawn.sketch.values[last].layout.ne[1] = layout.elements() / (TAPS - 1);
        drawn.sketch.shift(last, from_start);
        drawn
    };
    let whole = packed(&[TAPS - 1, CHANNELS]);
    to(&whole, 0).check(&host, &[], 1);
    // Another type, gaps between rows, other columns, fewer rows.
    to(&Layout::contiguous(DType::F16, &[WINDOW]).expect("fits"), 0).check(&host, &[], 3);
    let gaps = Layout::strided(DType::F32, [TAPS - 1, CHANNELS, 1, 1], [4, 16, 48, 48]).expect("fits");
    to(&gaps, 0).check(&host, &[], 3);
    to(&whole, 4).check(&host, &[], 3);
    to(&packed(&[TAPS - 1, CHANNELS - 1]), 0).check(&host, &[], 3);
}

/// Memory that the host has given to others.
fn convolution_memory(host: Host) {
    for sequences in [1, 3] {
        let new = || Convolution::new(2, sequences, false, false);
        // A call in between writes over the window, the tokens; behind the convolution it may.
        for operand in 0..2 {
            for (is_before, steps) in [(true, 4), (false, 2)] {
                let mut drawn = new();
                let layout = packed(&[4]);
                let x = drawn.sketch.leaf(tensor(&[4], 1.0, 0.5));
                let other = drawn.sketch.node(abi::OP_SCALE, &[float(2.0), 0], &[x], &layout);
                drawn.sketch.output(other);
                let mut order = drawn.sketch.order();
                if is_before {
                    order.retain(|&id| id != other);
                    let place = order.iter().position(|&id| id == drawn.conv).expect("is there");
                    order.insert(place, other);
                }
                let under = [drawn.window, drawn.tokens][operand];
                check_in(&host, &drawn.sketch, &order, &[(other, under, 8)], steps);
            }
        }
        // The result over what the window was read from: by way of other memory.
        for under in [new().window, new().tokens] {
            let drawn = new();
            drawn.check(&host, &[(drawn.conv, under, 0)], 2);
            drawn.check(&host, &[(drawn.conv, under, 8)], 2);
        }
        // The window lies in its own target, or beside it.
        for (rows, steps) in [(1, 2), (2, if sequences == 1 { 1 } else { 2 })] {
            let mut drawn = new();
            let (cache, window) = (drawn.cache, drawn.window);
            drawn.sketch.place_in(window, cache, 4 * WINDOW * rows);
            drawn.check(&host, &[], steps);
        }
        // The taps are what the copy leaves.
        let mut drawn = new();
        let (cache, weight) = (drawn.cache, drawn.weight);
        drawn.sketch.place_in(weight, cache, 4 * WINDOW - 8);
        drawn.check(&host, &[], 3);
        // A call between copy and convolution reads the target, writes it.
        for is_reader in [true, false] {
            let mut drawn = new();
            let row = drawn.sketch.view(drawn.cache, &packed(&[4]), 4 * WINDOW);
            let other = match is_reader {
                true => drawn.sketch.node(abi::OP_CONT, &[], &[row], &packed(&[4])),
                false => {
                    let layout = packed(&[4]);
                    drawn.sketch.node_in(row, 0, abi::OP_SCALE, &[float(2.0), 0], &[row], &layout)
                }
            };
            drawn.sketch.output(other);
            for is_copy_first in [true, false] {
                let mut order = drawn.sketch.order();
                order.retain(|&id| ![other, row, drawn.copy].contains(&id));
                let (first, second) = if is_copy_first { (drawn.copy, other) } else { (other, drawn.copy) };
                let place = order.iter().position(|&id| id == drawn.conv).expect("is there");
                let place = if is_copy_first { place } else { place + 1 };
                order.splice(place..place, [row, first, second]);
                check_in(&host, &drawn.sketch, &order, &[], 4);
            }
        }
    }
    result_over_target(&host);
}

/// The target is memory of the graph: the convolution's result lies there before the copy, or after it.
fn result_over_target(host: &Host) {
    let mut drawn = Convolution::new(2, 1, false, false);
    let target = drawn.sketch.values[drawn.copy].sources[1];
    let (y, copy) = (drawn.y, drawn.copy);
    drawn.sketch.free(target);
    drawn.sketch.place_in(copy, target, 0);
    check(host, &drawn.sketch, &[(target, y, 0)], 3);
    drawn.sketch.values[y].is_output = false;
    drawn.sketch.output(copy);
    let order = drawn.copy_last();
    check_in(host, &drawn.sketch, &order, &[(target, y, 0)], 3);
}

/// rms_norm(x) · w, times an activation of z.
struct Gated {
    sketch: Sketch,
    inputs: Vec<HostTensor>,
    x: Id,
    z: Id,
    weight: Id,
    norm: Id,
    scaled: Id,
    gate: Id,
    y: Id,
}

impl Gated {
    fn new(ne: &[usize], function: i32, gate_first: bool) -> Gated {
        let inputs = vec![tensor(ne, 1.0, 0.3), tensor(ne, -0.8, 0.1), tensor(&ne[..1], 0.5, 1.0)];
        let mut sketch = Sketch::default();
        let leaves: Vec<Id> = inputs.iter().map(|input| sketch.leaf(input.clone())).collect();
        let (x, z, weight) = (leaves[0], leaves[1], leaves[2]);
        let layout = packed(ne);
        let early = gate_first.then(|| sketch.node(abi::OP_UNARY, &[function], &[z], &layout));
        let norm = sketch.node(abi::OP_RMS_NORM, &[float(EPS)], &[x], &layout);
        let scaled = sketch.node(abi::OP_MUL, &[], &[norm, weight], &layout);
        let gate = early.unwrap_or_else(|| sketch.node(abi::OP_UNARY, &[function], &[z], &layout));
        let both = if gate_first { [gate, scaled] } else { [scaled, gate] };
        let y = sketch.node(abi::OP_MUL, &[], &both, &layout);
        sketch.output(y);
        Gated { sketch, inputs, x, z, weight, norm, scaled, gate, y }
    }
}

fn gated_norms(host: Host) {
    for (function, gate) in [(SILU, Gate::Silu), (SIGMOID, Gate::Sigmoid)] {
        for ne in [&[8usize][..], &[8, 3], &[4, 2, 7, 3]] {
            for gate_first in [false, true] {
                let drawn = Gated::new(ne, function, gate_first);
                let op = GatedNorm { eps: EPS, group_size: ne[0], order: Order::NormThenGate, gate };
                let done = check(&host, &drawn.sketch, &[], 1);
                let want = &evaluate(op, &drawn.inputs)[0];
                assert_eq!(Tolerance::F32_SUM.mismatch(&done.values[drawn.y], want), None);
                for id in [drawn.norm, drawn.scaled, drawn.gate] {
                    assert!(done.values[id].to_f64().iter().all(|value| value.is_nan()));
                }
            }
        }
    }
    // Other functions, and no weight.
    check(&host, &Gated::new(&[8, 3], 4, false).sketch, &[], 3);
    let mut drawn = Gated::new(&[8, 3], SILU, false);
    let (norm, scaled, y) = (drawn.norm, drawn.scaled, drawn.y);
    drawn.sketch.values[scaled].is_wanted = false;
    drawn.sketch.values[y].sources[0] = norm;
    check(&host, &drawn.sketch, &[], 3);
}

fn gated_norm_read_elsewhere(host: Host) {
    for gate_first in [false, true] {
        let new = || Gated::new(&[8, 3], SILU, gate_first);
        let drawn = new();
        // Norm, weight, gate and product: which of them are watched, and what is left.
        for (id, steps) in [(drawn.norm, 4), (drawn.scaled, 3), (drawn.gate, 3)] {
            let mut watched = new();
            watched.sketch.output(id);
            check(&host, &watched.sketch, &[], steps);
            let mut read = new();
            let other = read.sketch.node(abi::OP_ADD, &[], &[id, id], &packed(&[8, 3]));
            read.sketch.output(other);
            check(&host, &read.sketch, &[], steps + 1);
            let mut shown = new();
            let view = shown.sketch.view(id, &packed(&[8]), 32);
            let other = shown.sketch.node(abi::OP_CONT, &[], &[view], &packed(&[8]));
            shown.sketch.output(other);
            check(&host, &shown.sketch, &[], steps + 1);
        }
    }
}

/// A call between the parts writes over what they read; the result lies over an operand.
fn gated_norm_memory(host: Host) {
    for gate_first in [false, true] {
        let new = || Gated::new(&[8, 3], SILU, gate_first);
        let known = new();
        for (under, before) in
            [(known.x, known.scaled), (known.z, known.y), (known.weight, known.y), (known.x, known.y)]
        {
            let mut drawn = new();
            let leaf = drawn.sketch.leaf(tensor(&[8], 3.0, 0.0));
            let other = drawn.sketch.node(abi::OP_SCALE, &[float(2.0), 0], &[leaf], &packed(&[8]));
            drawn.sketch.output(other);
            let mut order = drawn.sketch.order();
            order.retain(|&id| id != other);
            let place = order.iter().position(|&id| id == before).expect("is there");
            order.insert(place, other);
            // With x gone before the weight comes, not even these two are one.
            let steps = if before == known.scaled { 5 } else { 4 };
            check_in(&host, &drawn.sketch, &order, &[(other, under, 0)], steps);
        }
        for (under, distance, steps) in
            [(known.x, 0, 1), (known.z, 0, 1), (known.x, 8, 2), (known.z, 8, 2), (known.weight, 0, 2)]
        {
            let drawn = new();
            check(&host, &drawn.sketch, &[(drawn.y, under, distance)], steps);
        }
    }
}

/// A norm, or a gate, in the bytes of what it reads: whoever reads these bytes later sees it.
fn gated_norm_in_place(host: Host) {
    let known = Gated::new(&[8, 3], SILU, false);
    for (part, under, steps) in
        [(known.norm, known.x, 5), (known.scaled, known.x, 4), (known.gate, known.z, 4)]
    {
        let mut drawn = Gated::new(&[8, 3], SILU, false);
        drawn.sketch.values[part].root = under;
        let other = drawn.sketch.node(abi::OP_CONT, &[], &[under], &packed(&[8, 3]));
        drawn.sketch.output(other);
        check(&host, &drawn.sketch, &[], steps);
    }
}

/// A recurrent node whose states are copied to rows of a cache.
struct Stateful {
    sketch: Sketch,
    inputs: Vec<HostTensor>,
    /// As the sketch has them, in our order.
    leaves: Vec<Id>,
    op: Op,
    cache: Id,
    packed: Id,
    y: Id,
    shown: Vec<Id>,
    copies: Vec<Id>,
    state_elements: usize,
    y_elements: usize,
}

impl Stateful {
    fn of(op: Op, inputs: Vec<HostTensor>, number: i32, order: &[usize], snapshots: usize) -> Stateful {
        let results = evaluate(op.clone(), &inputs);
        let (y_elements, state_elements) = (results[0].layout().elements(), results[1].layout().elements());
        let mut sketch = Sketch::default();
        let leaves: Vec<Id> = inputs.iter().map(|input| sketch.leaf(input.clone())).collect();
        let cache = sketch.cache(tensor(&[state_elements * (snapshots + 2)], 4.0, 0.0));
        let sources: Vec<Id> = order.iter().map(|&index| leaves[index]).collect();
        let whole = packed(&[y_elements + snapshots * state_elements]);
        let packed_result = sketch.node(number, &[snapshots as i32], &sources, &whole);
        let view = sketch.view(packed_result, &packed(&[y_elements]), 0);
        let (mut shown, mut copies) = (Vec::new(), Vec::new());
        for index in 0..results.len() - 1 {
            let state = packed(&[state_elements]);
            let from = sketch.view(packed_result, &state, 4 * (y_elements + index * state_elements));
            let to = sketch.view(cache, &state, 4 * (1 + index) * state_elements);
            shown.push(from);
            copies.push(sketch.copy(from, to));
        }
        let y = sketch.node(abi::OP_CONT, &[], &[view], &packed(&[y_elements]));
        sketch.output(y);
        let packed = packed_result;
        Stateful { sketch, inputs, leaves, op, cache, packed, y, shown, copies, state_elements, y_elements }
    }

    fn delta_net(tokens: usize, sequences: usize, snapshots: usize) -> Stateful {
        let inputs = vec![
            tensor(&[2, 2, 2, sequences], 0.1, 0.0),
            tensor(&[2, 2, tokens, sequences], 0.5, 0.1),
            tensor(&[2, 2, tokens, sequences], 0.3, -0.1),
            tensor(&[2, 2, tokens, sequences], 1.0, 0.0),
            tensor(&[1, 2, tokens, sequences], 0.1, -0.5),
            tensor(&[1, 2, tokens, sequences], 0.1, 0.5),
            ids(sequences),
        ];
        let op = GatedDeltaNet { grouping: Grouping::Tiled, snapshots };
        Stateful::of(op.into(), inputs, abi::OP_GATED_DELTA_NET, &[1, 2, 3, 4, 5, 0], snapshots)
    }

    fn scan(tokens: usize, sequences: usize, snapshots: usize) -> Stateful {
        let inputs = vec![
            tensor(&[4, 3, 2, sequences], 0.2, 0.0),
            tensor(&[3, 2, tokens, sequences], 1.0, 0.0),
            tensor(&[2, tokens, sequences], 0.5, 0.0),
            tensor(&[1, 2], 0.1, -0.5),
            tensor(&[4, 1, tokens, sequences], 0.5, 0.0),
            tensor(&[4, 1, tokens, sequences], 0.5, 0.1),
            ids(sequences),
        ];
        Stateful::of(
            SsmScan { snapshots }.into(),
            inputs,
            abi::OP_SSM_SCAN,
            &[0, 1, 2, 3, 4, 5, 6],
            snapshots,
        )
    }

    /// Everything is folded, and right to the bit.
    fn check_folded(&self, host: &Host) {
        let done = check(host, &self.sketch, &[], 2);
        let plain = self.sketch.watched().compute(host, &self.sketch.order(), &self.sketch.apart());
        assert_eq!(done.values[self.cache].bytes(), plain.values[self.cache].bytes());
        assert_eq!(done.values[self.y].bytes(), plain.values[self.y].bytes());
        let want = evaluate(self.op.clone(), &self.inputs);
        for (index, state) in want[1..].iter().enumerate() {
            let start = 4 * (1 + index) * self.state_elements;
            let got = done.values[self.cache].bytes()[start..][..4 * self.state_elements].to_vec();
            let got = HostTensor::from_bytes(*state.layout(), got).expect("as many");
            assert_eq!(Tolerance::F32_SUM.mismatch(&got, state), None);
        }
        let states = &done.values[self.packed].to_f64()[self.y_elements..];
        assert!(states.iter().all(|value| value.is_nan()), "states were written twice");
    }
}

fn ids(sequences: usize) -> HostTensor {
    let ids: Vec<i32> = (0..sequences as i32).collect();
    HostTensor::from_i32(&[sequences], &ids).expect("as many")
}

fn delta_net_states(host: Host) {
    for (tokens, sequences, snapshots) in [(1, 1, 1), (2, 3, 1), (7, 1, 1), (1, 3, 3), (2, 1, 3), (7, 3, 3)] {
        Stateful::delta_net(tokens, sequences, snapshots).check_folded(&host);
    }
}

fn scan_states(host: Host) {
    for (tokens, sequences, snapshots) in [(1, 1, 1), (2, 3, 1), (7, 1, 1), (1, 3, 3), (2, 1, 3), (7, 3, 3)] {
        Stateful::scan(tokens, sequences, snapshots).check_folded(&host);
    }
}

fn state_read_elsewhere(host: Host) {
    let new = || Stateful::delta_net(2, 1, 1);
    let read = |drawn: &mut Stateful, of: Id, offset: usize| {
        let view = drawn.sketch.view(of, &packed(&[4]), offset);
        let other = drawn.sketch.node(abi::OP_CONT, &[], &[view], &packed(&[4]));
        drawn.sketch.output(other);
    };
    for watched in [new().packed, new().shown[0]] {
        let mut drawn = new();
        drawn.sketch.output(watched);
        check(&host, &drawn.sketch, &[], 3);
    }
    // Another view of the state, a view of the view, one of the result that reaches into the state from elsewhere.
    let mut drawn = new();
    let (whole, shown, start) = (drawn.packed, drawn.shown[0], 4 * drawn.y_elements);
    read(&mut drawn, whole, start);
    check(&host, &drawn.sketch, &[], 4);
    let mut drawn = new();
    read(&mut drawn, shown, 8);
    check(&host, &drawn.sketch, &[], 4);
    let mut drawn = new();
    let first = drawn.sketch.view(whole, &packed(&[2]), 0);
    read(&mut drawn, first, start);
    check(&host, &drawn.sketch, &[], 4);
    // Another view of y is none of the state's business.
    let mut drawn = new();
    read(&mut drawn, whole, 0);
    check(&host, &drawn.sketch, &[], 3);
    // The whole result is read.
    let mut drawn = new();
    let layout = drawn.sketch.values[whole].layout;
    let other = drawn.sketch.node(abi::OP_CONT, &[], &[whole], &layout);
    drawn.sketch.output(other);
    check(&host, &drawn.sketch, &[], 4);
}

fn state_memory(host: Host) {
    let new = || Stateful::delta_net(2, 1, 1);
    // The state lies in its target, the target over another operand or over y.
    for operand in [0, 3] {
        let mut drawn = new();
        let (leaf, cache) = (drawn.leaves[operand], drawn.cache);
        drawn.sketch.place_in(leaf, cache, 4 * drawn.state_elements);
        check(&host, &drawn.sketch, &[], 3);
    }
    // A call between node and copy reads the target, writes it.
    for is_reader in [true, false] {
        let mut drawn = new();
        let row = drawn.sketch.view(drawn.cache, &packed(&[4]), 4 * drawn.state_elements);
        let layout = packed(&[4]);
        let other = match is_reader {
            true => drawn.sketch.node(abi::OP_CONT, &[], &[row], &layout),
            false => drawn.sketch.node_in(row, 0, abi::OP_SCALE, &[float(2.0), 0], &[row], &layout),
        };
        drawn.sketch.output(other);
        let mut order = drawn.sketch.order();
        order.retain(|&id| id != drawn.copies[0]);
        order.push(drawn.copies[0]);
        check_in(&host, &drawn.sketch, &order, &[], 4);
        check(&host, &drawn.sketch, &[], 3);
    }
    // Two states with one target: the copy that comes last wins.
    let mut drawn = Stateful::delta_net(3, 1, 2);
    let copies = drawn.copies.clone();
    let targets = copies.iter().map(|&copy| drawn.sketch.values[copy].sources[1]).collect::<Vec<_>>();
    for id in [copies[1], targets[1]] {
        drawn.sketch.place_in(id, targets[0], 0);
    }
    check(&host, &drawn.sketch, &[], 3);
    // A target with another type.
    let mut drawn = new();
    let half = Layout::contiguous(DType::F16, &[drawn.state_elements]).expect("fits");
    let copy = drawn.copies[0];
    for id in [copy, drawn.sketch.values[copy].sources[1]] {
        drawn.sketch.values[id].layout = half;
    }
    check(&host, &drawn.sketch, &[], 3);
}
