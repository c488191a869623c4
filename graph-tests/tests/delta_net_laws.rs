//! Laws of the delta net on the CPU and on emulated CUDA, to the bit: tokens in one call = in pieces = one by one; a
//! sequence alone = in a batch, whatever its neighbours hold; rolled back = never come this far; restored =
//! continued; thread counts do not matter.

use graph_tests::cuda;
use graph_tests::laws::{bits, noise, run_on_slots, values};
use proptest::prelude::*;
use ssmgraph::backend::Devices;
use ssmgraph::graph::SlotsSpec;
use ssmgraph::ops::DType;
use ssmgraph::ops::gated_delta_net::Grouping;
use ssmgraph::ops::l2_norm::Form;
use ssmgraph::{Graph, Store, Tensor};
use std::sync::Arc;

/// Sizes of one mixer: norm of q and k, gates, then the delta net.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    size: usize,
    key_heads: usize,
    heads: usize,
    grouping: Grouping,
    vector_gate: bool,
}

impl Sizes {
    /// q, k and v side by side, as a convolution leaves them.
    fn channels(&self) -> usize {
        self.size * (2 * self.key_heads + self.heads)
    }

    fn gates(&self) -> usize {
        self.heads * if self.vector_gate { self.size } else { 1 }
    }
}

/// A graph of one mixer for some sequences and tokens.
struct Mixer {
    graph: Graph,
    qkv: Tensor,
    alpha: Tensor,
    beta: Tensor,
    weights: Vec<(Tensor, Vec<f32>)>,
    y: Tensor,
    tokens: usize,
}

fn mixer(sizes: Sizes, sequences: usize, tokens: usize, rollback: usize, seed: u64) -> Mixer {
    let Sizes { size, key_heads, heads, .. } = sizes;
    let mut g = Graph::new();
    let slots = g.slots(SlotsSpec { slots: 5, rollback, sequences, tokens }).unwrap();
    let state = g.state("delta", DType::F32, &[size, size, heads], &slots).unwrap();
    let qkv = g.input("qkv", DType::F32, &[sizes.channels(), tokens, sequences]).unwrap();
    let alpha = g.input("alpha", DType::F32, &[sizes.gates(), tokens, sequences]).unwrap();
    let beta = g.input("beta", DType::F32, &[heads, tokens, sequences]).unwrap();
    let a = g.input("a", DType::F32, &[sizes.gates()]).unwrap();
    let bias = g.input("dt_bias", DType::F32, &[sizes.gates()]).unwrap();
    let bytes = size_of::<f32>();
    let row = bytes * sizes.channels();
    let part = |g: &mut Graph, first: usize, heads: usize| {
        let nb = [bytes, bytes * size, row, row * tokens];
        let offset = if tokens * sequences == 0 { 0 } else { bytes * size * first };
        g.view(qkv, [size, heads, tokens, sequences], nb, offset).unwrap()
    };
    let (q, k) = (part(&mut g, 0, key_heads), part(&mut g, key_heads, key_heads));
    let v = part(&mut g, 2 * key_heads, heads);
    let (q, k) = g.qk_norm(q, k, 1e-6, Form::Add).unwrap();
    let gate = g.decay_gate(alpha, a, bias).unwrap();
    let gate = g.reshape(gate, &[sizes.gates() / heads, heads, tokens, sequences]).unwrap();
    let strength = g.sigmoid(beta).unwrap();
    let strength = g.reshape(strength, &[1, heads, tokens, sequences]).unwrap();
    let operands = [state.pool, q, k, v, gate, strength, slots.read];
    let delta = g.gated_delta_net(operands, sizes.grouping, slots.spec.stored()).unwrap();
    for (back, &rows) in delta.states.iter().enumerate() {
        g.write_state(&state, &slots, back, rows).unwrap();
    }
    g.output(delta.y).unwrap();
    let gates = sizes.gates();
    let weights = vec![(a, values(seed + 1, gates, 1.0, -1.1)), (bias, values(seed + 2, gates, 1.0, -1.0))];
    Mixer { graph: g, qkv, alpha, beta, weights, y: delta.y, tokens }
}

