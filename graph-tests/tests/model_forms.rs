//! Models that must compute the same from different files: layouts of one model, and architectures that contain one
//! another.

use graph_tests::arrays::{assert_bits, nmse};
use graph_tests::hybrids::{falcon, granite, jamba, mixed, set, with_attention, with_ffn, without_mixer};
use graph_tests::model_file::File;
use ssmgraph::backend::Devices;
use ssmgraph::{Engine, EngineOptions, Logits};

const TOKENS: [u32; 9] = [3, 141, 59, 26, 53, 58, 97, 93, 3];

fn engine(file: &File, slots: usize) -> Engine {
    let options = EngineOptions { slots, rollback: 2, ..EngineOptions::default() };
    Engine::load(file.gguf(), &Devices::cpu(Some(2)), options).unwrap()
}

fn logits(file: &File) -> Vec<f32> {
    engine(file, 1).step(&[(0, &TOKENS)], Logits::All).unwrap().concat()
}

/// Rows of a matrix in another order.
fn rows(values: &[f32], length: usize, order: impl IntoIterator<Item = usize>) -> Vec<f32> {
    order.into_iter().flat_map(|row| values[row * length..(row + 1) * length].to_vec()).collect()
}

/// q, k, v and z of each key head together, as older files have them.
#[test]
fn qwen3next_with_one_input_matrix_is_the_same_model() {
    let file = File::read("qwen3next-tiny");
    let (size, key_heads, heads, n_embd) = (32, 2, 4, 64);
    let mut joined = file.clone();
    for layer in 0..3 {
        let name = |end: &str| format!("blk.{layer}.{end}.weight");
        let mut all = file.values(&name("attn_qkv"));
        all.extend(file.values(&name("attn_gate")));
        let (k, v, z) = (size * key_heads, 2 * size * key_heads, 2 * size * key_heads + size * heads);
        let each = size * heads / key_heads;
        let order = (0..key_heads).flat_map(|head| {
            let values = head * each..(head + 1) * each;
            let keys = head * size..(head + 1) * size;
            let parts = [keys.clone().collect::<Vec<_>>(), keys.map(|i| k + i).collect()];
            let more = [values.clone().map(|i| v + i).collect::<Vec<_>>(), values.map(|i| z + i).collect()];
            parts.into_iter().chain(more).flatten().collect::<Vec<_>>()
        });
        let values = rows(&all, n_embd, order);
        joined = joined.without_tensor(&name("attn_qkv")).without_tensor(&name("attn_gate"));
        joined = joined.with_values(&name("ssm_in"), &[n_embd, values.len() / n_embd], &values);
    }
    assert_bits(&logits(&joined), &logits(&file), "joined");
}

#[test]
fn experts_with_one_inward_matrix_are_the_same() {
    let file = File::read("qwen3next-tiny");
    let mut joined = file.clone();
    for layer in 0..4 {
        let name = |end: &str| format!("blk.{layer}.ffn_{end}_exps.weight");
        let [n_embd, n_ff, experts, _] = file.ne(&name("gate"));
        let (gate, up) = (file.values(&name("gate")), file.values(&name("up")));
        let each = n_embd * n_ff;
        let pairs = gate.chunks_exact(each).zip(up.chunks_exact(each));
        let values: Vec<f32> = pairs.flat_map(|(gate, up)| [gate, up].concat()).collect();
        joined = joined.without_tensor(&name("gate")).without_tensor(&name("up"));
        joined = joined.with_values(&name("gate_up"), &[n_embd, 2 * n_ff, experts], &values);
    }
    assert_bits(&logits(&joined), &logits(&file), "joined");
}

#[test]
fn hybrids_that_add_nothing_to_their_mixers_are_those_models() {
    for (base, hybrid) in [jamba(), granite(), falcon(0.0)] {
        assert_bits(&logits(&hybrid), &logits(&base), "added nothing");
    }
}

