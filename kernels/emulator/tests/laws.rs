//! What exact arithmetic means, to the bit and over random shapes: tokens in one call equal a call for each; a
//! sequence alone equals the same sequence in a batch; where operands lie changes nothing.

mod support;

use cuda::engine::{Engine, Mode};
use ssmgraph_kernels::Forms;
use ssmgraph_ops::case::{Arrangement, Values, fill};
use ssmgraph_ops::gated_delta_net::{GatedDeltaNet, Grouping};
use ssmgraph_ops::{
    Attention, DType, HostTensor, Layout, MulMat, MulMatId, Op, SsmConv, SsmConvStep, SsmScan,
};
use std::sync::LazyLock;

static ENGINE: LazyLock<Engine> =
    LazyLock::new(|| Engine::load(Mode::Fast.library()).expect("built by build.rs"));

/// Shapes that each law is tried on.
const SHAPES: u32 = 20;

fn run(op: impl Into<Op>, inputs: &[HostTensor], seed: u32) -> Vec<HostTensor> {
    let op = op.into();
    support::compute(&ENGINE, &op, inputs, seed, None)
        .unwrap_or_else(|error| panic!("{}: {error}", op.name()))
}

/// `count` places of one axis from `start` on, packed.
fn piece(tensor: &HostTensor, axis: usize, start: usize, count: usize) -> HostTensor {
    let mut ne = tensor.ne();
    ne[axis] = count;
    let layout = Layout::contiguous(tensor.layout().dtype, &ne).expect("smaller than the whole");
    fill(layout, |mut index| {
        index[axis] += start;
        tensor.get(index)
    })
}

fn same(got: &HostTensor, want: &HostTensor, what: &str) {
    assert_eq!(got.ne(), want.ne(), "{what}");
    assert!(got.bytes() == want.bytes(), "{what}: other bits");
}

fn ids(values: &[i32]) -> HostTensor {
    HostTensor::from_i32(&[values.len()], values).expect("one id per sequence")
}

// ---- mul_mat

struct Product {
    op: MulMat,
    a: HostTensor,
    b: HostTensor,
}

impl Product {
    fn random(values: &mut Values) -> Product {
        let dtype = [DType::F32, DType::F16, DType::BF16, DType::Q8_0][values.below(4)];
        let wide = dtype == DType::Q8_0;
        let k = if wide { 32 * (1 + values.below(20)) } else { 1 + values.below(600) };
        let [m, n] = [1 + values.below(40), 1 + values.below(40)];
        let [a2, share, b3] = [1 + values.below(2), 1 + values.below(2), 1 + values.below(2)];
        let arrangements = if wide { Arrangement::PACKED_ROWS } else { Arrangement::ALL };
        let for_a = arrangements[values.below(arrangements.len())];
        let a = values.arranged(for_a, dtype, &[k, m, a2, 1], -1.0, 1.0);
        let for_b = Arrangement::ALL[values.below(Arrangement::ALL.len())];
        let b = values.arranged(for_b, DType::F32, &[k, n, a2 * share, b3], -1.0, 1.0);
        Product { op: MulMat { quantize: wide && values.below(2) == 0 }, a, b }
    }

    fn of(&self, b: HostTensor, seed: u32) -> HostTensor {
        run(self.op, &[self.a.clone(), b], seed).remove(0)
    }
}

#[test]
fn products_of_a_column_are_the_same_alone() {
    for seed in 0..SHAPES {
        let mut values = Values::new(u64::from(seed));
        let product = Product::random(&mut values);
        let what = format!("{} · {}, {:?}", product.a.layout(), product.b.layout(), product.op);
        let all = product.of(product.b.clone(), seed);
        let mut start = 0;
        while start < product.b.ne()[1] {
            let count = (1 + values.below(12)).min(product.b.ne()[1] - start);
            let some = product.of(piece(&product.b, 1, start, count), 0);
            same(&some, &piece(&all, 1, start, count), &what);
            start += count;
        }
        for matrix in 0..product.b.ne()[3] {
            let alone = product.of(piece(&product.b, 3, matrix, 1), 0);
            same(&alone, &piece(&all, 3, matrix, 1), &what);
        }
    }
}

