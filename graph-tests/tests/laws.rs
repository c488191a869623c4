//! Laws of the recurrent ops on the CPU and on emulated CUDA, to the bit, over many shapes and seeds: tokens in one call = in
//! pieces = one by one; a sequence alone = in a batch; two runs are equal; thread counts do not matter.

use graph_tests::cuda;
use graph_tests::laws::{bits, noise, run_on_slots, values};
use proptest::prelude::*;
use ssmgraph::backend::Devices;
use ssmgraph::graph::{Slots, SlotsSpec, State};
use ssmgraph::ops::DType;
use ssmgraph::{Graph, Store, Tensor};
use std::sync::Arc;

/// Sizes of one block: conv, then scan, as in Mamba (A has a row per state) or Mamba-2 (one decay per head).
#[derive(Clone, Copy, Debug)]
struct Sizes {
    states: usize,
    head_dim: usize,
    heads: usize,
    groups: usize,
    width: usize,
    decay_per_state: bool,
}

impl Sizes {
    fn inner(&self) -> usize {
        self.head_dim * self.heads
    }

    /// x, B and C side by side, as the convolution sees them.
    fn channels(&self) -> usize {
        self.inner() + 2 * self.groups * self.states
    }
}

/// A graph of one block for some sequences and tokens.
struct Block {
    graph: Graph,
    xbc: Tensor,
    dt: Tensor,
    weights: Vec<(Tensor, Vec<f32>)>,
    y: Tensor,
    tokens: usize,
}

fn roll_conv(g: &mut Graph, state: &State, slots: &Slots, sx: Tensor, width: usize, tokens: usize) {
    for back in 0..slots.spec.stored() {
        let window = g.slice(sx, 0, tokens - back.min(tokens), width - 1).unwrap();
        let window = g.cont(window).unwrap();
        g.write_state(state, slots, back, window).unwrap();
    }
}

/// How a block writes its convolution.
#[derive(Clone, Copy, Debug)]
enum Conv {
    /// One op with its window.
    Step,
    /// The window and the new inputs joined, then a convolution, then a new window.
    Joined,
}

fn block(sizes: Sizes, sequences: usize, tokens: usize, rollback: usize, seed: u64) -> Block {
    block_with(Conv::Step, sizes, sequences, tokens, rollback, seed)
}

fn block_with(
    conv: Conv,
    sizes: Sizes,
    sequences: usize,
    tokens: usize,
    rollback: usize,
    seed: u64,
) -> Block {
    let Sizes { states, head_dim, heads, groups, width, .. } = sizes;
    let (inner, channels) = (sizes.inner(), sizes.channels());
    let mut g = Graph::new();
    let slots = g.slots(SlotsSpec { slots: 5, rollback, sequences, tokens }).unwrap();
    let conv_state = g.state("conv", DType::F32, &[width - 1, channels], &slots).unwrap();
    let scan_state = g.state("scan", DType::F32, &[states, head_dim, heads], &slots).unwrap();
    let xbc = g.input("xbc", DType::F32, &[channels, tokens, sequences]).unwrap();
    let dt = g.input("dt", DType::F32, &[heads, tokens, sequences]).unwrap();
    let conv_w = g.input("conv_w", DType::F32, &[width, channels]).unwrap();
    let conv_b = g.input("conv_b", DType::F32, &[channels]).unwrap();
    let decays = if sizes.decay_per_state { states } else { 1 };
    let a = g.input("a", DType::F32, &[decays, heads]).unwrap();

    let act = match conv {
        Conv::Step => {
            let operands = [conv_state.pool, xbc, conv_w, slots.read];
            let step = g.ssm_conv_step(operands, Some(conv_b), true, slots.spec.stored()).unwrap();
            for (back, &rows) in step.states.iter().enumerate() {
                g.write_state(&conv_state, &slots, back, rows).unwrap();
            }
            step.y
        }
        Conv::Joined => {
            let old = g.read_state(&conv_state, &slots).unwrap();
            let old = g.reshape(old, &[width - 1, channels, sequences]).unwrap();
            let turned = g.transpose(xbc).unwrap();
            let sx = g.concat(&[old, turned], 0).unwrap();
            // Nobody sees a value that is not kept, and the plan would write the step itself.
            g.keep(sx).unwrap();
            roll_conv(&mut g, &conv_state, &slots, sx, width, tokens);
            g.ssm_conv(sx, conv_w, Some(conv_b), true).unwrap()
        }
    };
    let size = size_of::<f32>();
    let row = [size, size * channels, size * channels * tokens];
    let x = g
        .view(act, [head_dim, heads, tokens, sequences], [size, size * head_dim, row[1], row[2]], 0)
        .unwrap();
    let part = |g: &mut Graph, first: usize| {
        let ne = [states, groups, tokens, sequences];
        g.view(
            act,
            ne,
            [size, size * states, row[1], row[2]],
            if tokens * sequences == 0 { 0 } else { size * first },
        )
        .unwrap()
    };
    let b = part(&mut g, inner);
    let c = part(&mut g, inner + groups * states);
    let scan = g.ssm_scan([scan_state.pool, x, dt, a, b, c, slots.read], slots.spec.stored()).unwrap();
    for (back, &rows) in scan.states.iter().enumerate() {
        g.write_state(&scan_state, &slots, back, rows).unwrap();
    }
    g.output(scan.y).unwrap();
    let weights = vec![
        (conv_w, values(seed + 1, width * channels, 0.5, 0.0)),
        (conv_b, values(seed + 2, channels, 0.5, 0.0)),
        (a, values(seed + 3, decays * heads, 1.5, -1.6)),
    ];
    Block { graph: g, xbc, dt, weights, y: scan.y, tokens }
}

