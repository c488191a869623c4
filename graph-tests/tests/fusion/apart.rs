//! What only looks like a pattern stays as it was written.

use crate::forms::{join, repeated, write_windows};
use crate::writer::{F32, Writer};
use ssmgraph::graph::{Slots, SlotsSpec, State};
use ssmgraph::ops::gated_delta_net::Grouping;
use ssmgraph::ops::l2_norm::Form;
use ssmgraph::{Graph, Tensor};

/// What may be done to a graph so that a fusion would be wrong.
pub type Change = fn(&mut Writer, &mut [Tensor]);

/// x, silu(z), norm, scaled norm, product.
pub fn gated_parts(change: Change) -> Writer {
    let mut w = Writer::new();
    let (x, z, weight) = (w.input(&[6, 2]), w.input(&[6, 2]), w.input(&[6]));
    let act = w.g.silu(z).unwrap();
    let norm = w.g.rms_norm(x, Some(weight), 1e-5).unwrap();
    let y = w.g.mul(norm, act).unwrap();
    change(&mut w, &mut [x, act, norm, y]);
    w.output(y);
    w
}

#[test]
fn a_gated_norm_whose_parts_are_seen_stays_apart() {
    assert_eq!(gated_parts(|_, _| {}).fused_ops(), ["gated_norm"]);
    gated_parts(|w, parts| w.g.keep(parts[1]).unwrap()).stays("the gate is kept");
    gated_parts(|w, parts| w.output(parts[2])).stays("the norm is an output");
    gated_parts(|w, parts| w.g.name(parts[2], "norm").unwrap()).stays("the norm has a name");
    gated_parts(|w, parts| {
        let other = w.g.neg(parts[1]).unwrap();
        w.output(other);
    })
    .stays("the gate has another user");
}

/// A product of a norm and an activation that is no gated norm.
#[test]
fn a_gated_norm_of_another_kind_stays_apart() {
    let written = |change: fn(&mut Writer) -> Tensor| {
        let mut w = Writer::new();
        let y = change(&mut w);
        w.output(y);
        w
    };
    written(|w| {
        let (x, z, weight) = (w.input(&[6, 2]), w.input(&[6, 2]), w.input(&[6]));
        let norm = w.g.rms_norm(x, Some(weight), 1e-5).unwrap();
        let act = w.g.gelu(z).unwrap();
        w.g.mul(norm, act).unwrap()
    })
    .stays("another activation");
    written(|w| {
        let (x, z, weight) = (w.input(&[6, 2]), w.input(&[6]), w.input(&[6]));
        let norm = w.g.rms_norm(x, Some(weight), 1e-5).unwrap();
        let act = w.g.silu(z).unwrap();
        w.g.mul(norm, act).unwrap()
    })
    .stays("one gate for all rows");
    written(|w| {
        let (x, z, weight) = (w.input(&[6, 2]), w.input(&[6, 2]), w.input(&[1, 2]));
        let norm = w.g.rms_norm(x, Some(weight), 1e-5).unwrap();
        let act = w.g.silu(z).unwrap();
        w.g.mul(norm, act).unwrap()
    })
    .stays("a weight for each row");
    written(|w| {
        let (x, z, weight) = (w.input(&[6, 2]), w.input(&[6, 2]), w.input(&[6]));
        let norm = w.g.rms_norm(x, Some(weight), 1e-5).unwrap();
        w.g.swiglu(norm, z).unwrap()
    })
    .stays("the norm is what is activated");
    written(|w| {
        let (x, z, weight) = (w.input(&[6, 4]), w.input(&[4, 6]), w.input(&[6]));
        let norm = w.g.rms_norm(x, Some(weight), 1e-5).unwrap();
        let turned = w.g.transpose(norm).unwrap();
        let act = w.g.silu(z).unwrap();
        w.g.mul(act, turned).unwrap()
    })
    .stays("the axes are exchanged between norm and gate");
    // The norm then scales by a computed row, which is no weight.
    written(|w| {
        let (x, z, weight) = (w.input(&[6, 1]), w.input(&[6, 1]), w.input(&[6]));
        let weight = w.g.exp(weight).unwrap();
        let norm = w.g.rms_norm(x, Some(weight), 1e-5).unwrap();
        let act = w.g.silu(z).unwrap();
        w.g.mul(norm, act).unwrap()
    })
    .stays("a weight that is computed");
}

