//! Graphs written from plain ops: the planner puts whole ops in the place of their parts, fused = unfused within the
//! tolerance of the op, states included, and what only looks like a pattern stays as it was written.

use graph_tests::cuda;
use graph_tests::laws::values;
use proptest::prelude::*;
use ssmgraph::backend::Devices;
use ssmgraph::graph::{Action, Slots, SlotsSpec, State};
use ssmgraph::ops::gated_delta_net::Grouping;
use ssmgraph::ops::l2_norm::Form;
use ssmgraph::ops::{DType, HostTensor, Op, Storage};
use ssmgraph::plan::{Plan, PlanOptions, fuse, prune};
use ssmgraph::{Graph, Session, Store, Tensor};
use std::sync::Arc;

const F32: DType = DType::F32;
const PLAIN: PlanOptions = PlanOptions { fuse: false };

/// A graph being written, with numbers for its inputs.
struct Writer {
    g: Graph,
    inputs: Vec<(Tensor, usize, f32, f32)>,
    outputs: Vec<Tensor>,
}

impl Writer {
    fn new() -> Writer {
        Writer { g: Graph::new(), inputs: Vec::new(), outputs: Vec::new() }
    }

    /// An input of numbers in −1..1.
    fn input(&mut self, ne: &[usize]) -> Tensor {
        self.input_in(ne, 1.0, 0.0)
    }

    /// An input of numbers around `shift`.
    fn input_in(&mut self, ne: &[usize], scale: f32, shift: f32) -> Tensor {
        let name = format!("in.{}", self.inputs.len());
        let tensor = self.g.input(&name, F32, ne).unwrap();
        self.inputs.push((tensor, ne.iter().product(), scale, shift));
        tensor
    }

    fn output(&mut self, tensor: Tensor) {
        self.g.output(tensor).unwrap();
        self.outputs.push(tensor);
    }

    /// Names of the ops that are computed after fusion; views left out.
    fn fused_ops(&self) -> Vec<&'static str> {
        let (fused, _) = fuse(&self.g);
        let (fused, _) = prune(&fused).unwrap();
        computed(&fused)
    }

    /// That fusion leaves this graph as it was written.
    fn stays(&self, why: &str) {
        let (as_written, _) = prune(&self.g).unwrap();
        assert_eq!(self.fused_ops(), computed(&as_written), "{why}");
    }

    /// One run on some slots; the outputs, one after the other.
    fn run(&self, store: &Arc<Store>, options: PlanOptions, slots: &[usize], seed: u64) -> Vec<f32> {
        let mut session = Session::with_options(&self.g, store, options).unwrap();
        for (index, &(tensor, count, scale, shift)) in self.inputs.iter().enumerate() {
            session.set(tensor, &values(seed + 31 * index as u64, count, scale, shift)).unwrap();
        }
        session.set_slots(slots).unwrap();
        session.run().unwrap();
        // A device that runs the parts must run the whole.
        let first = store.devices().backends()[0].name();
        for node in session.report().nodes {
            assert_eq!(node.device, first, "{}", node.text);
        }
        self.outputs.iter().flat_map(|&output| session.get::<f32>(output).unwrap()).collect()
    }

    /// Fused and unfused give the same, within roundings.
    fn agrees(&self, devices: &Devices, seed: u64) {
        let run = |options| self.run(&Store::new(devices, Vec::new()), options, &[], seed);
        close(&run(PlanOptions::default()), &run(PLAIN), "outputs");
    }
}

fn computed(graph: &Graph) -> Vec<&'static str> {
    let ops = graph.nodes().filter_map(|(_, node)| match &node.action {
        Action::Op(op) if !matches!(op.storage(), Storage::View { .. }) => Some(op.name()),
        _ => None,
    });
    ops.collect()
}

/// Sums of a few hundred terms, twice rounded.
fn close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (f, e)) in found.iter().zip(expected).enumerate() {
        let inside = f == e || (f.is_nan() && e.is_nan()) || (f - e).abs() <= 1e-5 + 1e-5 * e.abs();
        assert!(inside, "{what}: element {index} is {f:e}, expected {e:e}");
    }
}

/// Everything that two stores hold of a slot is alike.
fn states_close(found: &Store, expected: &Store, slot: usize) {
    let (found, expected) = (found.save(slot).unwrap(), expected.save(slot).unwrap());
    assert_eq!(found.position, expected.position);
    assert_eq!(found.rows.len(), expected.rows.len());
    for ((name, found), (_, expected)) in found.rows.iter().zip(&expected.rows) {
        let floats =
            |row: &HostTensor| row.to_f64().into_iter().map(|value| value as f32).collect::<Vec<_>>();
        close(&floats(found), &floats(expected), name);
    }
}