/// The inputs of one sequence: token t of it is the same wherever it is computed.
#[derive(Clone)]
struct Sequence {
    seed: u64,
    sizes: Sizes,
}

impl Sequence {
    fn xbc(&self, first: usize, tokens: usize) -> Vec<f32> {
        let channels = self.sizes.channels();
        (first * channels..(first + tokens) * channels).map(|i| noise(self.seed, i)).collect()
    }

    fn dt(&self, first: usize, tokens: usize) -> Vec<f32> {
        let heads = self.sizes.heads;
        (first * heads..(first + tokens) * heads).map(|i| noise(self.seed + 77, i) * 3.0 - 1.0).collect()
    }
}

impl Block {
    /// y of each sequence, the sequences being `slots`, each starting at token `first`.
    fn run(
        &self,
        store: &Arc<Store>,
        slots: &[usize],
        sequences: &[Sequence],
        first: usize,
    ) -> Vec<Vec<f32>> {
        let gather = |f: &dyn Fn(&Sequence) -> Vec<f32>| sequences.iter().flat_map(f).collect::<Vec<f32>>();
        let mut inputs = self.weights.clone();
        inputs.push((self.xbc, gather(&|s| s.xbc(first, self.tokens))));
        inputs.push((self.dt, gather(&|s| s.dt(first, self.tokens))));
        run_on_slots(&self.graph, store, slots, &inputs, self.y)
    }
}