/// q, k, and their norms, in front of the delta rule.
fn qk_parts(eps: [f32; 2], forms: [Form; 2], change: Change) -> Writer {
    let mut w = Writer::new();
    let slots = w.g.slots(SlotsSpec { slots: 2, rollback: 0, sequences: 2, tokens: 3 }).unwrap();
    let state = w.g.state("delta", F32, &[4, 4, 2], &slots).unwrap();
    let (q, k, v) = (w.input(&[4, 2, 3, 2]), w.input(&[4, 2, 3, 2]), w.input(&[4, 2, 3, 2]));
    let (g, beta) = (w.input(&[1, 2, 3, 2]), w.input(&[1, 2, 3, 2]));
    let q = w.g.l2_norm(q, eps[0], forms[0]).unwrap();
    let k = w.g.l2_norm(k, eps[1], forms[1]).unwrap();
    let mut parts = [q, k];
    change(&mut w, &mut parts);
    let [q, k] = parts;
    let operands = [state.pool, q, k, v, g, beta, slots.read];
    let delta = w.g.gated_delta_net(operands, Grouping::Tiled, 1).unwrap();
    w.g.write_state(&state, &slots, 0, delta.states[0]).unwrap();
    w.output(delta.y);
    w
}

#[test]
fn norms_of_queries_and_keys_that_differ_or_are_seen_stay_apart() {
    let (same, add) = ([1e-6; 2], [Form::Add; 2]);
    assert_eq!(qk_parts(same, add, |_, _| {}).fused_ops(), ["qk_norm", "gated_delta_net", "set_rows"]);
    qk_parts([1e-6, 1e-5], add, |_, _| {}).stays("two eps");
    qk_parts(same, [Form::Add, Form::Max], |_, _| {}).stays("two forms");
    qk_parts(same, add, |w, parts| w.output(parts[0])).stays("q is an output");
    qk_parts(same, add, |w, parts| w.g.keep(parts[1]).unwrap()).stays("k is kept");
    qk_parts(same, add, |w, parts| w.g.name(parts[1], "k").unwrap()).stays("k has a name");
    qk_parts(same, add, |w, parts| {
        let sum = w.g.sum(parts[1]).unwrap();
        w.output(sum);
    })
    .stays("k has another user");
    qk_parts(same, add, |_, parts| parts[0] = parts[1]).stays("q and k are one tensor");
    // Rows of two heads have one length.
    qk_parts(same, add, |w, parts| {
        for part in parts {
            let x = w.input(&[8, 1, 3, 2]);
            let x = w.g.l2_norm(x, 1e-6, Form::Add).unwrap();
            *part = w.g.reshape(x, &[4, 2, 3, 2]).unwrap();
        }
    })
    .stays("rows of another length");
}

#[test]
fn heads_repeated_in_two_ways_or_along_another_axis_stay_repeated() {
    let [tiled, interleaved] = [Grouping::Tiled, Grouping::Interleaved];
    let written = |from: [usize; 4], ways: [Grouping; 2], axis: Option<usize>| {
        qk_parts_repeated(from, ways, axis).fused_ops().contains(&"repeat")
    };
    assert!(!written([4, 2, 3, 2], [tiled; 2], None));
    assert!(!written([4, 2, 3, 2], [interleaved; 2], None));
    assert!(written([4, 2, 3, 2], [tiled, interleaved], None));
    assert!(written([4, 4, 1, 2], [tiled; 2], Some(2)));
    assert!(written([2, 4, 3, 2], [tiled; 2], Some(0)));
}