#[test]
fn products_do_not_depend_on_where_weights_lie() {
    let mut values = Values::new(7);
    for (dtype, quantize) in
        [(DType::F32, false), (DType::F16, false), (DType::Q8_0, false), (DType::Q8_0, true)]
    {
        let a = values.tensor(dtype, &[288, 9], -1.0, 1.0);
        let b = values.tensor(DType::F32, &[288, 11], -1.0, 1.0);
        let packed = run(MulMat { quantize }, &[a.clone(), b.clone()], 0).remove(0);
        // Rows that begin at odd multiples of the type's alignment.
        let nb = a.layout().row_bytes() + a.layout().align();
        let spread =
            Layout::strided(dtype, a.ne(), [a.layout().nb[0], nb, nb * 9, nb * 9]).expect("a small shape");
        let mut moved = HostTensor::zeros(spread);
        moved.view_mut().expect("rows do not overlap").copy_from(&a.view());
        for columns in [1, 3, 11] {
            let b = piece(&b, 1, 0, columns);
            let got = run(MulMat { quantize }, &[moved.clone(), b], 0).remove(0);
            same(&got, &piece(&packed, 1, 0, columns), &format!("{dtype}, quantize {quantize}"));
        }
    }
}

// ---- mul_mat_id

#[test]
fn products_of_a_picked_expert_are_those_of_its_matrix() {
    for seed in 0..SHAPES {
        let mut values = Values::new(500 + u64::from(seed));
        let dtype = [DType::F32, DType::F16, DType::BF16, DType::Q8_0][values.below(4)];
        let wide = dtype == DType::Q8_0;
        let quantize = wide && values.below(2) == 0;
        let k = if wide { 32 * (1 + values.below(20)) } else { 1 + values.below(600) };
        let [m, experts] = [1 + values.below(40), 1 + values.below(6)];
        let [used, tokens] = [1 + values.below(4), 1 + values.below(9)];
        let rows = if values.below(2) == 0 { 1 } else { used };
        let a = values.tensor(dtype, &[k, m, experts], -1.0, 1.0);
        let for_b = Arrangement::ALL[values.below(Arrangement::ALL.len())];
        let b = values.arranged(for_b, DType::F32, &[k, rows, tokens], -1.0, 1.0);
        let picked: Vec<i32> = (0..used * tokens).map(|_| values.below(experts + 1) as i32 - 1).collect();
        let list = HostTensor::from_i32(&[used, tokens], &picked).expect("one id each");
        let y = run(MulMatId { quantize }, &[a.clone(), b.clone(), list], seed).remove(0);
        for (row, &expert) in picked.iter().enumerate() {
            let (u, n) = (row % used, row / used);
            let got = piece(&piece(&y, 1, u, 1), 2, n, 1);
            let what = format!("{} · {}, quantize {quantize}: expert {expert}", a.layout(), b.layout());
            let Ok(expert) = usize::try_from(expert) else {
                assert!(got.to_f64().iter().all(|&y| y == 0.0), "{what}");
                continue;
            };
            let bytes = a.layout().nb[2];
            let matrix = a.bytes()[expert * bytes..(expert + 1) * bytes].to_vec();
            let layout = Layout::contiguous(dtype, &[k, m]).expect("smaller than the whole");
            let matrix = HostTensor::from_bytes(layout, matrix).expect("whole rows");
            let x = piece(&piece(&b, 2, n, 1), 1, if rows == 1 { 0 } else { u }, 1);
            let want = run(MulMat { quantize }, &[matrix, x], 0).remove(0);
            assert!(got.bytes() == want.bytes(), "{what}: other bits");
        }
    }
}

// ---- attention

/// Operands of attention: q, k_cache, v_cache, slots, past; rows of caches are shared by no two sequences.
fn attention_operands(values: &mut Values) -> Vec<HostTensor> {
    let dtype = [DType::F32, DType::F16][values.below(2)];
    let [row, value_row] = [1 + values.below(90), 1 + values.below(150)];
    let groups = 1 + values.below(2);
    let heads = groups * (1 + values.below(3));
    let [tokens, sequences] = [1 + values.below(20), 1 + values.below(3)];
    let positions = tokens + values.below(400);
    let mut tensor = |dtype: DType, ne: &[usize]| {
        let arrangement = Arrangement::ALL[values.below(Arrangement::ALL.len())];
        values.arranged(arrangement, dtype, ne, -1.0, 1.0)
    };
    let q = tensor(DType::F32, &[row, heads, tokens, sequences]);
    let k = tensor(dtype, &[row, groups, positions, sequences + 1]);
    let v = tensor(dtype, &[value_row, groups, positions, sequences + 1]);
    let slots: Vec<i32> = (0..sequences as i32).rev().collect();
    let past: Vec<i32> = (0..sequences).map(|_| values.below(positions - tokens + 1) as i32).collect();
    vec![q, k, v, ids(&slots), ids(&past)]
}