/// Embeddings, branches and logits scaled by powers of two, and the weights by their inverses.
#[test]
fn granite_scales_are_factors_of_weights() {
    let (_, plain) = granite();
    let plain = with_ffn(&plain, 2, "ffn_norm.weight", 1.0);
    let mut scaled = set(&plain, "embedding_scale", 4.0f32.into());
    scaled = set(&scaled, "residual_scale", 0.5f32.into());
    scaled = set(&scaled, "logit_scale", 8.0f32.into());
    let mut times = |name: &str, factor: f32| {
        let values: Vec<f32> = scaled.values(name).iter().map(|value| value * factor).collect();
        let ne = scaled.ne(name);
        scaled = scaled.with_values(name, &ne[..2], &values);
    };
    times("token_embd.weight", 0.25);
    times("output.weight", 8.0);
    for layer in 0..2 {
        times(&format!("blk.{layer}.ssm_out.weight"), 2.0);
        times(&format!("blk.{layer}.ffn_down.weight"), 2.0);
    }
    assert_bits(&logits(&scaled), &logits(&plain), "scaled");
}

/// Turning neighbours is turning halves of rows that lie in another order.
#[test]
fn granite_attention_is_falcon_attention_with_rows_in_another_order() {
    const HEAD: usize = 16;
    let (_, base) = granite();
    let halves = falcon(1.0).1;
    let halves = (0..2).fold(halves, |file, layer| {
        let name = format!("blk.{layer}.ssm_out.weight");
        let ne = file.ne(&name);
        file.with_values(&name, &ne[..2], &vec![0.0; ne[0] * ne[1]])
    });
    let mut neighbours = base;
    for layer in 0..2 {
        neighbours = with_attention(&without_mixer(&neighbours, layer), layer, 1.0);
        for which in ["q", "k"] {
            let name = format!("blk.{layer}.attn_{which}.weight");
            let [n_embd, count, ..] = neighbours.ne(&name);
            let half = HEAD / 2;
            let order = (0..count).map(|row| row / HEAD * HEAD + row % HEAD / 2 + row % 2 * half);
            let values = rows(&neighbours.values(&name), n_embd, order);
            neighbours = neighbours.with_values(&name, &[n_embd, count], &values);
        }
    }
    let neighbours = set(&neighbours, "attention.head_count_kv", vec![2u32, 2].into());
    let error = nmse(&logits(&neighbours), &logits(&halves));
    assert!(error < 1e-12, "{error:e}");
    let unturned = set(&neighbours, "rope.scaling.finetuned", false.into());
    let error = nmse(&logits(&unturned), &logits(&halves));
    assert!(error > 1e-4, "positions were not felt: {error:e}");
}

#[test]
fn a_hybrid_sequence_depends_on_its_own_tokens_alone() {
    for (name, file) in mixed() {
        let alone = logits(&file);
        let mut crowd = engine(&file, 3);
        crowd.step(&[(1, &[9, 8])], Logits::None).unwrap();
        let together = crowd.step(&[(1, &[7; 4]), (2, &TOKENS)], Logits::All).unwrap();
        assert_bits(&together[1], &alone, name);

        let mut pieces = engine(&file, 1);
        let mut parts = Vec::new();
        for part in [&TOKENS[..1], &TOKENS[1..4]] {
            parts.extend(pieces.step(&[(0, part)], Logits::All).unwrap().concat());
        }
        pieces.step(&[(0, &[200, 201])], Logits::None).unwrap();
        pieces.rollback(0, 2).unwrap();
        parts.extend(pieces.step(&[(0, &TOKENS[4..])], Logits::All).unwrap().concat());
        assert_bits(&parts, &alone, name);
    }
}

#[test]
fn a_sequence_cannot_outgrow_its_context() {
    let options = EngineOptions { context: Some(4), ..EngineOptions::default() };
    let gguf = File::read("qwen35-tiny").gguf();
    let mut engine = Engine::load(gguf, &Devices::cpu(Some(1)), options).unwrap();
    engine.step(&[(0, &[1, 2, 3])], Logits::Last).unwrap();
    let error = engine.step(&[(0, &[4, 5])], Logits::Last).unwrap_err();
    assert!(error.to_string().starts_with("slot 0 has seen 3 tokens and has room for 4: 2 more"), "{error}");
    assert_eq!(engine.position(0).unwrap(), 3);
    engine.step(&[(0, &[4])], Logits::Last).unwrap();
}
