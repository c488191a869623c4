//! Model files in which one thing is wrong: an error that names it, never a panic, and a good file loads
//! afterwards as if nothing had been.

use graph_tests::arrays::fixture;
use ssmgraph::backend::Devices;
use ssmgraph::formats::gguf::{Gguf, Value, Writer};
use ssmgraph::models::load_model;
use ssmgraph::ops::DType;
use ssmgraph::{Engine, EngineError, EngineOptions, Logits};
use std::sync::Arc;

const MODELS: [&str; 2] = ["mamba1-tiny", "mamba2-g1-tiny"];

/// A model file that can be changed.
#[derive(Clone)]
struct File {
    metadata: Vec<(String, Value)>,
    tensors: Vec<(String, DType, Vec<usize>, Vec<u8>)>,
}

impl File {
    fn read(model: &str) -> File {
        let gguf = Gguf::open(fixture(&format!("oracles/{model}.f32.gguf"))).unwrap();
        let metadata = gguf.metadata().map(|(key, value)| (key.to_owned(), value.clone()));
        let tensors = gguf.tensors().iter().map(|tensor| {
            let bytes = gguf.tensor_bytes(&tensor.name).unwrap().to_vec();
            (tensor.name.clone(), tensor.layout.dtype, tensor.layout.ne.to_vec(), bytes)
        });
        File {
            metadata: metadata.filter(|(key, _)| key != "general.alignment").collect(),
            tensors: tensors.collect(),
        }
    }

    fn gguf(&self) -> Arc<Gguf> {
        let mut writer = Writer::new();
        for (key, value) in &self.metadata {
            writer.metadata(key, value.clone()).unwrap();
        }
        for (name, dtype, ne, bytes) in &self.tensors {
            writer.tensor(name, *dtype, ne, bytes.clone()).unwrap();
        }
        Arc::new(Gguf::parse(Arc::new(writer.to_bytes())).unwrap())
    }

    /// The file with another value for the key whose name ends so; without the key for `None`.
    fn with(&self, end: &str, value: Option<Value>) -> File {
        let mut file = self.clone();
        let at = file.metadata.iter().position(|(key, _)| key.ends_with(end)).unwrap();
        match value {
            Some(value) => file.metadata[at].1 = value,
            None => drop(file.metadata.remove(at)),
        }
        file
    }

    fn without_tensor(&self, name: &str) -> File {
        let mut file = self.clone();
        file.tensors.retain(|(have, ..)| have != name);
        file
    }

    /// The file with a tensor of zeros in the place of another.
    fn with_tensor(&self, name: &str, dtype: DType, ne: &[usize]) -> File {
        let mut file = self.without_tensor(name);
        let bytes = ssmgraph::ops::Layout::contiguous(dtype, ne).unwrap().span_bytes();
        file.tensors.push((name.to_owned(), dtype, ne.to_vec(), vec![0; bytes]));
        file
    }

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
    for model in MODELS {
        let file = File::read(model);
        let expected = file.outcome().unwrap();
        let more = file.with_tensor("blk.7.attn_q.weight", DType::Q4_0, &[64, 2]);
        assert_eq!(more.load().unwrap().info().unused, ["blk.7.attn_q.weight"]);
        assert_eq!(more.outcome().unwrap(), expected);
        assert_eq!(file.with("attention.head_count", None).outcome().unwrap(), expected);
        // A layer fewer is another model, whose tensors are whole.
        let fewer = file.with("block_count", u32(1));
        assert!(fewer.load().unwrap().info().unused.iter().all(|name| name.starts_with("blk.1.")));
        assert_ne!(fewer.outcome().unwrap(), expected);
    }
}

/// Every key with every strange value: an error names the key or a tensor whose shape comes from it.
#[test]
fn every_key_can_have_any_value() {
    for model in MODELS {
        let file = File::read(model);
        let expected = file.outcome().unwrap();
        for (key, _) in &file.metadata {
            let strange: [Option<Value>; 12] = [
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
            ];
            for value in strange {
                if let Err(error) = file.with(key, value.clone()).outcome() {
                    // One key of the vocabulary says what another must be.
                    let named = if key.starts_with("tokenizer.") { "tokenizer." } else { key };
                    let lacks_layer = key.ends_with("block_count") && error.starts_with("tensor \"blk.2.");
                    assert!(error.contains(named) || lacks_layer, "{key} = {value:?}: {error}");
                }
            }
        }
        assert_eq!(file.outcome().unwrap(), expected);
    }
}

/// Every tensor missing, turned, flattened, one larger, empty, of another type.
#[test]
fn every_tensor_can_have_any_shape_and_type() {
    for model in MODELS {
        let file = File::read(model);
        let expected = file.outcome().unwrap();
        for (name, dtype, ne, _) in &file.tensors {
            let [a, b, ..] = ne[..] else { panic!("tensors have four axes here") };
            let mut files = vec![file.without_tensor(name)];
            let shapes: [&[usize]; 7] =
                [&[b, a], &[a * b], &[a + 1, b], &[a, b + 1], &[a, 1, b], &[0, b], &[a, b, 2]];
            files.extend(
                shapes
                    .iter()
                    .filter(|shape| full(shape) != ne[..])
                    .map(|shape| file.with_tensor(name, *dtype, shape)),
            );
            for other in [DType::F16, DType::BF16, DType::F64, DType::I32, DType::I8] {
                files.push(file.with_tensor(name, other, ne));
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