/// The inputs of one sequence: token t of it is the same wherever it is computed.
#[derive(Clone)]
struct Sequence {
    seed: u64,
    sizes: Sizes,
    /// Every input is NaN.
    poisoned: bool,
}

impl Sequence {
    fn new(seed: u64, sizes: Sizes) -> Sequence {
        Sequence { seed, sizes, poisoned: false }
    }

    fn part(&self, which: u64, width: usize, first: usize, tokens: usize) -> Vec<f32> {
        let number = |i| if self.poisoned { f32::NAN } else { noise(self.seed + 1000 * which, i) };
        (first * width..(first + tokens) * width).map(number).collect()
    }
}

impl Mixer {
    /// y of each sequence, the sequences being `slots`, each starting at token `first`.
    fn run(
        &self,
        store: &Arc<Store>,
        slots: &[usize],
        sequences: &[Sequence],
        first: usize,
    ) -> Vec<Vec<f32>> {
        let sizes = sequences[0].sizes;
        let parts = [(self.qkv, sizes.channels()), (self.alpha, sizes.gates()), (self.beta, sizes.heads)];
        let mut inputs = self.weights.clone();
        for (which, (tensor, width)) in parts.into_iter().enumerate() {
            let part = |sequence: &Sequence| sequence.part(which as u64, width, first, self.tokens);
            inputs.push((tensor, sequences.iter().flat_map(part).collect()));
        }
        run_on_slots(&self.graph, store, slots, &inputs, self.y)
    }
}

fn sizes() -> impl Strategy<Value = Sizes> {
    let grouping = prop_oneof![Just(Grouping::Tiled), Just(Grouping::Interleaved)];
    let size = prop_oneof![1usize..40, Just(16), Just(32), Just(64), Just(96), Just(128)];
    (size, 1usize..3, 1usize..3, grouping, any::<bool>()).prop_map(
        |(size, key_heads, repeats, grouping, vector_gate)| Sizes {
            size,
            key_heads,
            heads: key_heads * repeats,
            grouping,
            vector_gate,
        },
    )
}

