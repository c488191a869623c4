//! The states of a run, oldest first: what programs find that keep the states after all T tokens in a buffer of their
//! own, and go on from the m-th of them when m drafted tokens are accepted. On the CPU and on emulated CUDA.

use graph_tests::cuda;
use graph_tests::laws::{bits, noise, values};
use proptest::prelude::*;
use ssmgraph::backend::Devices;
use ssmgraph::ops::DType;
use ssmgraph::ops::gated_delta_net::Grouping;
use ssmgraph::{Graph, Session, Tensor};

/// One recurrent op with its sizes.
#[derive(Clone, Copy, Debug)]
enum Recurrence {
    /// S, Hk, Hv
    DeltaNet(usize, usize, usize),
    /// N, P, H
    Scan(usize, usize, usize),
    /// k, C
    Conv(usize, usize),
}

/// Which tokens of how many sequences.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: usize,
    tokens: usize,
    sequences: usize,
}

/// What a run gives: y of each sequence, and all states, oldest first.
struct Run {
    y: Vec<Vec<f32>>,
    states: Vec<f32>,
}

struct Builder {
    graph: Graph,
    inputs: Vec<(Tensor, Vec<f32>)>,
    span: Span,
}

impl Builder {
    /// An input with one row of `width` numbers for each token; token t is the same wherever it is computed.
    fn tokens(&mut self, name: &str, ne: &[usize], scale: f32, shift: f32) -> Tensor {
        let width: usize = ne.iter().product();
        let Span { first, tokens, sequences } = self.span;
        let seed = name.bytes().map(u64::from).sum::<u64>();
        let number = |sequence: usize, i: usize| noise(seed + 1000 * sequence as u64, i) * scale + shift;
        let places = |b: usize| (first * width..(first + tokens) * width).map(move |i| number(b, i));
        let numbers = (0..sequences).flat_map(places).collect();
        self.input(name, &[ne, &[tokens, sequences]].concat(), numbers)
    }

    fn input(&mut self, name: &str, ne: &[usize], numbers: Vec<f32>) -> Tensor {
        let tensor = self.graph.input(name, DType::F32, ne).unwrap();
        self.inputs.push((tensor, numbers));
        tensor
    }
}

impl Recurrence {
    /// The shape of one sequence's state.
    fn state(self) -> [usize; 3] {
        match self {
            Recurrence::DeltaNet(size, _, heads) => [size, size, heads],
            Recurrence::Scan(states, rows, heads) => [states, rows, heads],
            Recurrence::Conv(taps, channels) => [taps - 1, channels, 1],
        }
    }

    /// Runs a span of tokens from `start`, keeping the state after each.
    fn run(self, devices: &Devices, span: Span, start: &[f32]) -> Run {
        let mut b = Builder { graph: Graph::new(), inputs: Vec::new(), span };
        let [n0, n1, n2] = self.state();
        let pool = b.input("start", &[n0, n1, n2, span.sequences], start.to_vec());
        let ids = b.graph.input("ids", DType::I32, &[span.sequences]).unwrap();
        let kept = span.tokens.max(1);
        let (y, states) = match self {
            Recurrence::DeltaNet(size, key_heads, heads) => {
                let [q, k] = ["q", "k"].map(|name| b.tokens(name, &[size, key_heads], 1.0, 0.0));
                let v = b.tokens("v", &[size, heads], 1.0, 0.0);
                let g = b.tokens("g", &[1, heads], 0.5, -0.6);
                let beta = b.tokens("beta", &[1, heads], 0.5, 0.5);
                let operands = [pool, q, k, v, g, beta, ids];
                let delta = b.graph.gated_delta_net(operands, Grouping::Tiled, kept).unwrap();
                (delta.y, delta.states)
            }
            Recurrence::Scan(states, rows, heads) => {
                let x = b.tokens("x", &[rows, heads], 1.0, 0.0);
                let dt = b.tokens("dt", &[heads], 2.0, -1.0);
                let [input, output] = ["B", "C"].map(|name| b.tokens(name, &[states, 1], 1.0, 0.0));
                let decay = b.input("A", &[1, heads], values(5, heads, 1.0, -1.1));
                let scan = b.graph.ssm_scan([pool, x, dt, decay, input, output, ids], kept).unwrap();
                (scan.y, scan.states)
            }
            Recurrence::Conv(taps, channels) => {
                let x = b.tokens("x", &[channels], 1.0, 0.0);
                let w = b.input("w", &[taps, channels], values(6, taps * channels, 1.0, 0.0));
                let step = b.graph.ssm_conv_step([pool, x, w, ids], None, true, kept).unwrap();
                (step.y, step.states)
            }
        };
        let states = b.graph.oldest_first(&states).unwrap();
        assert_eq!(b.graph.ne(states).unwrap(), [n0 * n1 * n2, span.sequences, kept, 1]);
        b.graph.output(y).unwrap();
        b.graph.output(states).unwrap();
        let mut session = Session::new(&b.graph, devices).unwrap();
        let own: Vec<i32> = (0..span.sequences as i32).collect();
        session.set(ids, &own).unwrap();
        b.inputs.iter().for_each(|(tensor, numbers)| session.set(*tensor, numbers).unwrap());
        session.run().unwrap();
        let y = session.get::<f32>(y).unwrap();
        let y = y.chunks(y.len() / span.sequences).map(<[f32]>::to_vec).collect();
        Run { y, states: session.get::<f32>(states).unwrap() }
    }
}