#[test]
fn attention_of_a_token_is_the_same_alone() {
    for seed in 0..SHAPES {
        let operands = attention_operands(&mut Values::new(600 + u64::from(seed)));
        let op = Attention { scale: 0.5 };
        let whole = run(op, &operands, seed).remove(0);
        let [_, _, tokens, sequences] = operands[0].ne();
        let int = |operand: usize, sequence: usize| operands[operand].to_f64()[sequence] as i32;
        for sequence in 0..sequences {
            let q = piece(&operands[0], 3, sequence, 1);
            let want = piece(&whole, 3, sequence, 1);
            for token in 0..tokens {
                let mut alone = operands.clone();
                alone[0] = piece(&q, 2, token, 1);
                alone[3] = ids(&[int(3, sequence)]);
                alone[4] = ids(&[int(4, sequence) + token as i32]);
                let what = format!("{} over {}: {sequence}, {token}", q.layout(), operands[1].layout());
                same(&run(op, &alone, 0)[0], &piece(&want, 2, token, 1), &what);
            }
        }
    }
}

/// Many queries go through all positions at once, few are cut into pieces that are joined.
#[test]
fn attention_in_pieces_is_attention_at_once() {
    let mut values = Values::new(700);
    for dtype in [DType::F32, DType::F16] {
        let q = values.tensor(DType::F32, &[20, 4, 150, 1], -1.0, 1.0);
        let k = values.tensor(dtype, &[20, 2, 400, 1], -1.0, 1.0);
        let v = values.tensor(dtype, &[24, 2, 400, 1], -1.0, 1.0);
        let op = Attention { scale: 0.5 };
        let whole = run(op, &[q.clone(), k.clone(), v.clone(), ids(&[0]), ids(&[250])], 0).remove(0);
        for token in [0, 5, 6, 133, 134, 149] {
            let past = ids(&[250 + token as i32]);
            let one = run(op, &[piece(&q, 2, token, 1), k.clone(), v.clone(), ids(&[0]), past], 1).remove(0);
            same(&one, &piece(&whole, 2, token, 1), &format!("{dtype}, token {token}"));
        }
    }
}

#[test]
fn attention_names_the_first_slot_or_length_that_is_wrong() {
    let mut values = Values::new(701);
    let q = values.tensor(DType::F32, &[8, 2, 3, 3], -1.0, 1.0);
    for positions in [20, 200] {
        let k = values.tensor(DType::F32, &[8, 1, positions, 4], -1.0, 1.0);
        let far = positions as i32 - 2;
        for (slots, past) in [
            ([0, 1, 4], [0, 0, far]),
            ([0, -1, 7], [0, far, 0]),
            ([0, 1, -1], [0, -1, 0]),
            ([3, 2, 1], [0, 0, far]),
        ] {
            let inputs = [q.clone(), k.clone(), k.clone(), ids(&slots), ids(&past)];
            let op = Op::from(Attention { scale: 1.0 });
            let want = op.evaluate(&inputs).unwrap_err().to_string();
            for seed in 0..4 {
                let error = support::compute(&ENGINE, &op, &inputs, seed, None).unwrap_err();
                assert_eq!(error.to_string(), want);
            }
        }
    }
}

// ---- ssm_conv

