//! Model files in which one thing is wrong: an error that names it, never a panic, and a good file loads
//! afterwards as if nothing had been.

use graph_tests::hybrids::mixed;
use graph_tests::model_file::File;
use ssmgraph::backend::Devices;
use ssmgraph::formats::gguf::Value;
use ssmgraph::models::load_model;
use ssmgraph::ops::DType;
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
