//! Graphs written from plain ops: the planner puts whole ops in the place of their parts, fused = unfused within the
//! tolerance of the op, states included, and what is seen stays seen.

mod apart;
mod forms;
mod writer;

use forms::{ConvForm, QkForm, conv, delta, gated_form, gated_norm, join, prepared, qk_form, write_windows};
use graph_tests::cuda;
use proptest::prelude::*;
use ssmgraph::Graph;
use ssmgraph::backend::Devices;
use ssmgraph::graph::{Action, SlotsSpec};
use ssmgraph::ops::Op;
use ssmgraph::ops::gated_delta_net::Grouping;
use ssmgraph::ops::l2_norm::Form;
use ssmgraph::plan::Plan;
use writer::{F32, Writer, steps_agree};

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

/// Names, outputs and kept tensors are the same with and without fusion, and can be read.
#[test]
fn what_is_seen_stays_seen() {
    let mut w = apart::gated_parts(|_, _| {});
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