#[test]
fn convolutions_of_a_token_are_the_same_alone() {
    for seed in 0..SHAPES {
        let mut values = Values::new(100 + u64::from(seed));
        let width = if values.below(2) == 0 { 4 } else { 1 + values.below(9) };
        let [channels, tokens, sequences] =
            [1 + values.below(150), 1 + values.below(140), 1 + values.below(3)];
        let op = SsmConv { bias: values.below(2) == 0, silu: values.below(2) == 0 };
        let arrangement = Arrangement::ALL[values.below(Arrangement::ALL.len())];
        let sx = [width - 1 + tokens, channels, sequences];
        let sx = values.arranged(arrangement, DType::F32, &sx, -1.0, 1.0);
        let w = values.tensor(DType::F32, &[width, channels], -1.0, 1.0);
        let bias = values.tensor(DType::F32, &[channels], -1.0, 1.0);
        let conv = |sx: HostTensor, seed: u32| {
            let inputs = [sx, w.clone(), bias.clone()];
            run(op, &inputs[..2 + usize::from(op.bias)], seed).remove(0)
        };
        let what = format!("{} with {width} taps", sx.layout());
        let all = conv(sx.clone(), seed);
        let mut start = 0;
        while start < tokens {
            let count = (1 + values.below(20)).min(tokens - start);
            let some = conv(piece(&sx, 0, start, width - 1 + count), 0);
            same(&some, &piece(&all, 1, start, count), &what);
            start += count;
        }
        for sequence in 0..sequences {
            let alone = conv(piece(&sx, 2, sequence, 1), 0);
            same(&alone, &piece(&all, 2, sequence, 1), &what);
        }
    }
}

// ---- ssm_conv_step

#[test]
fn convolutions_with_a_window_are_those_of_joined_inputs_and_the_same_step_by_step() {
    for seed in 0..SHAPES {
        let mut values = Values::new(150 + u64::from(seed));
        let width = if values.below(2) == 0 { 4 } else { 1 + values.below(12) };
        let [channels, tokens] = [1 + values.below(150), 1 + values.below(50)];
        let snapshots = 1 + values.below(20);
        let silu = values.below(2) == 0;
        let mut tensor = |ne: &[usize]| {
            let arrangement = Arrangement::ALL[values.below(Arrangement::ALL.len())];
            values.arranged(arrangement, DType::F32, ne, -1.0, 1.0)
        };
        let (s, x) = (tensor(&[width - 1, channels, 1, 2]), tensor(&[channels, tokens, 2]));
        let (w, bias) = (tensor(&[width, channels]), tensor(&[channels]));
        let what = format!("{} with {width} taps", x.layout());
        let step = |s: HostTensor, x: HostTensor, rows: &[i32], snapshots: usize, seed: u32| {
            let op = SsmConvStep { bias: true, silu, snapshots };
            run(op, &[s, x, w.clone(), bias.clone(), ids(rows)], seed)
        };
        let all = step(s.clone(), x.clone(), &[1, -1], snapshots, seed);
        let joined = Layout::contiguous(DType::F32, &[width - 1 + tokens, channels, 2]);
        let joined = fill(joined.expect("a small shape"), |[place, channel, sequence, _]| {
            match place.checked_sub(width - 1) {
                Some(token) => x.get([channel, token, sequence, 0]),
                None if sequence == 0 => s.get([place, channel, 0, 1]),
                None => 0.0,
            }
        });
        let conv = SsmConv { bias: true, silu };
        same(&all[0], &run(conv, &[joined, w.clone(), bias.clone()], 0)[0], &what);
        let mut one = step(s, piece(&x, 1, 0, 1), &[1, -1], 1, 0);
        for token in 0..tokens {
            same(&one[0], &piece(&all[0], 1, token, 1), &format!("{what}: y of token {token}"));
            let back = tokens - 1 - token;
            if let Some(kept) = all.get(1 + back) {
                same(&one[1], kept, &format!("{what}: window {back} tokens back"));
            }
            if token + 1 < tokens {
                one = step(one.remove(1), piece(&x, 1, token + 1, 1), &[0, 1], 1, 0);
            }
        }
    }
}

// ---- ssm_scan

struct Scan {
    /// s, x, dt, A, B, C.
    operands: Vec<HostTensor>,
    ids: Vec<i32>,
    tokens: usize,
}

