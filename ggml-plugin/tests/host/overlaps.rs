//! Results over operands: the host decides where results lie, and its allocator reuses what nobody reads any more.

use crate::graph::{Arena, Graph, Node, address_of, edit, float, layout_of, packed, set_op};
use crate::nodes::{Form, expected, forms, ramp, words, wrong};
use crate::plugin::Host;
use crate::{Add, Hosts};
use ssmgraph::ops::{Case, OpKind};
use ssmgraph_ggml::abi;

/// Cases with more elements say no more.
const ELEMENTS_MAX: usize = 600;
/// And on the emulator they are slow.
const EMULATED_ELEMENTS_MAX: usize = 100;

pub fn add(add: Add<'_>) {
    add("overlaps::every_operand", Hosts::All, every_operand);
    add("overlaps::into_a_state", Hosts::All, into_a_state);
    add("overlaps::chain_in_place", Hosts::All, chain_in_place);
    add("overlaps::rows_of_their_own_table", Hosts::OwnAndShared, rows_of_their_own_table);
}

/// The result at the start of an operand, a little behind it, and a little before it.
fn every_operand(host: Host) {
    let elements_max = if host.setting.cuda { EMULATED_ELEMENTS_MAX } else { ELEMENTS_MAX };
    let mut failures = Vec::new();
    let mut count = 0;
    for case in OpKind::ALL.iter().flat_map(|kind| kind.cases()) {
        let elements: usize = case.inputs.iter().map(|input| input.layout().elements()).sum();
        if elements > elements_max {
            continue;
        }
        for form in forms(&case).into_iter().filter(|form| form.over.is_none()) {
            for operand in 0..form.inputs.len() {
                for distance in [0, 8, -8] {
                    count += 1;
                    let failure = over(&host, &case, &form, operand, distance);
                    failures.extend(
                        failure.map(|what| format!("{} over {operand}{distance:+}: {what}", words(&case))),
                    );
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures of {count}:\n{}", failures.len(), failures.join("\n"));
}

/// What goes wrong with the result `distance` bytes from an operand; `None` when nothing does.
fn over(host: &Host, case: &Case, form: &Form, operand: usize, distance: isize) -> Option<String> {
    let device = host.device();
    let mut arena = Arena::new(device, 2 * form.bytes() + 1024);
    let leaves: Vec<Node> = form
        .inputs
        .iter()
        .enumerate()
        .map(|(index, input)| {
            if index != operand {
                return arena.leaf(input);
            }
            let bytes = input.bytes().len().max(form.result.span_bytes());
            let start = arena.room(bytes + 32) + 16;
            let leaf = arena.at(start, input.layout());
            arena.write(leaf, input.bytes());
            leaf
        })
        .collect();
    let address = address_of(leaves[operand]).checked_add_signed(distance).expect("inside the arena");
    let node = form.node_at(&arena, &leaves, address);
    if !device.supports(node) {
        return None;
    }
    let before = arena.dump();
    if device.stream().compute(&Graph::of(&[node])) != abi::STATUS_SUCCESS {
        return Some(host.lines().lines().last().unwrap_or_default().to_owned());
    }
    let failure = wrong(case, &arena.read(node), &expected(case));
    arena.only_changed(before, &[node]);
    failure
}

/// A row of a larger state: a copy into a view, a product in place, rows by number.
fn into_a_state(host: Host) {
    let device = host.device();
    let mut arena = Arena::new(device, 1 << 14);
    let state = arena.floats(&[4, 3], &[1.0; 12]);
    let fresh = arena.floats(&[4], &[5.0, 6.0, 7.0, 8.0]);
    let row = |arena: &Arena, index: usize| {
        let view = arena.at(address_of(state) + 16 * index, &packed(&[4]));
        edit(view, |view| (view.view_source, view.view_offset) = (state, 16 * index));
        view
    };
    let target = row(&arena, 1);
    let copy = row(&arena, 1);
    set_op(copy, abi::OP_CPY, &[], &[fresh, target]);
    let scaled = row(&arena, 2);
    let source = row(&arena, 2);
    set_op(scaled, abi::OP_SCALE, &[float(3.0), 0], &[source]);
    let ids = arena.leaf(&ssmgraph::ops::HostTensor::from_i32(&[1], &[0]).expect("one"));
    let set = arena.at(address_of(state), &layout_of(state));
    set_op(set, abi::OP_SET_ROWS, &[], &[fresh, ids, state]);
    edit(set, |set| set.view_source = state);
    for node in [copy, scaled, set] {
        assert!(device.supports(node));
    }
    let before = arena.dump();
    device.stream().must_compute(&Graph::of(&[copy, scaled, set]));
    let expected = [5.0, 6.0, 7.0, 8.0, 5.0, 6.0, 7.0, 8.0, 3.0, 3.0, 3.0, 3.0];
    assert_eq!(arena.values(state), expected);
    arena.only_changed(before, &[state]);
}

/// Several nodes over one place, each reading what the last one left.
fn chain_in_place(host: Host) {
    let device = host.device();
    let mut arena = Arena::new(device, 1 << 14);
    let values = ramp(&[8]);
    let x = arena.floats(&[8], &values);
    let y = arena.floats(&[8], &[2.0; 8]);
    let (place, layout) = (address_of(x), packed(&[8]));
    let over_second = arena.node_at(place, abi::OP_SUB, &[], &[y, x], &layout);
    let over_first = arena.node_at(place, abi::OP_ADD, &[], &[over_second, y], &layout);
    let scaled = arena.node_at(place, abi::OP_SCALE, &[float(-1.0), float(0.5)], &[over_first], &layout);
    let over_both = arena.node_at(place, abi::OP_MUL, &[], &[scaled, scaled], &layout);
    let graph = Graph::of(&[over_second, over_first, scaled, over_both]);
    device.stream().must_compute(&graph);
    let expected = |x: f32| f64::from((0.5 - (2.0 - x + 2.0)) * (0.5 - (2.0 - x + 2.0)));
    assert_eq!(arena.values(over_both), values.iter().map(|&x| expected(x)).collect::<Vec<_>>());
}

/// Rows that lie in the table that they are written to: right, or an error that leaves everything as it was.
fn rows_of_their_own_table(host: Host) {
    let device = host.device();
    let mut arena = Arena::new(device, 1 << 14);
    let table = arena.floats(&[2, 4], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let rows = arena.at(address_of(table), &packed(&[2, 2]));
    let ids = arena.leaf(&ssmgraph::ops::HostTensor::from_i32(&[2], &[1, 2]).expect("two"));
    let set = arena.node_at(address_of(table), abi::OP_SET_ROWS, &[], &[rows, ids, table], &packed(&[2, 4]));
    let status = device.stream().compute(&Graph::of(&[set]));
    let expected: [f64; 8] = match status {
        abi::STATUS_SUCCESS => [1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 7.0, 8.0],
        _ => [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
    };
    assert_eq!(arena.values(table), expected, "status {status}: {}", host.lines());
}
