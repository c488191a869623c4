//! Model files in which one thing is wrong: an error that names it, never a panic, and a good file loads
//! afterwards as if nothing had been.

use graph_tests::cuda;
use graph_tests::hybrids::{granite, mixed};
use graph_tests::model_file::File;
use ssmgraph::backend::Devices;
use ssmgraph::engine::Request;
use ssmgraph::formats::gguf::Value;
use ssmgraph::models::load_model;
use ssmgraph::ops::DType;
use ssmgraph::sample::{SampleOptions, Sampler};
use ssmgraph::{Engine, EngineError, EngineOptions, Logits};

/// Models that list what they do not use.
const LENIENT: [&str; 2] = ["mamba1-tiny", "mamba2-g1-tiny"];

/// Models that refuse whatever they do not know.
fn strict() -> Vec<File> {
    let qwen = ["qwen35-tiny", "qwen3next-tiny"].map(File::read);
    qwen.into_iter().chain(mixed().into_iter().map(|(_, file)| file)).collect()
}

fn all_models() -> Vec<File> {
    LENIENT.map(File::read).into_iter().chain(strict()).collect()
}

/// Loading and running, without a panic.
trait Attempt {
    fn load(&self) -> Result<Engine, EngineError>;
    fn outcome(&self) -> Result<Vec<f32>, String>;
}

impl Attempt for File {
    fn load(&self) -> Result<Engine, EngineError> {
        let gguf = self.gguf();
        let facts = load_model(&gguf).map(|model| model.info().clone());
        let engine = Engine::load(gguf, &Devices::cpu(Some(1)), EngineOptions::default());
        // Whatever is wrong with a file shows before any device is asked for memory.
        assert_eq!(facts.is_ok(), engine.is_ok(), "{:?}", engine.err());
        engine
    }

    /// Loads, and takes one step if that worked; the error otherwise.
    fn outcome(&self) -> Result<Vec<f32>, String> {
        let mut engine = self.load().map_err(|error| error.to_string())?;
        let logits = engine.step(&[(0, &[1, 2, 3])], Logits::Last).map_err(|error| error.to_string())?;
        Ok(logits.concat())
    }
}

fn u32(value: u32) -> Option<Value> {
    Some(value.into())
}