impl Scan {
    fn random(values: &mut Values) -> Scan {
        let per_state = values.below(2) == 0;
        let states = [16, 16, 64, 128, 1 + values.below(270)][values.below(5)];
        let head_dim = if per_state { 1 } else { 1 + values.below(6) };
        let groups = 1 + values.below(2);
        // Now and then rows enough for the form that takes four of them at a time.
        let heads = groups * if values.below(4) == 0 && states <= 64 { 600 } else { 1 + values.below(9) };
        let [tokens, sequences] = [1 + values.below(if heads > 100 { 3 } else { 70 }), 2 + values.below(2)];
        let mut tensor = |ne: &[usize], low: f64, high: f64| {
            let arrangement = Arrangement::ALL[values.below(Arrangement::ALL.len())];
            values.arranged(arrangement, DType::F32, ne, low, high)
        };
        let operands = vec![
            tensor(&[states, head_dim, heads, sequences + 1], -1.0, 1.0),
            tensor(&[head_dim, heads, tokens, sequences], -1.0, 1.0),
            tensor(&[heads, tokens, sequences], -6.0, 2.0),
            tensor(&[if per_state { states } else { 1 }, heads], -4.0, -0.1),
            tensor(&[states, groups, tokens, sequences], -1.0, 1.0),
            tensor(&[states, groups, tokens, sequences], -1.0, 1.0),
        ];
        let ids = (0..sequences).map(|_| values.below(sequences + 2) as i32 - 1).collect();
        Scan { operands, ids, tokens }
    }

    fn run(&self, snapshots: usize, seed: u32) -> Vec<HostTensor> {
        let inputs: Vec<HostTensor> = self.operands.iter().cloned().chain([ids(&self.ids)]).collect();
        run(SsmScan { snapshots }, &inputs, seed)
    }

    /// The same scan over some of the tokens, from other states.
    fn tokens(&self, start: usize, count: usize) -> Scan {
        let axes = [None, Some(2), Some(1), None, Some(2), Some(2)];
        let cut = |(tensor, axis): (&HostTensor, Option<usize>)| match axis {
            Some(axis) => piece(tensor, axis, start, count),
            None => tensor.clone(),
        };
        let operands = self.operands.iter().zip(axes).map(cut).collect();
        Scan { operands, ids: self.ids.clone(), tokens: count }
    }

    /// One of its sequences.
    fn sequence(&self, sequence: usize) -> Scan {
        let axes = [None, Some(3), Some(2), None, Some(3), Some(3)];
        let cut = |(tensor, axis): (&HostTensor, Option<usize>)| match axis {
            Some(axis) => piece(tensor, axis, sequence, 1),
            None => tensor.clone(),
        };
        let operands = self.operands.iter().zip(axes).map(cut).collect();
        Scan { operands, ids: vec![self.ids[sequence]], tokens: self.tokens }
    }

    fn text(&self) -> String {
        self.operands.iter().map(|tensor| format!("{}; ", tensor.layout())).collect()
    }
}

#[test]
fn scans_of_tokens_are_the_same_step_by_step() {
    for seed in 0..SHAPES {
        let mut values = Values::new(200 + u64::from(seed));
        let scan = Scan::random(&mut values);
        let what = scan.text();
        // More than one launch writes, as often as not.
        let snapshots = 1 + values.below(20);
        let all = scan.run(snapshots, seed);
        let mut step = scan.tokens(0, 1);
        for token in 0..scan.tokens {
            let one = step.run(1, 0);
            same(&one[0], &piece(&all[0], 2, token, 1), &format!("{what}y of token {token}"));
            let back = scan.tokens - 1 - token;
            if let Some(kept) = all.get(1 + back) {
                same(&one[1], kept, &format!("{what}state {back} tokens back"));
            }
            if token + 1 < scan.tokens {
                step = scan.tokens(token + 1, 1);
                step.operands[0] = one[1].clone();
                step.ids = (0..scan.ids.len() as i32).collect();
            }
        }
    }
}

#[test]
fn scans_of_a_sequence_are_the_same_alone() {
    for seed in 0..SHAPES {
        let mut values = Values::new(300 + u64::from(seed));
        let scan = Scan::random(&mut values);
        let snapshots = 1 + values.below(12);
        let all = scan.run(snapshots, seed);
        for sequence in 0..scan.ids.len() {
            let alone = scan.sequence(sequence).run(snapshots, 0);
            assert_eq!(alone.len(), all.len());
            for (alone, all) in alone.iter().zip(&all) {
                same(alone, &piece(all, 3, sequence, 1), &format!("{}sequence {sequence}", scan.text()));
            }
        }
    }
}