fn sizes() -> impl Strategy<Value = Sizes> {
    let mamba1 = (1usize..20, 1usize..40, 2usize..6).prop_map(|(states, heads, width)| Sizes {
        states,
        head_dim: 1,
        heads,
        groups: 1,
        width,
        decay_per_state: true,
    });
    let mamba2 = (1usize..70, 1usize..36, 1usize..4, 1usize..3, 2usize..6).prop_map(
        |(states, head_dim, per_group, groups, width)| Sizes {
            states,
            head_dim,
            heads: per_group * groups,
            groups,
            width,
            decay_per_state: false,
        },
    );
    prop_oneof![mamba1, mamba2]
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
                    let sequence = Sequence { seed, sizes };
                    let all = first + second;
                    let fresh = || Store::new(&devices(threads), Vec::new());
                    let whole = block(sizes, 1, all, 0, seed).run(&fresh(), &[0], std::slice::from_ref(&sequence), 0).concat();
                    let store = fresh();
                    let mut pieces = block(sizes, 1, first, 0, seed).run(&store, &[2], std::slice::from_ref(&sequence), 0).concat();
                    let rest = block(sizes, 1, second, 0, seed).run(&store, &[2], std::slice::from_ref(&sequence), first).concat();
                    pieces.extend(rest);
                    prop_assert_eq!(bits(&whole), bits(&pieces));
                    let store = fresh();
                    let step = block(sizes, 1, 1, 0, seed);
                    let steps: Vec<f32> = (0..all)
                        .flat_map(|t| step.run(&store, &[4], std::slice::from_ref(&sequence), t).concat())
                        .collect();
                    prop_assert_eq!(bits(&whole), bits(&steps));
                }

                #[test]
                fn a_sequence_alone_and_in_a_batch_agree(
                    sizes in sizes(), seed in 0u64..1000, tokens in 1usize..6, threads in 1usize..4, poison in any::<bool>()
                ) {
                    let three: Vec<Sequence> = (0..3).map(|i| Sequence { seed: seed + 1000 * i, sizes }).collect();
                    let store = Store::new(&devices(threads), Vec::new());
                    let batch = block(sizes, 3, tokens, 0, seed);
                    let mut inputs = three.clone();
                    if poison {
                        // A neighbour full of other numbers must not be felt either.
                        inputs[2].seed += 5;
                    }
                    let together = batch.run(&store, &[3, 0, 2], &inputs, 0);
                    for index in 0..2 {
                        let alone = Store::new(&devices(threads), Vec::new());
                        let single = block(sizes, 1, tokens, 0, seed).run(&alone, &[1], &three[index..=index], 0);
                        prop_assert_eq!(bits(&together[index]), bits(&single[0]));
                    }
                }

                #[test]
                fn rolling_back_is_never_having_come_this_far(
                    sizes in sizes(), seed in 0u64..1000, before in 1usize..5, drafted in 1usize..5, forgotten in 1usize..5
                ) {
                    let forgotten = forgotten.min(drafted);
                    let sequence = [Sequence { seed, sizes }];
                    let devices = devices(2);
                    let (store, straight) = (Store::new(&devices, Vec::new()), Store::new(&devices, Vec::new()));
                    let go = |store: &Arc<Store>, tokens: usize, first: usize| {
                        block(sizes, 1, tokens, 4, seed).run(store, &[1], &sequence, first).concat()
                    };
                    go(&store, before, 0);
                    go(&store, drafted, before);
                    store.rollback(1, forgotten).unwrap();
                    let kept = before + drafted - forgotten;
                    go(&straight, kept, 0);
                    prop_assert_eq!(bits(&go(&store, 2, kept)), bits(&go(&straight, 2, kept)));
                    prop_assert_eq!(store.save(1).unwrap(), straight.save(1).unwrap());
                }

                #[test]
                fn restored_is_continued_also_on_another_backend(
                    sizes in sizes(), seed in 0u64..1000, before in 1usize..5, after in 1usize..4
                ) {
                    let sequence = [Sequence { seed, sizes }];
                    let store = Store::new(&devices(2), Vec::new());
                    let go = |store: &Arc<Store>, slot: usize, tokens: usize, first: usize| {
                        block(sizes, 1, tokens, 0, seed).run(store, &[slot], &sequence, first).concat()
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

                #[test]
                fn a_convolution_with_its_window_is_one_of_joined_inputs(
                    sizes in sizes(), seed in 0u64..1000, before in 0usize..6, tokens in 0usize..6, rollback in 0usize..4
                ) {
                    let two: Vec<Sequence> = (0..2).map(|i| Sequence { seed: seed + 9 * i, sizes }).collect();
                    let run = |conv: Conv| {
                        let store = Store::new(&devices(2), Vec::new());
                        let go = |tokens: usize, first: usize| {
                            block_with(conv, sizes, 2, tokens, rollback, seed).run(&store, &[3, 1], &two, first).concat()
                        };
                        let y = [go(before, 0), go(tokens, before)].map(|y| bits(&y));
                        (y, store.save(3).unwrap(), store.save(1).unwrap())
                    };
                    prop_assert!(run(Conv::Step) == run(Conv::Joined));
                }
            }
        }
    )*};
}

laws! {
    on_the_cpu: 40 cases on |threads| Devices::cpu(Some(threads));
    on_cuda: 12 cases on |_| cuda::devices();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn thread_counts_and_repetition_do_not_matter(sizes in sizes(), seed in 0u64..1000, tokens in 0usize..8) {
        let two: Vec<Sequence> = (0..2).map(|i| Sequence { seed: seed + 9 * i, sizes }).collect();
        let run = |threads: usize| {
            let store = Store::new(&Devices::cpu(Some(threads)), Vec::new());
            let y = block(sizes, 2, tokens, 0, seed).run(&store, &[1, 0], &two, 0);
            (bits(&y.concat()), store.save(0).unwrap(), store.save(1).unwrap())
        };
        let one = run(1);
        for threads in [1, 2, 7] {
            prop_assert!(one == run(threads), "{} threads differ from one", threads);
        }
    }
}