/// q and k repeated to {4, 4, 3, 2}, by heads or along an axis.
fn qk_parts_repeated(from: [usize; 4], ways: [Grouping; 2], axis: Option<usize>) -> Writer {
    let mut w = Writer::new();
    let slots = w.g.slots(SlotsSpec { slots: 2, rollback: 0, sequences: 2, tokens: 3 }).unwrap();
    let state = w.g.state("delta", F32, &[4, 4, 4], &slots).unwrap();
    let v = w.input(&[4, 4, 3, 2]);
    let (g, beta) = (w.input(&[1, 4, 3, 2]), w.input(&[1, 4, 3, 2]));
    let [q, k] = ways.map(|way| {
        let x = w.input(&from);
        match axis {
            Some(_) => w.g.repeat(x, &[4, 4, 3, 2]).unwrap(),
            None => repeated(&mut w.g, x, 4, way),
        }
    });
    let operands = [state.pool, q, k, v, g, beta, slots.read];
    let delta = w.g.gated_delta_net(operands, Grouping::Tiled, 1).unwrap();
    w.g.write_state(&state, &slots, 0, delta.states[0]).unwrap();
    w.output(delta.y);
    w
}

/// Four channels, three taps, two tokens of two sequences, joined with windows that can be rolled back by one.
fn conv_parts(change: fn(&mut Writer, &State, &Slots, Tensor)) -> Writer {
    let mut w = Writer::new();
    let slots = w.g.slots(SlotsSpec { slots: 2, rollback: 1, sequences: 2, tokens: 2 }).unwrap();
    let state = w.g.state("conv", F32, &[2, 4], &slots).unwrap();
    let (x, weight) = (w.input(&[4, 2, 2]), w.input(&[3, 4]));
    let joined = join(&mut w.g, &state, &slots, x, false);
    change(&mut w, &state, &slots, joined);
    let y = w.g.ssm_conv(joined, weight, None, true).unwrap();
    w.output(y);
    w
}

#[test]
fn a_convolution_whose_joined_inputs_are_seen_stays_apart() {
    let step = conv_parts(|w, state, slots, joined| write_windows(&mut w.g, state, slots, joined, 3));
    assert_eq!(step.fused_ops(), ["ssm_conv_step", "set_rows", "set_rows"]);
    let unsaved = conv_parts(|_, _, _, _| {});
    assert_eq!(unsaved.fused_ops(), ["ssm_conv_step"]);
    conv_parts(|w, _, _, joined| w.g.keep(joined).unwrap()).stays("the joined inputs are kept");
    conv_parts(|w, _, _, joined| {
        let sum = w.g.sum(joined).unwrap();
        w.output(sum);
    })
    .stays("the joined inputs have another user");
    conv_parts(|w, state, slots, joined| {
        let window = w.g.slice(joined, 0, 0, 2).unwrap();
        let window = w.g.cont(window).unwrap();
        w.g.write_state(state, slots, 1, window).unwrap();
    })
    .stays("the window before the first token is written");
    conv_parts(|w, state, slots, joined| {
        let window = w.g.slice(joined, 0, 2, 2).unwrap();
        w.output(window);
        let window = w.g.cont(window).unwrap();
        w.g.write_state(state, slots, 0, window).unwrap();
    })
    .stays("a window is an output");
    conv_parts(|w, state, slots, joined| {
        let window = w.g.slice(joined, 0, 2, 2).unwrap();
        let window = w.g.cont(window).unwrap();
        w.output(window);
        w.g.write_state(state, slots, 0, window).unwrap();
    })
    .stays("a copy of a window is an output");
    conv_parts(|w, _, _, joined| {
        let part = w.g.slice(joined, 1, 0, 2).unwrap();
        let part = w.g.cont(part).unwrap();
        w.output(part);
    })
    .stays("other columns are copied");
}