#[test]
fn a_scan_names_the_first_id_outside_its_pool() {
    for seed in 0..4 {
        let mut scan = Scan::random(&mut Values::new(400));
        let rows = scan.operands[0].ne()[3] as i32;
        scan.ids = vec![rows; scan.ids.len()];
        scan.ids[0] = -1;
        let inputs: Vec<HostTensor> = scan.operands.iter().cloned().chain([ids(&scan.ids)]).collect();
        let error =
            support::compute(&ENGINE, &SsmScan { snapshots: 3 }.into(), &inputs, seed, None).unwrap_err();
        let want = format!("ssm_scan: ids[1, 0, 0] = {rows}, expected −1 or a row below {rows}");
        assert_eq!(error.to_string(), want);
    }
}

// ---- gated_delta_net

struct Delta {
    /// state, q, k, v, g, beta.
    operands: Vec<HostTensor>,
    ids: Vec<i32>,
    tokens: usize,
    grouping: Grouping,
}

impl Delta {
    fn random(values: &mut Values) -> Delta {
        let size = [16, 32, 64, 128, 1 + values.below(140), 1 + values.below(300)][values.below(6)];
        let key_heads = 1 + values.below(2);
        let heads = key_heads * (1 + values.below(2));
        let gates = if values.below(2) == 0 { size } else { 1 };
        let [tokens, sequences] = [1 + values.below(if size > 64 { 6 } else { 24 }), 2 + values.below(2)];
        let grouping = [Grouping::Tiled, Grouping::Interleaved][values.below(2)];
        let mut tensor = |ne: &[usize], low: f64, high: f64| {
            let arrangement = Arrangement::ALL[values.below(Arrangement::ALL.len())];
            values.arranged(arrangement, DType::F32, ne, low, high)
        };
        let unit = 1.7 / (size as f64).sqrt();
        let operands = vec![
            tensor(&[size, size, heads, sequences + 1], -1.0, 1.0),
            tensor(&[size, key_heads, tokens, sequences], -unit, unit),
            tensor(&[size, key_heads, tokens, sequences], -unit, unit),
            tensor(&[size, heads, tokens, sequences], -1.0, 1.0),
            tensor(&[gates, heads, tokens, sequences], -2.0, 0.0),
            tensor(&[1, heads, tokens, sequences], 0.0, 1.0),
        ];
        let ids = (0..sequences).map(|_| values.below(sequences + 2) as i32 - 1).collect();
        Delta { operands, ids, tokens, grouping }
    }

    fn run(&self, form: &'static str, snapshots: usize, seed: u32) -> Vec<HostTensor> {
        let inputs: Vec<HostTensor> = self.operands.iter().cloned().chain([ids(&self.ids)]).collect();
        let op = GatedDeltaNet { grouping: self.grouping, snapshots }.into();
        support::compute_as(&ENGINE, Forms::Named(form), &op, &inputs, seed, None)
            .unwrap_or_else(|error| panic!("{form}: {error}"))
    }

    /// The forms to try: each obeys the laws among its own results. Those of a block a row are slow to emulate.
    fn forms(&self, seed: u32) -> &'static [&'static str] {
        match (self.operands[0].ne()[0], seed % 4) {
            (257.., _) => &["warp_tree"],
            (_, 0) => &["warp_tree", "one_pass", "shared_tree", "unrolled_tree"],
            _ => &["warp_tree", "one_pass"],
        }
    }

    /// The same with `count` places of an axis of all operands but the state; other start rows.
    fn cut(&self, axis: usize, start: usize, count: usize, ids: Vec<i32>) -> Delta {
        let mut operands = self.operands.clone();
        operands[1..].iter_mut().for_each(|tensor| *tensor = piece(tensor, axis, start, count));
        let tokens = operands[3].ne()[2];
        Delta { operands, ids, tokens, grouping: self.grouping }
    }

    fn text(&self) -> String {
        self.operands.iter().map(|tensor| format!("{}; ", tensor.layout())).collect()
    }
}