/// The laws on some devices, made for a number of threads.
macro_rules! laws {
    ($($module:ident: $cases:literal cases on $devices:expr;)*) => {$(
        mod $module {
            use super::*;

            fn devices(threads: usize) -> Devices {
                $devices(threads)
            }

            proptest! {
                #![proptest_config(ProptestConfig { cases: $cases, failure_persistence: None, ..ProptestConfig::default() })]

                #[test]
                fn tokens_in_one_call_in_pieces_and_one_by_one_agree(
                    sizes in sizes(), seed in 0u64..1000, first in 1usize..9, second in 0usize..9, threads in 1usize..4
                ) {
                    let sequence = [Sequence::new(seed, sizes)];
                    let all = first + second;
                    let fresh = || Store::new(&devices(threads), Vec::new());
                    let store = fresh();
                    let whole = mixer(sizes, 1, all, 0, seed).run(&store, &[0], &sequence, 0).concat();
                    let state = store.save(0).unwrap();
                    let store = fresh();
                    let mut pieces = mixer(sizes, 1, first, 0, seed).run(&store, &[2], &sequence, 0).concat();
                    pieces.extend(mixer(sizes, 1, second, 0, seed).run(&store, &[2], &sequence, first).concat());
                    prop_assert_eq!(bits(&whole), bits(&pieces));
                    prop_assert!(state == store.save(2).unwrap());
                    let store = fresh();
                    let step = mixer(sizes, 1, 1, 0, seed);
                    let steps: Vec<f32> =
                        (0..all).flat_map(|t| step.run(&store, &[4], &sequence, t).concat()).collect();
                    prop_assert_eq!(bits(&whole), bits(&steps));
                    prop_assert!(state == store.save(4).unwrap());
                }

                #[test]
                fn a_sequence_alone_and_beside_nan_agree(
                    sizes in sizes(), seed in 0u64..1000, tokens in 1usize..6, threads in 1usize..4
                ) {
                    let mut three: Vec<Sequence> = (0..3).map(|i| Sequence::new(seed + 10_000 * i, sizes)).collect();
                    three[2].poisoned = true;
                    let store = Store::new(&devices(threads), Vec::new());
                    let batch = mixer(sizes, 3, tokens, 0, seed);
                    batch.run(&store, &[3, 0, 2], &three, 0);
                    let together = batch.run(&store, &[3, 0, 2], &three, tokens);
                    for index in 0..2 {
                        let alone = Store::new(&devices(threads), Vec::new());
                        let single = mixer(sizes, 1, tokens, 0, seed);
                        single.run(&alone, &[1], &three[index..=index], 0);
                        let single = single.run(&alone, &[1], &three[index..=index], tokens);
                        prop_assert_eq!(bits(&together[index]), bits(&single[0]));
                    }
                }

                #[test]
                fn rolling_back_is_never_having_come_this_far(
                    sizes in sizes(), seed in 0u64..1000, before in 1usize..5, drafted in 1usize..5, forgotten in 1usize..5
                ) {
                    let forgotten = forgotten.min(drafted);
                    let sequence = [Sequence::new(seed, sizes)];
                    let devices = devices(2);
                    let (store, straight) = (Store::new(&devices, Vec::new()), Store::new(&devices, Vec::new()));
                    let go = |store: &Arc<Store>, tokens: usize, first: usize| {
                        mixer(sizes, 1, tokens, 4, seed).run(store, &[1], &sequence, first).concat()
                    };
                    go(&store, before, 0);
                    go(&store, drafted, before);
                    store.rollback(1, forgotten).unwrap();
                    let kept = before + drafted - forgotten;
                    go(&straight, kept, 0);
                    prop_assert_eq!(bits(&go(&store, 2, kept)), bits(&go(&straight, 2, kept)));
                    prop_assert!(store.save(1).unwrap() == straight.save(1).unwrap());
                }

                #[test]
                fn restored_is_continued_also_on_another_backend(
                    sizes in sizes(), seed in 0u64..1000, before in 1usize..5, after in 1usize..4
                ) {
                    let sequence = [Sequence::new(seed, sizes)];
                    let store = Store::new(&devices(2), Vec::new());
                    let go = |store: &Arc<Store>, slot: usize, tokens: usize, first: usize| {
                        mixer(sizes, 1, tokens, 0, seed).run(store, &[slot], &sequence, first).concat()
                    };
                    go(&store, 0, before, 0);
                    let saved = store.save(0).unwrap();
                    let continued = go(&store, 0, after, before);
                    store.restore(3, &saved).unwrap();
                    prop_assert_eq!(bits(&continued), bits(&go(&store, 3, after, before)));
                    let reference = Store::new(&Devices::reference(), Vec::new());
                    go(&reference, 1, 1, 0);
                    reference.restore(2, &saved).unwrap();
                    for (a, b) in continued.iter().zip(go(&reference, 2, after, before)) {
                        prop_assert!((a - b).abs() <= 1e-4 * (1.0 + b.abs()), "{} and {}", a, b);
                    }
                }
            }
        }
    )*};
}

laws! {
    on_the_cpu: 40 cases on |threads| Devices::cpu(Some(threads));
    on_cuda: 10 cases on |_| cuda::devices();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn thread_counts_and_repetition_do_not_matter(sizes in sizes(), seed in 0u64..1000, tokens in 0usize..8) {
        let two: Vec<Sequence> = (0..2).map(|i| Sequence::new(seed + 9 * i, sizes)).collect();
        let run = |threads: usize| {
            let store = Store::new(&Devices::cpu(Some(threads)), Vec::new());
            let y = mixer(sizes, 2, tokens, 0, seed).run(&store, &[1, 0], &two, 0);
            (bits(&y.concat()), store.save(0).unwrap(), store.save(1).unwrap())
        };
        let one = run(1);
        for threads in [1, 2, 7] {
            prop_assert!(one == run(threads), "{} threads differ from one", threads);
        }
    }
}