fn recurrence() -> impl Strategy<Value = Recurrence> {
    prop_oneof![
        (1usize..40, 1usize..3, 1usize..3).prop_map(|(s, hk, r)| Recurrence::DeltaNet(s, hk, hk * r)),
        (1usize..40, 1usize..20, 1usize..4).prop_map(|(n, p, h)| Recurrence::Scan(n, p, h)),
        (2usize..6, 1usize..40).prop_map(|(k, c)| Recurrence::Conv(k, c)),
    ]
}

fn check(devices: &Devices, of: Recurrence, tokens: usize, accepted: usize, sequences: usize, seed: u64) {
    let accepted = accepted.min(tokens);
    let all = of.state().iter().product::<usize>() * sequences;
    let start = values(seed, all, 1.0, 0.0);
    let span = |first: usize, tokens: usize| Span { first, tokens, sequences };
    let whole = of.run(devices, span(0, tokens), &start);

    // Row t is what t + 1 single steps give.
    let mut state = start;
    for (token, row) in whole.states.chunks(all).enumerate() {
        state = of.run(devices, span(token, 1), &state).states;
        assert_eq!(bits(&state), bits(row), "after token {token}");
    }

    // Having accepted m tokens, one goes on from row m − 1.
    let from = &whole.states[(accepted - 1) * all..accepted * all];
    let rest = of.run(devices, span(accepted, tokens - accepted + 1), from);
    let straight = of.run(devices, span(0, tokens + 1), &values(seed, all, 1.0, 0.0));
    for (rest, straight) in rest.y.iter().zip(&straight.y) {
        let width = straight.len() / (tokens + 1);
        assert_eq!(bits(rest), bits(&straight[accepted * width..]));
    }
    assert_eq!(bits(&rest.states), bits(&straight.states[accepted * all..]));
}

macro_rules! orders {
    ($($module:ident: $cases:literal cases on $devices:expr;)*) => {$(
        mod $module {
            use super::*;

            proptest! {
                #![proptest_config(ProptestConfig { cases: $cases, failure_persistence: None, ..ProptestConfig::default() })]

                #[test]
                fn accepting_tokens_is_going_on_from_their_state(
                    of in recurrence(), tokens in 1usize..8, accepted in 1usize..8, sequences in 1usize..3, seed in 0u64..99
                ) {
                    check(&$devices, of, tokens, accepted, sequences, seed);
                }
            }
        }
    )*};
}

orders! {
    on_the_cpu: 60 cases on Devices::cpu(Some(2));
    on_cuda: 20 cases on cuda::devices();
}

/// The delta rule written out in f64, as programs have it that keep every state: oldest first, and value head
/// r · Hk + kh reads key head kh.
#[test]
fn the_order_is_that_of_programs_that_keep_every_state() {
    const SIZE: usize = 16;
    const KEY_HEADS: usize = 2;
    const HEADS: usize = 4;
    const TOKENS: usize = 5;
    let start = values(3, SIZE * SIZE * HEADS, 1.0, 0.0);
    let token = |name: &str, width: usize, t: usize, i: usize| {
        f64::from(noise(name.bytes().map(u64::from).sum(), t * width + i))
    };
    let mut state: Vec<f64> = start.iter().map(|&x| x.into()).collect();
    let mut kept = Vec::new();
    for t in 0..TOKENS {
        for head in 0..HEADS {
            let key_head = head % KEY_HEADS;
            let decay = (token("g", HEADS, t, head) * 0.5 - 0.6).exp();
            let beta = token("beta", HEADS, t, head) * 0.5 + 0.5;
            for j in 0..SIZE {
                let row = &mut state[(head * SIZE + j) * SIZE..][..SIZE];
                row.iter_mut().for_each(|m| *m *= decay);
                let key = |i: usize| token("k", SIZE * KEY_HEADS, t, key_head * SIZE + i);
                let seen: f64 = (0..SIZE).map(|i| row[i] * key(i)).sum();
                let delta = (token("v", SIZE * HEADS, t, head * SIZE + j) - seen) * beta;
                (0..SIZE).for_each(|i| row[i] += key(i) * delta);
            }
        }
        kept.extend_from_slice(&state);
    }
    let span = Span { first: 0, tokens: TOKENS, sequences: 1 };
    for devices in [Devices::reference(), Devices::cpu(Some(2)), cuda::devices()] {
        let found = Recurrence::DeltaNet(SIZE, KEY_HEADS, HEADS).run(&devices, span, &start).states;
        assert_eq!(found.len(), kept.len());
        for (found, kept) in found.iter().zip(&kept) {
            assert!((f64::from(*found) - kept).abs() <= 1e-4 * (1.0 + kept.abs()), "{found} and {kept}");
        }
    }
}

#[test]
fn states_that_do_not_belong_together_are_refused() {
    let mut graph = Graph::new();
    let a = graph.input("a", DType::F32, &[4, 4, 2, 1]).unwrap();
    let b = graph.input("b", DType::F32, &[4, 4, 1, 1]).unwrap();
    let text = |states: &[Tensor], graph: &mut Graph| graph.oldest_first(states).unwrap_err().to_string();
    assert_eq!(text(&[], &mut graph), "state: oldest_first: no states, expected at least one");
    let expected = "state: oldest_first: states[1] has the shape [4, 4, 1, 1], expected [4, 4, 2, 1] (that of states[0])";
    assert_eq!(text(&[a, b], &mut graph), expected);
    assert!(text(&[a], &mut Graph::new()).contains("another graph"));
}
