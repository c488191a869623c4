//! The ways in which people write what the planner puts together.

use crate::writer::{F32, Writer};
use proptest::prelude::*;
use ssmgraph::graph::{Slots, SlotsSpec, State};
use ssmgraph::ops::gated_delta_net::Grouping;
use ssmgraph::ops::l2_norm::Form;
use ssmgraph::{Graph, Tensor};

/// How a gated norm is written.
#[derive(Clone, Copy, Debug)]
pub struct GatedForm {
    pub gate_first: bool,
    pub sigmoid: bool,
    /// act(z) · x instead of x · act(z).
    pub gate_left: bool,
    /// swiglu(z, x) instead of a product; SiLU only.
    pub glu: bool,
    /// The norm sees {group, groups, …}, the gate {group · groups, …}.
    pub grouped: bool,
    /// One w for all groups.
    pub shared: bool,
    /// w is multiplied under the gate's shape.
    pub weight_outside: bool,
}

pub fn gated_form() -> impl Strategy<Value = GatedForm> {
    proptest::array::uniform7(any::<bool>()).prop_map(
        |[gate_first, sigmoid, gate_left, glu, grouped, shared, weight_outside]| GatedForm {
            gate_first,
            sigmoid: sigmoid && !glu,
            gate_left,
            glu,
            grouped,
            shared,
            weight_outside: weight_outside && grouped && !shared,
        },
    )
}

/// x {group · groups, tokens, 2} gated by a slice of a wider tensor, and normalised.
pub fn gated_norm(form: GatedForm, [group, groups, tokens]: [usize; 3]) -> Writer {
    let mut w = Writer::new();
    let row = group * groups;
    let wide = w.input_in(&[row + 3, tokens, 2], 3.0, 0.0);
    let z = w.g.slice(wide, 0, 1, row).unwrap();
    let x = w.input_in(&[row, tokens, 2], 2.0, 0.0);
    let g = &mut w.g;
    let gated = |g: &mut Graph, x: Tensor| match form {
        GatedForm { glu: true, .. } => g.swiglu(z, x).unwrap(),
        GatedForm { sigmoid, gate_left, .. } => {
            let act = if sigmoid { g.sigmoid(z) } else { g.silu(z) }.unwrap();
            if gate_left { g.mul(act, x) } else { g.mul(x, act) }.unwrap()
        }
    };
    let x = if form.gate_first { gated(g, x) } else { x };
    let x = if form.grouped { g.reshape(x, &[group, groups, tokens, 2]).unwrap() } else { x };
    let mut y = g.rms_norm(x, None, 1e-5).unwrap();
    let (scale, shift) = (0.5, 1.0);
    let weight = match form {
        GatedForm { weight_outside: true, .. } => {
            y = w.g.reshape(y, &[row, tokens, 2]).unwrap();
            w.input_in(&[row], scale, shift)
        }
        GatedForm { grouped: true, shared: true, .. } => w.input_in(&[group], scale, shift),
        GatedForm { grouped: true, .. } => w.input_in(&[group, groups], scale, shift),
        _ => w.input_in(&[row], scale, shift),
    };
    let g = &mut w.g;
    let mut y = g.mul(y, weight).unwrap();
    if !form.gate_first {
        y = g.reshape(y, &[row, tokens, 2]).unwrap();
        y = gated(g, y);
    }
    w.output(y);
    w
}

/// How q and k come to the delta rule.
#[derive(Clone, Copy, Debug)]
pub struct QkForm {
    pub repeat: Option<Grouping>,
    pub norm_first: bool,
    /// The norm in parts: RMS norm and a scale.
    pub scaled: bool,
    pub form: Form,
}

pub fn qk_form() -> impl Strategy<Value = QkForm> {
    let repeat = prop_oneof![Just(None), Just(Some(Grouping::Tiled)), Just(Some(Grouping::Interleaved))];
    (repeat, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(repeat, norm_first, scaled, max)| {
        QkForm { repeat, norm_first, scaled, form: if max && !scaled { Form::Max } else { Form::Add } }
    })
}

/// {S, Hk, T, B} to {S, heads, T, B}, in plain ops.
pub fn repeated(g: &mut Graph, x: Tensor, heads: usize, grouping: Grouping) -> Tensor {
    let [size, key_heads, tokens, sequences] = g.ne(x).unwrap();
    match grouping {
        Grouping::Tiled => g.repeat(x, &[size, heads, tokens, sequences]).unwrap(),
        Grouping::Interleaved => {
            let x = g.reshape(x, &[size, 1, key_heads, tokens * sequences]).unwrap();
            let x = g.repeat(x, &[size, heads / key_heads, key_heads, tokens * sequences]).unwrap();
            g.reshape(x, &[size, heads, tokens, sequences]).unwrap()
        }
    }
}

