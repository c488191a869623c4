//! Files that contradict themselves are refused with the tensor, both shapes and the key; odd calls of an
//! engine are refused before anything runs.

use graph_tests::arrays::fixture;
use ssmgraph::backend::Devices;
use ssmgraph::engine::Request;
use ssmgraph::formats::Gguf;
use ssmgraph::formats::gguf::{Value, Writer};
use ssmgraph::models::{Info, load_model};
use ssmgraph::ops::DType;
use ssmgraph::sample::Sampler;
use ssmgraph::{Engine, EngineOptions, Logits};
use std::sync::Arc;

/// A change to one tensor.
enum Change {
    Drop,
    Reshape(&'static [usize]),
    Retype(DType),
}

fn model() -> Gguf {
    Gguf::open(fixture("oracles/mamba2-g1-tiny.f32.gguf")).unwrap()
}

/// The file with keys set or removed, one tensor changed and others added.
fn altered(
    keys: &[(&str, Option<Value>)],
    tensor: Option<(&str, Change)>,
    added: &[&str],
) -> Result<Info, String> {
    let gguf = model();
    let mut writer = Writer::new();
    for (key, value) in gguf.metadata() {
        let value = match keys.iter().find(|(changed, _)| *changed == key) {
            Some((_, changed)) => changed.clone(),
            None => Some(value.clone()),
        };
        if let Some(value) = value {
            writer.metadata(key, value).unwrap();
        }
    }
    for info in gguf.tensors() {
        let mut bytes = gguf.tensor_bytes(&info.name).unwrap().to_vec();
        let (mut dtype, mut ne) = (info.layout.dtype, info.layout.ne.to_vec());
        match &tensor {
            Some((name, Change::Drop)) if *name == info.name => continue,
            Some((name, Change::Reshape(to))) if *name == info.name => ne = to.to_vec(),
            Some((name, Change::Retype(to))) if *name == info.name => {
                dtype = *to;
                bytes.truncate(bytes.len() / 2);
            }
            _ => {}
        }
        writer.tensor(&info.name, dtype, &ne, bytes).unwrap();
    }
    for name in added {
        writer.tensor_f32(name, &[2], &[0.0, 0.0]).unwrap();
    }
    let gguf = writer.to_gguf().map_err(|error| error.to_string())?;
    load_model(&gguf).map(|model| model.info().clone()).map_err(|error| error.to_string())
}

fn refused(keys: &[(&str, Option<Value>)], tensor: Option<(&str, Change)>) -> String {
    altered(keys, tensor, &[]).unwrap_err()
}

#[test]
fn an_unchanged_file_loads() {
    let info = altered(&[], None, &[]).unwrap();
    assert_eq!((info.n_vocab, info.n_layer, info.architecture.as_str()), (256, 2, "mamba2"));
    assert!(info.unused.is_empty());
    // Per layer: 3 inputs of 128 + 2 · 128 channels, and 4 heads of 32 rows of 128.
    assert_eq!(info.state_bytes, 2 * 4 * (3 * 384 + 4 * 32 * 128));
    assert_eq!(info.weights.len(), model().tensors().len());
}

#[test]
fn tensors_that_nobody_knows_are_reported() {
    let info = altered(&[], None, &["blk.2.ssm_a", "rope_freqs.weight"]).unwrap();
    assert_eq!(info.unused, ["blk.2.ssm_a", "rope_freqs.weight"]);
}

#[test]
fn a_missing_tensor_is_named_with_its_shape() {
    assert_eq!(
        refused(&[], Some(("blk.1.ssm_out.weight", Change::Drop))),
        "tensor \"blk.1.ssm_out.weight\" is missing, expected the shape [128 (mamba2.ssm.inner_size), 64 \
         (mamba2.embedding_length)]"
    );
    assert_eq!(
        refused(&[("mamba2.block_count", Some(3u32.into()))], None),
        "tensor \"blk.2.attn_norm.weight\" is missing, expected the shape [64 (mamba2.embedding_length)]"
    );
}

#[test]
fn a_wrong_shape_is_named_with_the_key_it_contradicts() {
    assert_eq!(
        refused(&[], Some(("blk.0.ssm_conv1d.weight", Change::Reshape(&[384, 4])))),
        "tensor \"blk.0.ssm_conv1d.weight\" is f32[384, 4], expected the shape [4 (mamba2.ssm.conv_kernel), \
         384 (mamba2.ssm.inner_size + 2 · mamba2.ssm.group_count · mamba2.ssm.state_size)]"
    );
    assert_eq!(
        refused(&[], Some(("blk.1.ssm_out.weight", Change::Reshape(&[64, 128])))),
        "tensor \"blk.1.ssm_out.weight\" is f32[64, 128], expected the shape [128 (mamba2.ssm.inner_size), \
         64 (mamba2.embedding_length)]"
    );
    let error = refused(&[("mamba2.ssm.state_size", Some(u64::MAX.into()))], None);
    assert!(error.contains("blk.0.ssm_in.weight"), "{error}");
    let error = refused(&[("mamba2.embedding_length", Some(32u32.into()))], None);
    assert_eq!(
        error,
        "tensor \"token_embd.weight\" is f32[64, 256], expected the shape [32 (mamba2.embedding_length), \
         256 (mamba2.vocab_size)]"
    );
}

#[test]
fn a_wrong_type_is_named() {
    assert_eq!(
        refused(&[], Some(("blk.0.ssm_a", Change::Retype(DType::F16)))),
        "tensor \"blk.0.ssm_a\" has type f16, expected f32"
    );
}

#[test]
fn keys_that_make_no_model_are_refused() {
    assert_eq!(
        refused(&[("mamba2.ssm.group_count", Some(3u32.into()))], None),
        "mamba2.ssm.group_count is 3, expected a divisor of 4 (mamba2.ssm.time_step_rank)"
    );
    assert_eq!(
        refused(&[("mamba2.ssm.time_step_rank", None)], None),
        "GGUF key \"mamba2.ssm.time_step_rank\" is missing"
    );
    assert_eq!(
        refused(&[("mamba2.ssm.time_step_rank", Some(0u32.into()))], None),
        "mamba2.ssm.time_step_rank is 0, expected at least 1"
    );
    let key = "mamba2.attention.layer_norm_rms_epsilon";
    assert_eq!(
        refused(&[(key, Some(f32::NAN.into()))], None),
        "mamba2.attention.layer_norm_rms_epsilon is NaN, expected a finite number of at least 0"
    );
    // Attention keys mean nothing to this architecture.
    altered(&[("mamba2.attention.head_count", Some(0u32.into()))], None, &[]).unwrap();
}

#[test]
fn an_unknown_architecture_is_refused_with_those_that_are_known() {
    let error = refused(&[("general.architecture", Some("rwkv7".into()))], None);
    let start = "general.architecture \"rwkv7\" is not supported, expected one of mamba, mamba2";
    assert!(error.starts_with(start), "{error}");
}

fn engine(slots: usize) -> Engine {
    let options = EngineOptions { slots, ..EngineOptions::default() };
    Engine::load(Arc::new(model()), &Devices::cpu(Some(1)), options).unwrap()
}

#[test]
fn odd_calls_are_refused_before_anything_runs() {
    let mut engine = engine(2);
    let mut refused = |sequences: &[(usize, &[u32])]| {
        let error = engine.step(sequences, Logits::Last).unwrap_err().to_string();
        assert_eq!(engine.position(0).unwrap(), 0);
        error
    };
    assert_eq!(
        refused(&[(0, &[1, 2]), (1, &[3, 256])]),
        "token 256 (number 1 of sequence 1) is outside the vocabulary of 256"
    );
    assert_eq!(refused(&[(0, &[1]), (2, &[1])]), "slot 2 does not exist, there are 2");
    assert_eq!(refused(&[(0, &[1]), (0, &[1])]), "slot 0 is named twice in one call");
    assert_eq!(engine.step(&[], Logits::All).unwrap(), Vec::<Vec<f32>>::new());
    assert_eq!(engine.step(&[(0, &[]), (1, &[])], Logits::All).unwrap(), vec![Vec::<f32>::new(); 2]);
    assert_eq!(engine.position(0).unwrap(), 0);
    for options in [
        EngineOptions { slots: 0, ..EngineOptions::default() },
        EngineOptions { prompt_piece_max: 0, ..EngineOptions::default() },
        EngineOptions { rollback: usize::MAX, ..EngineOptions::default() },
        EngineOptions { slots: usize::MAX, ..EngineOptions::default() },
    ] {
        assert!(Engine::load(Arc::new(model()), &Devices::cpu(Some(1)), options).is_err());
    }
}

#[test]
fn generation_stops_where_it_was_asked_to() {
    let mut engine = engine(3);
    let request = |slot, prompt: &[u32], tokens_max, stop: &[u32]| Request {
        slot,
        prompt: prompt.to_vec(),
        sampler: Sampler::greedy(),
        tokens_max,
        stop: stop.to_vec(),
    };
    let mut run = |requests: Vec<Request>| -> Vec<Vec<u32>> {
        let mut texts = vec![Vec::new(); requests.len()];
        for slot in 0..3 {
            engine.reset(slot).unwrap();
        }
        for step in engine.generate(requests).unwrap() {
            for produced in step.unwrap() {
                texts[produced.request].push(produced.token);
            }
        }
        texts
    };
    let free = run(vec![request(0, &[1, 2, 3], 8, &[])]).remove(0);
    assert_eq!(free.len(), 8);
    let texts = run(vec![
        request(2, &[9], 5, &[]),
        request(0, &[1, 2, 3], 8, &[free[3]]),
        request(1, &[4, 5], 0, &[]),
    ]);
    let first = free.iter().position(|&token| token == free[3]).unwrap();
    assert_eq!(texts[1], free[..=first]);
    assert_eq!((texts[0].len(), texts[2].len()), (5, 0));

    let error = engine.generate(vec![request(0, &[], 8, &[])]).err().unwrap().to_string();
    assert_eq!(error, "request 0 has no tokens; a model needs at least one to continue");
}

#[test]
fn planned_graphs_are_bounded_and_reported() {
    let options = EngineOptions { slots: 4, sessions_max: 2, ..EngineOptions::default() };
    let mut engine = Engine::load(Arc::new(model()), &Devices::cpu(Some(1)), options).unwrap();
    for tokens in [&[1u32][..], &[1, 2], &[1, 2, 3], &[1, 2]] {
        engine.step(&[(0, tokens)], Logits::Last).unwrap();
    }
    let reports = engine.reports();
    assert_eq!(reports.iter().map(|(shape, _)| shape.tokens).collect::<Vec<_>>(), [3, 2]);
    for (_, report) in &reports {
        assert_eq!(report.fallbacks().map(|node| &node.text).collect::<Vec<_>>(), Vec::<&String>::new());
    }
    let memory = engine.memory();
    assert_eq!(memory.len(), 1);
    assert_eq!(memory[0].weight_bytes, engine.info().weight_bytes());
    assert_eq!(memory[0].state_bytes, 4 * engine.info().state_bytes);
    assert!(memory[0].arena_bytes > engine.memory_for(2, 1).unwrap()[0].arena_bytes);
    assert!(engine.graph_for(2, 5).is_err());
    assert!(engine.plan_for(7, 4).unwrap().steps.len() > 10);
}