#[test]
fn a_window_that_is_no_picked_row_or_comes_behind_stays_joined() {
    let written = |window_first: bool, picked: bool| {
        let mut w = Writer::new();
        let slots = w.g.slots(SlotsSpec { slots: 2, rollback: 0, sequences: 2, tokens: 2 }).unwrap();
        let state = w.g.state("conv", F32, &[2, 4], &slots).unwrap();
        let (x, weight) = (w.input(&[4, 2, 2]), w.input(&[3, 4]));
        let old = match picked {
            true => w.g.read_state(&state, &slots).unwrap(),
            false => w.g.slice(state.pool, 3, 0, 2).unwrap(),
        };
        let old = w.g.reshape(old, &[2, 4, 2]).unwrap();
        let turned = w.g.transpose(x).unwrap();
        let parts = if window_first { [old, turned] } else { [turned, old] };
        let joined = w.g.concat(&parts, 0).unwrap();
        let y = w.g.ssm_conv(joined, weight, None, false).unwrap();
        w.output(y);
        w
    };
    assert_eq!(written(true, true).fused_ops(), ["ssm_conv_step"]);
    written(true, false).stays("rows that are not picked by ids");
    written(false, true).stays("the window behind the new inputs");
}

#[test]
fn a_decay_gate_in_another_order_or_seen_stays_apart() {
    let written = |change: fn(&mut Graph, [Tensor; 3]) -> [Tensor; 3]| {
        let mut w = Writer::new();
        let leaves = [w.input(&[6, 2]), w.input(&[6]), w.input(&[6])];
        let [kept, shown, y] = change(&mut w.g, leaves);
        w.g.keep(kept).unwrap();
        w.output(shown);
        w.output(y);
        w
    };
    fn gate(g: &mut Graph, [alpha, a, bias]: [Tensor; 3]) -> [Tensor; 3] {
        let sum = g.add(alpha, bias).unwrap();
        let softplus = g.softplus(sum).unwrap();
        [sum, softplus, g.mul(softplus, a).unwrap()]
    }
    assert_eq!(written(|g, leaves| [gate(g, leaves)[2]; 3]).fused_ops(), ["decay_gate"]);
    written(|g, leaves| {
        let [sum, _, y] = gate(g, leaves);
        [sum, y, y]
    })
    .stays("the sum is kept");
    written(|g, leaves| {
        let [_, softplus, y] = gate(g, leaves);
        [y, softplus, y]
    })
    .stays("the softplus is an output");
    written(|g, [alpha, a, bias]| {
        let softplus = g.softplus(alpha).unwrap();
        let sum = g.add(softplus, bias).unwrap();
        [g.mul(sum, a).unwrap(); 3]
    })
    .stays("softplus before the sum");
}

#[test]
fn what_is_added_to_a_convolution_is_a_bias_only_if_channels_have_one_number() {
    let written = |ne: &[usize], silu_first: bool| {
        let mut w = Writer::new();
        let (sx, weight, bias) = (w.input(&[6, 4, 2]), w.input(&[3, 4]), w.input(ne));
        let mut y = w.g.ssm_conv(sx, weight, None, false).unwrap();
        if silu_first {
            y = w.g.silu(y).unwrap();
        }
        let y = w.g.add(y, bias).unwrap();
        w.output(y);
        w
    };
    assert_eq!(written(&[4], false).fused_ops(), ["ssm_conv"]);
    written(&[1, 4], false).stays("a number for each token");
    written(&[4, 4, 2], false).stays("a whole tensor");
    assert_eq!(written(&[4], true).fused_ops(), ["ssm_conv", "add"]);
}

#[test]
fn a_norm_scaled_otherwise_is_no_l2_norm() {
    let written = |scale: f32, bias: f32| {
        let mut w = Writer::new();
        let x = w.input(&[9, 2]);
        let norm = w.g.rms_norm(x, None, 1e-6).unwrap();
        let y = w.g.scale(norm, scale, bias).unwrap();
        w.output(y);
        w
    };
    assert_eq!(written(1.0 / 3.0, 0.0).fused_ops(), ["l2_norm"]);
    written(0.3333, 0.0).stays("another scale");
    written(-1.0 / 3.0, 0.0).stays("a negative scale");
    written(1.0 / 3.0, 0.5).stays("a summand");
    written(f32::NAN, 0.0).stays("a scale that is no number");
    written(1.0 / 3.0, f32::NAN).stays("a summand that is no number");
}