/// A model's step is run for a prompt and for single tokens, on two of five slots, with a rollback between; fused and
/// unfused give the same outputs and states all along.
fn steps_agree(
    devices: &Devices,
    tokens: usize,
    rollback: usize,
    seed: u64,
    step: &dyn Fn(SlotsSpec) -> Writer,
) {
    let [fused, plain] = [(); 2].map(|()| Store::new(devices, Vec::new()));
    let spec = |tokens| SlotsSpec { slots: 5, rollback, sequences: 2, tokens };
    let (prompt, single) = (step(spec(tokens)), step(spec(1)));
    let slots = [3, 1];
    let both = |writer: &Writer, seed: u64| {
        let found = writer.run(&fused, PlanOptions::default(), &slots, seed);
        close(&found, &writer.run(&plain, PLAIN, &slots, seed), "outputs");
        slots.iter().for_each(|&slot| states_close(&fused, &plain, slot));
    };
    both(&prompt, seed);
    both(&single, seed + 1);
    both(&single, seed + 2);
    for slot in slots {
        let back = rollback.min(tokens + 1);
        [&fused, &plain].iter().for_each(|store| store.rollback(slot, back).unwrap());
    }
    both(&single, seed + 3);
    both(&prompt, seed + 4);
}

/// How a gated norm is written.
#[derive(Clone, Copy, Debug)]
struct GatedForm {
    gate_first: bool,
    sigmoid: bool,
    /// act(z) · x instead of x · act(z).
    gate_left: bool,
    /// swiglu(z, x) instead of a product; SiLU only.
    glu: bool,
    /// The norm sees {group, groups, …}, the gate {group · groups, …}.
    grouped: bool,
    /// One w for all groups.
    shared: bool,
    /// w is multiplied under the gate's shape.
    weight_outside: bool,
}