impl Delta {
    fn assert_steps(&self, form: &'static str, snapshots: usize, seed: u32) {
        let what = format!("{form}: {}", self.text());
        let all = self.run(form, snapshots, seed);
        let mut step = self.cut(2, 0, 1, self.ids.clone());
        for token in 0..self.tokens {
            let one = step.run(form, 1, 0);
            same(&one[0], &piece(&all[0], 2, token, 1), &format!("{what}y of token {token}"));
            let back = self.tokens - 1 - token;
            if let Some(kept) = all.get(1 + back) {
                same(&one[1], kept, &format!("{what}state {back} tokens back"));
            }
            if token + 1 < self.tokens {
                step = self.cut(2, token + 1, 1, (0..self.ids.len() as i32).collect());
                step.operands[0] = one[1].clone();
            }
        }
    }

    fn assert_alone(&self, form: &'static str, snapshots: usize, seed: u32) {
        let all = self.run(form, snapshots, seed);
        for sequence in 0..self.ids.len() {
            let alone = self.cut(3, sequence, 1, vec![self.ids[sequence]]).run(form, snapshots, 0);
            assert_eq!(alone.len(), all.len());
            for (alone, all) in alone.iter().zip(&all) {
                let what = format!("{form}: {}sequence {sequence}", self.text());
                same(alone, &piece(all, 3, sequence, 1), &what);
            }
        }
    }
}

#[test]
fn delta_nets_of_tokens_are_the_same_step_by_step() {
    for seed in 0..SHAPES {
        let mut values = Values::new(500 + u64::from(seed));
        let delta = Delta::random(&mut values);
        // More than one launch writes, as often as not.
        let snapshots = 1 + values.below(20);
        delta.forms(seed).iter().for_each(|form| delta.assert_steps(form, snapshots, seed));
    }
}

#[test]
fn delta_nets_of_a_sequence_are_the_same_alone() {
    for seed in 0..SHAPES {
        let mut values = Values::new(600 + u64::from(seed));
        let delta = Delta::random(&mut values);
        let snapshots = 1 + values.below(12);
        delta.forms(seed).iter().for_each(|form| delta.assert_alone(form, snapshots, seed));
    }
}

#[test]
fn delta_nets_have_one_tree_whether_it_is_unrolled_or_not() {
    for seed in 0..SHAPES / 2 {
        let delta = Delta::random(&mut Values::new(900 + u64::from(seed)));
        if delta.operands[0].ne()[0] > 256 {
            continue;
        }
        let [shared, unrolled] = ["shared_tree", "unrolled_tree"].map(|form| delta.run(form, 2, seed));
        shared.iter().zip(&unrolled).for_each(|(a, b)| same(a, b, &delta.text()));
    }
}

#[test]
fn a_strength_of_zero_keeps_a_state_without_decay() {
    for seed in 0..SHAPES {
        let mut delta = Delta::random(&mut Values::new(700 + u64::from(seed)));
        delta.ids = (0..delta.ids.len() as i32).collect();
        for (operand, value) in [(2, f64::NAN), (3, f64::INFINITY), (4, 0.0), (5, 0.0)] {
            delta.operands[operand] = fill(*delta.operands[operand].layout(), |_| value);
        }
        let start = piece(&delta.operands[0], 3, 0, delta.ids.len());
        for form in delta.forms(seed) {
            let (results, what) = (delta.run(form, 1, seed), format!("{form}: {}", delta.text()));
            same(&results[1], &start, &what);
            assert!(results[0].to_f64().iter().all(|y| y.is_finite()), "{what}");
        }
    }
}

#[test]
fn a_delta_net_names_the_first_id_outside_its_pool() {
    let mut delta = Delta::random(&mut Values::new(800));
    let rows = delta.operands[0].ne()[3] as i32;
    delta.ids = vec![rows; delta.ids.len()];
    delta.ids[0] = -1;
    let inputs: Vec<HostTensor> = delta.operands.iter().cloned().chain([ids(&delta.ids)]).collect();
    let op = GatedDeltaNet { grouping: delta.grouping, snapshots: 3 }.into();
    let want = format!("gated_delta_net: ids[1, 0, 0] = {rows}, expected −1 or a row below {rows}");
    for form in delta.forms(0) {
        let error = support::compute_as(&ENGINE, Forms::Named(form), &op, &inputs, 1, None).unwrap_err();
        assert_eq!(error.to_string(), want, "{form}");
    }
}