pub fn normed(g: &mut Graph, x: Tensor, form: QkForm, eps: f32) -> Tensor {
    if form.scaled {
        let count = g.ne(x).unwrap()[0] as f32;
        let x = g.rms_norm(x, None, eps / count).unwrap();
        return g.scale(x, 1.0 / count.sqrt(), 0.0).unwrap();
    }
    g.l2_norm(x, eps, form.form).unwrap()
}

/// Norm and repetition in the order that the form says.
pub fn prepared(g: &mut Graph, x: Tensor, heads: usize, form: QkForm) -> Tensor {
    let repeat = |g: &mut Graph, x: Tensor| match form.repeat {
        Some(grouping) => repeated(g, x, heads, grouping),
        None => x,
    };
    let x = if form.norm_first { x } else { repeat(g, x) };
    let x = normed(g, x, form, 1e-6);
    if form.norm_first { repeat(g, x) } else { x }
}

/// The gated delta rule in plain ops, all but the rule itself.
pub fn delta(form: QkForm, [size, key_heads, times]: [usize; 3], spec: SlotsSpec) -> Writer {
    let mut w = Writer::new();
    let (tokens, sequences, heads) = (spec.tokens, spec.sequences, key_heads * times);
    let slots = w.g.slots(spec).unwrap();
    let state = w.g.state("delta", F32, &[size, size, heads], &slots).unwrap();
    let q = w.input(&[size, key_heads, tokens, sequences]);
    let k = w.input(&[size, key_heads, tokens, sequences]);
    let v = w.input(&[size, heads, tokens, sequences]);
    let beta = w.input_in(&[1, heads, tokens, sequences], 0.4, 0.5);
    let g = w.input_in(&[1, heads, tokens, sequences], 1.0, -1.1);
    let q = prepared(&mut w.g, q, heads, form);
    let k = prepared(&mut w.g, k, heads, form);
    let operands = [state.pool, q, k, v, g, beta, slots.read];
    let delta = w.g.gated_delta_net(operands, Grouping::Tiled, slots.spec.stored()).unwrap();
    for (back, &rows) in delta.states.iter().enumerate() {
        w.g.write_state(&state, &slots, back, rows).unwrap();
    }
    w.output(delta.y);
    w
}

/// How a convolution is written.
#[derive(Clone, Copy, Debug)]
pub struct ConvForm {
    pub bias: bool,
    pub silu: bool,
    /// Windows are written before the convolution, and the weights declared after both.
    pub windows_first: bool,
    /// The new inputs are turned by a copy.
    pub packed: bool,
}

/// Window and new inputs x {C, T, B} joined, the windows of the last tokens written back, and the convolution.
pub fn conv(form: ConvForm, [width, channels]: [usize; 2], spec: SlotsSpec) -> Writer {
    let mut w = Writer::new();
    let slots = w.g.slots(spec).unwrap();
    let state = w.g.state("conv", F32, &[width - 1, channels], &slots).unwrap();
    let x = w.input(&[channels, slots.spec.tokens, slots.spec.sequences]);
    let joined = join(&mut w.g, &state, &slots, x, form.packed);
    if form.windows_first {
        write_windows(&mut w.g, &state, &slots, joined, width);
    }
    let weight = w.input(&[width, channels]);
    let bias = w.input(&[channels]);
    let mut y = w.g.ssm_conv(joined, weight, None, false).unwrap();
    if form.bias {
        y = w.g.add(y, bias).unwrap();
    }
    if form.silu {
        y = w.g.silu(y).unwrap();
    }
    if !form.windows_first {
        write_windows(&mut w.g, &state, &slots, joined, width);
    }
    w.output(y);
    w
}

pub fn join(g: &mut Graph, state: &State, slots: &Slots, x: Tensor, packed: bool) -> Tensor {
    let [window, channels, _, _] = g.ne(state.pool).unwrap();
    let old = g.read_state(state, slots).unwrap();
    let old = g.reshape(old, &[window, channels, slots.spec.sequences]).unwrap();
    let turned = g.transpose(x).unwrap();
    let turned = if packed { g.cont(turned).unwrap() } else { turned };
    g.concat(&[old, turned], 0).unwrap()
}

pub fn write_windows(g: &mut Graph, state: &State, slots: &Slots, joined: Tensor, width: usize) {
    for back in 0..slots.spec.stored() {
        let window = g.slice(joined, 0, slots.spec.tokens - back, width - 1).unwrap();
        let window = g.cont(window).unwrap();
        g.write_state(state, slots, back, window).unwrap();
    }
}