fn gated_form() -> impl Strategy<Value = GatedForm> {
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
fn gated_norm(form: GatedForm, [group, groups, tokens]: [usize; 3]) -> Writer {
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
struct QkForm {
    repeat: Option<Grouping>,
    norm_first: bool,
    /// The norm in parts: RMS norm and a scale.
    scaled: bool,
    form: Form,
}

fn qk_form() -> impl Strategy<Value = QkForm> {
    let repeat = prop_oneof![Just(None), Just(Some(Grouping::Tiled)), Just(Some(Grouping::Interleaved))];
    (repeat, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(repeat, norm_first, scaled, max)| {
        QkForm { repeat, norm_first, scaled, form: if max && !scaled { Form::Max } else { Form::Add } }
    })
}

/// {S, Hk, T, B} to {S, heads, T, B}, in plain ops.
fn repeated(g: &mut Graph, x: Tensor, heads: usize, grouping: Grouping) -> Tensor {
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

fn normed(g: &mut Graph, x: Tensor, form: QkForm, eps: f32) -> Tensor {
    if form.scaled {
        let count = g.ne(x).unwrap()[0] as f32;
        let x = g.rms_norm(x, None, eps / count).unwrap();
        return g.scale(x, 1.0 / count.sqrt(), 0.0).unwrap();
    }
    g.l2_norm(x, eps, form.form).unwrap()
}

/// Norm and repetition in the order that the form says.
fn prepared(g: &mut Graph, x: Tensor, heads: usize, form: QkForm) -> Tensor {
    let repeat = |g: &mut Graph, x: Tensor| match form.repeat {
        Some(grouping) => repeated(g, x, heads, grouping),
        None => x,
    };
    let x = if form.norm_first { x } else { repeat(g, x) };
    let x = normed(g, x, form, 1e-6);
    if form.norm_first { repeat(g, x) } else { x }
}

/// The gated delta rule in plain ops, all but the rule itself.
fn delta(form: QkForm, [size, key_heads, times]: [usize; 3], spec: SlotsSpec) -> Writer {
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
struct ConvForm {
    bias: bool,
    silu: bool,
    /// Windows are written before the convolution, and the weights declared after both.
    windows_first: bool,
    /// The new inputs are turned by a copy.
    packed: bool,
}

/// Window and new inputs x {C, T, B} joined, the windows of the last tokens written back, and the convolution.
fn conv(form: ConvForm, [width, channels]: [usize; 2], spec: SlotsSpec) -> Writer {
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

fn join(g: &mut Graph, state: &State, slots: &Slots, x: Tensor, packed: bool) -> Tensor {
    let [window, channels, _, _] = g.ne(state.pool).unwrap();
    let old = g.read_state(state, slots).unwrap();
    let old = g.reshape(old, &[window, channels, slots.spec.sequences]).unwrap();
    let turned = g.transpose(x).unwrap();
    let turned = if packed { g.cont(turned).unwrap() } else { turned };
    g.concat(&[old, turned], 0).unwrap()
}

fn write_windows(g: &mut Graph, state: &State, slots: &Slots, joined: Tensor, width: usize) {
    for back in 0..slots.spec.stored() {
        let window = g.slice(joined, 0, slots.spec.tokens - back, width - 1).unwrap();
        let window = g.cont(window).unwrap();
        g.write_state(state, slots, back, window).unwrap();
    }
}

fn on_cpu() -> Devices {
    Devices::cpu(Some(2))
}

/// The laws on some devices.
macro_rules! fused_is_unfused {
    ($($module:ident: $cases:literal cases on $devices:expr;)*) => {$(
        mod $module {
            use super::*;

            proptest! {
                #![proptest_config(ProptestConfig { cases: $cases, failure_persistence: None, ..ProptestConfig::default() })]

                #[test]
                fn gated_norms(
                    form in gated_form(), group in 1usize..40, groups in 1usize..4, tokens in 1usize..6, seed in 0u64..1000
                ) {
                    let written = gated_norm(form, [group, groups, tokens]);
                    prop_assert_eq!(written.fused_ops(), ["gated_norm"]);
                    written.agrees(&$devices, seed);
                }

                #[test]
                fn queries_and_keys(
                    form in qk_form(), size in 1usize..40, key_heads in 1usize..4, times in 1usize..4,
                    tokens in 1usize..6, rollback in 0usize..3, seed in 0u64..1000
                ) {
                    let times = if form.repeat.is_some() { times + 1 } else { times };
                    let times = if form.repeat.is_none() && key_heads > 2 { 1 } else { times };
                    let step = |spec: SlotsSpec| delta(form, [size, key_heads, times], spec);
                    let spec = SlotsSpec { slots: 5, rollback, sequences: 2, tokens };
                    let ops = step(spec).fused_ops();
                    prop_assert_eq!(&ops[..2], &["qk_norm", "gated_delta_net"]);
                    prop_assert!(ops[2..].iter().all(|&op| op == "set_rows"), "{:?}", ops);
                    steps_agree(&$devices, tokens, rollback, seed, &step);
                }

                #[test]
                fn convolutions_with_their_windows(
                    flags in proptest::array::uniform4(any::<bool>()), width in 2usize..6, channels in 1usize..40,
                    tokens in 0usize..6, rollback in 0usize..4, seed in 0u64..1000
                ) {
                    let [bias, silu, windows_first, packed] = flags;
                    let form = ConvForm { bias, silu, windows_first, packed };
                    let step = |spec: SlotsSpec| conv(form, [width, channels], spec);
                    let ops = step(SlotsSpec { slots: 5, rollback, sequences: 2, tokens }).fused_ops();
                    prop_assert_eq!(ops[0], "ssm_conv_step");
                    prop_assert!(ops[1..].iter().all(|&op| op == "set_rows"), "{:?}", ops);
                    steps_agree(&$devices, tokens, rollback, seed, &step);
                }

                #[test]
                fn norms_with_weights_and_decay_gates(
                    heads in 1usize..40, tokens in 1usize..6, weight_left in any::<bool>(), seed in 0u64..1000
                ) {
                    let mut w = Writer::new();
                    let (x, a, bias) = (w.input(&[heads, tokens]), w.input(&[heads]), w.input(&[heads]));
                    let sum = w.g.add(x, bias).unwrap();
                    let gate = w.g.softplus(sum).unwrap();
                    let decay = w.g.mul(gate, a).unwrap();
                    let weight = w.input(&[heads, tokens]);
                    let norm = w.g.rms_norm(decay, None, 1e-5).unwrap();
                    let y = if weight_left { w.g.mul(weight, norm) } else { w.g.mul(norm, weight) };
                    w.output(y.unwrap());
                    prop_assert_eq!(w.fused_ops(), ["decay_gate", "rms_norm"]);
                    w.agrees(&$devices, seed);
                }
            }
        }
    )*};
}

fused_is_unfused! {
    on_the_cpu: 48 cases on on_cpu();
    on_cuda: 12 cases on cuda::devices();
}

/// What may be done to a graph so that a fusion would be wrong.
type Change = fn(&mut Writer, &mut [Tensor]);

/// x, silu(z), norm, scaled norm, product.
fn gated_parts(change: Change) -> Writer {
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
}

/// Names, outputs and kept tensors are the same with and without fusion, and can be read.
#[test]
fn what_is_seen_stays_seen() {
    let mut w = gated_parts(|_, _| {});
    let y = w.outputs[0];
    w.g.name(y, "gated").unwrap();
    let plan = Plan::new(&w.g, &on_cpu()).unwrap();
    let found = plan.graph.find("gated").unwrap();
    assert!(matches!(plan.graph.node(found.node()).action, Action::Op(Op::GatedNorm(_))));
    w.agrees(&on_cpu(), 3);
    // The name of a node with more results than the one it had stands for the first.
    let step = conv(
        ConvForm { bias: true, silu: true, windows_first: true, packed: false },
        [4, 6],
        SlotsSpec { slots: 5, rollback: 1, sequences: 2, tokens: 3 },
    );
    let mut named = step.g.clone();
    named.name(step.outputs[0], "conv.y").unwrap();
    let plan = Plan::new(&named, &on_cpu()).unwrap();
    assert_eq!(plan.graph.find("conv.y").map(|tensor| tensor.result()), Some(0));
    assert!(plan.to_text().contains("conv.y = ssm_conv_step("), "{}", plan.to_text());
}

/// A Gated DeltaNet block without an op of its own but the rule itself.
#[test]
fn a_plain_delta_block_before_and_after_planning() {
    let (width, size, key_heads, heads) = (4, 8, 2, 4);
    let channels = size * (2 * key_heads + heads);
    let mut w = Writer::new();
    let slots = w.g.slots(SlotsSpec { slots: 3, rollback: 1, sequences: 2, tokens: 5 }).unwrap();
    let (tokens, sequences) = (5, 2);
    let window = w.g.state("conv", F32, &[width - 1, channels], &slots).unwrap();
    let memory = w.g.state("memory", F32, &[size, size, heads], &slots).unwrap();
    let g = &mut w.g;
    let qkv = g.input("qkv", F32, &[channels, tokens, sequences]).unwrap();
    let z = g.input("z", F32, &[size, heads, tokens, sequences]).unwrap();
    let alpha = g.input("alpha", F32, &[1, heads, tokens, sequences]).unwrap();
    let beta = g.input("beta", F32, &[1, heads, tokens, sequences]).unwrap();
    let joined = join(g, &window, &slots, qkv, false);
    write_windows(g, &window, &slots, joined, width);
    let taps = g.input("taps", F32, &[width, channels]).unwrap();
    let conv = g.ssm_conv(joined, taps, None, false).unwrap();
    let conv = g.silu(conv).unwrap();
    let part = |g: &mut Graph, first: usize, heads: usize| {
        let part = g.slice(conv, 0, size * first, size * heads).unwrap();
        g.reshape(part, &[size, heads, tokens, sequences]).unwrap()
    };
    let form =
        QkForm { repeat: Some(Grouping::Interleaved), norm_first: true, scaled: true, form: Form::Add };
    let q = part(g, 0, key_heads);
    let q = prepared(g, q, heads, form);
    let k = part(g, key_heads, key_heads);
    let k = prepared(g, k, heads, form);
    let v = part(g, 2 * key_heads, heads);
    let dt_bias = g.input("dt_bias", F32, &[1, heads]).unwrap();
    let a = g.input("a", F32, &[1, heads]).unwrap();
    let decay = g.add(alpha, dt_bias).unwrap();
    let decay = g.softplus(decay).unwrap();
    let decay = g.mul(decay, a).unwrap();
    let beta = g.sigmoid(beta).unwrap();
    let operands = [memory.pool, q, k, v, decay, beta, slots.read];
    let delta = g.gated_delta_net(operands, Grouping::Tiled, slots.spec.stored()).unwrap();
    for (back, &rows) in delta.states.iter().enumerate() {
        g.write_state(&memory, &slots, back, rows).unwrap();
    }
    let norm = g.input("norm", F32, &[size]).unwrap();
    let y = g.rms_norm(delta.y, None, 1e-6).unwrap();
    let y = g.mul(y, norm).unwrap();
    let gate = g.silu(z).unwrap();
    let y = g.mul(y, gate).unwrap();
    g.output(y).unwrap();
    let plan = Plan::new(g, &Devices::cpu(Some(1))).unwrap();
    insta::assert_snapshot!(format!("{}\n{}", g.to_text(), plan.to_text()));
}