#[test]
fn a_file_with_one_thing_wrong_says_what() {
    let two = File::read("mamba2-g1-tiny");
    let one = File::read("mamba1-tiny");
    let errors: Vec<String> = [
        two.without_tensor("blk.0.ssm_conv1d.weight"),
        two.without_tensor("output_norm.weight"),
        two.with_tensor("blk.0.ssm_in.weight", DType::F32, &[516, 64]),
        two.with_tensor("blk.1.ssm_conv1d.weight", DType::F32, &[384, 4]),
        two.with_tensor("blk.1.ssm_conv1d.weight", DType::F32, &[4, 1, 384]),
        two.with_tensor("blk.0.ssm_d", DType::F16, &[1, 4]),
        two.with_tensor("token_embd.weight", DType::I32, &[64, 256]),
        two.with("group_count", u32(3)),
        two.with("group_count", u32(0)),
        two.with("time_step_rank", u32(0)),
        two.with("time_step_rank", u32(3)),
        two.with("time_step_rank", None),
        two.with("conv_kernel", u32(0)),
        two.with("state_size", u32(u32::MAX)),
        two.with("state_size", Some(u64::MAX.into())),
        two.with("inner_size", Some((1u64 << 62).into())),
        two.with("block_count", u32(3)),
        two.with("block_count", Some((-1i32).into())),
        two.with("rms_epsilon", Some(f32::NAN.into())),
        two.with("rms_epsilon", Some((-1e-5f32).into())),
        two.with("architecture", Some("rwkv7".into())),
        two.with("architecture", Some("mamba".into())),
        two.with("architecture", Some(7u32.into())),
        two.with("architecture", None),
        one.without_tensor("blk.1.ssm_dt.weight"),
        one.with("time_step_rank", u32(9)),
        one.with("embedding_length", u32(65)),
    ]
    .iter()
    .map(|file| file.outcome().unwrap_err())
    .collect();
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn what_a_model_does_not_use_is_reported_and_changes_nothing() {
    for file in all_models() {
        let expected = file.outcome().unwrap();
        let more = file.with_tensor("blk.7.attn_q.weight", DType::Q4_0, &[64, 2]);
        assert_eq!(more.load().unwrap().info().unused, ["blk.7.attn_q.weight"]);
        assert_eq!(more.outcome().unwrap(), expected);
        // A layer fewer is another model, whose tensors are whole.
        let fewer = file.with("block_count", u32(1));
        match fewer.load() {
            Ok(engine) => {
                assert!(engine.info().unused.iter().all(|name| !name.starts_with("blk.0.")));
                assert_ne!(fewer.outcome().unwrap(), expected);
            }
            // Some keys have a number for each layer.
            Err(error) => assert!(error.to_string().contains("head_count_kv"), "{error}"),
        }
    }
    for file in LENIENT.map(File::read) {
        let without = file.with("attention.head_count", None);
        assert_eq!(without.outcome().unwrap(), file.outcome().unwrap());
    }
}

/// Every key with every strange value: an error names the key or a tensor whose shape comes from it.
#[test]
fn every_key_can_have_any_value() {
    let mut offenders = Vec::new();
    for file in all_models() {
        let expected = file.outcome().unwrap();
        for (key, _) in &file.metadata {
            let strange: [Option<Value>; 21] = [
                None,
                u32(0),
                u32(1),
                u32(3),
                u32(u32::MAX),
                Some(u64::MAX.into()),
                Some((1u64 << 63).into()),
                Some((-1i32).into()),
                Some(f32::INFINITY.into()),
                Some(true.into()),
                Some("".into()),
                Some(vec![1u32, 2].into()),
                u32(2),
                u32(7),
                u32(1 << 20),
                Some(f32::NAN.into()),
                Some((-1.0f32).into()),
                Some(1e-45f32.into()),
                Some(Vec::<u32>::new().into()),
                Some(vec![0i32; 4].into()),
                Some(vec!["a", "b"].into()),
            ];
            for value in strange {
                if let Err(error) = file.with(key, value.clone()).outcome() {
                    // One key of the vocabulary says what another must be.
                    let named = match key {
                        key if key.starts_with("tokenizer.") => "tokenizer.",
                        key if key.ends_with("context_length") => "context_length",
                        key => key,
                    };
                    // Other kinds of layers, or more, have other tensors.
                    let kinds = ["block_count", "full_attention_interval", "head_count_kv"];
                    let layers = kinds.iter().any(|end| key.ends_with(end)) || key.contains(".expert_");
                    let lacks_layer = layers && error.starts_with("tensor \"blk.");
                    if !error.contains(named) && !lacks_layer {
                        offenders.push(format!("{key} = {value:?}: {error}"));
                    }
                }
            }
        }
        assert_eq!(file.outcome().unwrap(), expected);
    }
    assert!(offenders.is_empty(), "errors that name no key:\n{}", offenders.join("\n"));
}

/// Every tensor missing, turned, flattened, one larger, empty, of another type.
#[test]
fn every_tensor_can_have_any_shape_and_type() {
    for file in all_models() {
        let expected = file.outcome().unwrap();
        for (name, dtype, ne, _) in &file.tensors {
            let ne = full(ne);
            let [a, b, c, _] = ne;
            let mut files = vec![file.without_tensor(name)];
            let shapes: [&[usize]; 8] = [
                &[b, a, c],
                &[a * b * c],
                &[a + 1, b, c],
                &[a, b + 1, c],
                &[a, 1, b * c],
                &[0, b, c],
                &[a, b, c + 1],
                &[a, b, c, 2],
            ];
            files.extend(
                shapes
                    .iter()
                    .filter(|shape| full(shape) != ne)
                    .map(|shape| file.with_tensor(name, *dtype, shape)),
            );
            for other in [DType::F16, DType::BF16, DType::F64, DType::I32, DType::I8] {
                files.push(file.with_tensor(name, other, &ne));
            }
            for hostile in files {
                if let Err(error) = hostile.outcome() {
                    assert!(error.contains(name.as_str()), "{name}: {error}");
                }
            }
        }
        assert_eq!(file.outcome().unwrap(), expected);
    }
}

fn full(shape: &[usize]) -> [usize; 4] {
    ssmgraph::ops::full_shape(shape).unwrap()
}

/// What could change a model's maths and is not known is an error that names it.
#[test]
fn what_a_strict_model_does_not_know_is_refused() {
    let dense = File::read("qwen35-tiny");
    let mixed = File::read("qwen3next-tiny");
    let vector = |file: &File, name: &str| file.with_tensor(name, DType::F32, &[64]);
    let errors: Vec<String> = [
        dense.with_key("qwen35.rope.scaling.type", "yarn"),
        dense.with_key("qwen35.rope.scaling.factor", -2.0f32),
        dense.with_key("qwen35.attention.sliding_window", 128u32),
        dense.with_key("qwen35.nextn_predict_layers", 4u32),
        dense.with_key("qwen35.attention.recurrent_layers", vec![true, false]),
        dense.with("dimension_sections", Some(vec![2u32, 2, 2, 2].into())),
        dense.with("dimension_sections", Some(vec![0u32, 0, 0, 0].into())),
        dense.with("dimension_sections", Some(vec![4u32, 4].into())),
        dense.with("rope.dimension_count", u32(7)),
        dense.with("rope.freq_base", Some(0.0f32.into())),
        dense.with("attention.value_length", u32(16)),
        dense.with("ssm.inner_size", u32(64)),
        vector(&dense, "rope_freqs.weight"),
        vector(&dense, "blk.3.attn_q.bias"),
        vector(&dense, "blk.0.attn_qkv.scale"),
        mixed.with_key("qwen3next.expert_gating_func", 2u32),
        mixed.with_key("qwen3next.expert_group_count", 2u32),
        mixed.with("expert_used_count", u32(5)),
        mixed.without_tensor("blk.1.ffn_gate_inp.weight"),
        mixed.with_tensor("blk.1.ffn_up_exps.weight", DType::F32, &[64, 32, 3]),
        mixed.without_tensor("blk.2.ssm_ba.weight"),
    ]
    .iter()
    .map(|file| file.outcome().unwrap_err())
    .collect();
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn what_a_hybrid_does_not_know_is_refused() {
    let hybrids: Vec<File> = mixed().into_iter().map(|(_, file)| file).collect();
    let [jamba, granite, falcon] = &hybrids[..] else { panic!("three hybrids") };
    let (dense, experts) = (File::read("qwen35-tiny"), File::read("qwen3next-tiny"));
    let heads = |file: &File, counts: Vec<u32>| file.with("attention.head_count_kv", Some(counts.into()));
    let vector = |file: &File, name: &str| file.with_tensor(name, DType::F32, &[64]);
    let sections = |counts: Vec<i32>| dense.with("dimension_sections", Some(counts.into()));
    let errors: Vec<String> = [
        jamba.with_key("jamba.attention.sliding_window", 128u32),
        jamba.with_key("jamba.rope.freq_base", 1e4f32),
        jamba.with_key("jamba.expert_gating_func", 2u32),
        jamba.with("expert_count", u32(0)),
        jamba.with("expert_count", Some("four".into())),
        jamba.with("expert_count", None),
        jamba.with("expert_count", u32(u32::MAX)),
        jamba.with("expert_used_count", u32(0)),
        jamba.with("expert_used_count", u32(5)),
        jamba.without_tensor("blk.0.ffn_gate_inp.weight"),
        jamba.without_tensor("blk.0.ffn_down_exps.weight"),
        jamba.without_tensor("blk.1.ffn_gate.weight"),
        vector(jamba, "blk.0.ffn_exp_probs_b.bias"),
        vector(jamba, "blk.0.ssm_dt_norm.bias"),
        jamba.with("attention.head_count", u32(0)),
        heads(jamba, vec![0, 3]),
        heads(jamba, vec![0, 2, 2]),
        heads(jamba, vec![2, 2]),
        granite.with_key("granitehybrid.logit_scale", 1e-45f32),
        granite.with_key("granitehybrid.residual_scale", f32::INFINITY),
        granite.with_key("granitehybrid.rope.scaling.finetuned", 1u32),
        granite.with_key("granitehybrid.rope.scaling.type", "yarn"),
        granite.with_key("granitehybrid.expert_weights_norm", true),
        granite.without_tensor("blk.1.attn_k.weight"),
        granite.without_tensor("blk.0.ssm_norm.weight"),
        vector(granite, "blk.1.attn_q.bias"),
        falcon.with("attention.head_count_kv", u32(0)),
        falcon.with("attention.head_count", u32(6)),
        falcon.with("ssm.group_count", u32(3)),
        falcon.with_key("falcon-h1.rope.dimension_count", 18u32),
        falcon.with_key("falcon-h1.expert_count", 4u32),
        falcon.without_tensor("blk.1.ffn_norm"),
        falcon.with_tensor("blk.0.attn_v.weight", DType::F32, &[64, 0]),
        sections(vec![40, 0, 0, 0]),
        sections(vec![-1, 3, 3, 3]),
        dense.with("attention.head_count", u32(0)),
        dense.with("attention.head_count_kv", u32(0)),
        dense.with("attention.key_length", u32(0)),
        dense.with("ssm.group_count", u32(3)),
        dense.with("full_attention_interval", u32(0)),
        dense.with_key("qwen35.expert_count", 4u32),
        experts.with("expert_count", u32(0)),
        experts.with("expert_used_count", u32(0)),
        experts.with("expert_shared_feed_forward_length", u32(0)),
    ]
    .iter()
    .map(|file| file.outcome().err().unwrap_or_else(|| "was accepted".into()))
    .collect();
    insta::assert_snapshot!(errors.join("\n"));
}

/// Counts of 0 that agree with their tensors.
#[test]
fn a_model_without_heads_does_not_panic() {
    let dense = File::read("qwen35-tiny").with("attention.head_count", u32(0));
    let q = dense.with_tensor("blk.3.attn_q.weight", DType::F32, &[64, 0]);
    let file = q.with_tensor("blk.3.attn_output.weight", DType::F32, &[0, 64]);
    let error = file.outcome().unwrap_err();
    assert!(error.contains("qwen35.attention.head_count"), "{error}");
}

/// A dense Granite says so with counts of 0, and still gives the length of a network that no layer has.
#[test]
fn a_granite_without_experts_may_have_their_keys() {
    let (_, file) = granite();
    let expected = file.outcome().unwrap();
    let zero = file.with_key("granitehybrid.expert_count", 0u32);
    let zero = zero.with_key("granitehybrid.expert_used_count", 0u32);
    let more = zero.with_key("granitehybrid.expert_shared_feed_forward_length", 32u32);
    assert_eq!(more.outcome().unwrap(), expected);
    let error = zero.with("expert_used_count", u32(2)).outcome().unwrap_err();
    assert_eq!(
        error,
        "granitehybrid.expert_used_count is 2, expected 0, as there are no experts (granitehybrid.expert_count)"
    );
}

/// Keys that say what holds anyway, and layers that are not run.
#[test]
fn what_a_strict_model_knows_to_change_nothing_changes_nothing() {
    let dense = File::read("qwen35-tiny");
    let expected = dense.outcome().unwrap();
    for file in [
        dense.with_key("qwen35.rope.scaling.type", "none"),
        dense.with_key("qwen35.rope.scaling.factor", 1.0f32),
        dense.with_key("qwen35.attention.scale", 0.0f32),
        dense.with_key("qwen35.attention.recurrent_layers", vec![true, true, true, false]),
        dense.with_key("qwen35.nextn_predict_layers", 1u32).with("block_count", u32(5)),
    ] {
        assert_eq!(file.outcome().unwrap(), expected);
    }
    let stretched = dense.with_key("qwen35.rope.scaling.factor", 4.0f32);
    assert_ne!(stretched.outcome().unwrap(), expected);
}

/// Files whose sizes agree with each other and are still unusual.
#[test]
fn a_model_of_unusual_but_whole_sizes_runs() {
    let two = File::read("mamba2-g1-tiny");
    // One tap: the convolution has no window.
    let mut narrow = two.with("conv_kernel", u32(1));
    for layer in 0..2 {
        narrow = narrow.with_tensor(&format!("blk.{layer}.ssm_conv1d.weight"), DType::F32, &[1, 384]);
    }
    assert_eq!(narrow.outcome().unwrap().len(), 256);
    // No vocabulary: there is no token to run.
    let mut mute = two.with_tensor("token_embd.weight", DType::F32, &[64, 0]);
    mute = mute.with_tensor("output.weight", DType::F32, &[64, 0]).with("vocab_size", None);
    let error = mute.outcome().unwrap_err();
    assert!(error.contains("token"), "{error}");
}

/// Room and calls that make no sense, with and without attention, on both devices.
#[test]
fn calls_beyond_reason_are_errors() {
    for devices in [Devices::cpu(Some(1)), cuda::devices()] {
        let load = |file: &File, context: usize, cache_dtype: DType| {
            let context = Some(context);
            let options = EngineOptions { slots: 2, context, cache_dtype, ..EngineOptions::default() };
            Engine::load(file.gguf(), &devices, options)
        };
        let dense = File::read("qwen35-tiny");
        for huge in [usize::MAX, usize::MAX / 2, 1 << 40, 1 << 31] {
            let error = load(&dense, huge, DType::F32).err().unwrap().to_string();
            assert!(error.contains(&huge.to_string()) || error.contains("memory"), "{huge}: {error}");
        }
        for dtype in [DType::I32, DType::Q8_0, DType::I8] {
            let error = load(&dense, 8, dtype).err().unwrap().to_string();
            assert!(error.contains(&dtype.to_string()), "{error}");
        }
        assert!(load(&dense, 0, DType::F32).err().unwrap().to_string().contains("context"));

        let mut engine = load(&dense, 4, DType::F32).unwrap();
        assert_eq!(engine.step(&[], Logits::All).unwrap(), Vec::<Vec<f32>>::new());
        assert_eq!(engine.step(&[(1, &[]), (0, &[])], Logits::All).unwrap(), vec![Vec::<f32>::new(); 2]);
        engine.step(&[(1, &[1, 2]), (0, &[3])], Logits::None).unwrap();
        let before = [engine.save(0).unwrap(), engine.save(1).unwrap()];
        type Call<'a> = &'a [(usize, &'a [u32])];
        let calls: [(Call<'_>, &str); 6] = [
            (&[(0, &[1]), (1, &[1, 2, 3])], "slot 1 has seen 2 tokens and has room for 4: 3 more"),
            (&[(0, &[1; 5])], "slot 0 has seen 1 tokens and has room for 4: 5 more"),
            (&[(2, &[1])], "slot 2 does not exist, there are 2"),
            (&[(1, &[1]), (1, &[2])], "slot 1 is named twice"),
            (
                &[(0, &[1]), (1, &[2, 256])],
                "token 256 (number 1 of sequence 1) is outside the vocabulary of 256",
            ),
            (&[(0, &[u32::MAX])], "token 4294967295"),
        ];
        for (call, expected) in calls {
            let error = engine.step(call, Logits::All).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        for refused in
            [engine.reset(2), engine.rollback(2, 0), engine.rollback(0, usize::MAX), engine.rollback(1, 1)]
        {
            assert!(refused.unwrap_err().to_string().contains("slot "));
        }
        assert!(
            [engine.save(0).unwrap(), engine.save(1).unwrap()] == before,
            "a refused call changed a slot"
        );
        for (tokens, sequences) in [(0, 0), (0, 2), (1, 0), (usize::MAX, 2), (5, 1)] {
            // Whatever the answer, there is one.
            let _ = (engine.graph_for(tokens, sequences), engine.memory_for(tokens, sequences));
        }
        let request = |slot: usize, prompt: &[u32]| Request {
            slot,
            prompt: prompt.to_vec(),
            sampler: Sampler::new(SampleOptions::default()).unwrap(),
            tokens_max: 9,
            stop: Vec::new(),
        };
        assert!(engine.generate(vec![request(0, &[])]).is_err());
        assert!(engine.generate(vec![request(0, &[1]), request(0, &[1])]).is_err());
        assert_eq!(engine.generate(Vec::new()).unwrap().count(), 0);
        // Both run until the fuller one has no room left.
        let produced: Vec<_> = engine.generate(vec![request(0, &[5]), request(1, &[6])]).unwrap().collect();
        assert_eq!(produced.len(), 3);
        assert!(produced[1].is_ok());
        assert!(produced[2].as_ref().unwrap_err().to_string().contains("slot 1 has seen 4 tokens"));
        let [zero, one] = [0, 1].map(|slot| engine.position(slot).unwrap());
        assert_eq!((zero, one), (3, 4));
    }
}

#[test]
fn options_beyond_reason_are_errors() {
    let gguf = File::read("mamba2-g1-tiny").gguf();
    let refused = |options: EngineOptions| {
        let error = Engine::load(gguf.clone(), &Devices::cpu(Some(1)), options).err().unwrap();
        assert!(!error.to_string().is_empty());
    };
    for huge in [usize::MAX, usize::MAX / 2, 1 << 40, 1 << 31] {
        refused(EngineOptions { slots: huge, ..EngineOptions::default() });
        refused(EngineOptions { rollback: huge, ..EngineOptions::default() });
    }
    let options = EngineOptions { slots: 2, prompt_piece_max: usize::MAX, ..EngineOptions::default() };
    let mut engine = Engine::load(gguf.clone(), &Devices::cpu(Some(1)), options).unwrap();
    assert!(engine.graph_for(usize::MAX, 1).is_err());
    assert!(engine.graph_for(1, 3).is_err());
    assert!(engine.memory_for(1 << 60, 1).is_err());
    assert_eq!(engine.step(&[(0, &[1, 2])], Logits::All).unwrap()[0].len(), 512);
}
