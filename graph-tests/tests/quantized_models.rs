//! Models with matrices in blocks of 4 and 6 bits: the devices agree, and the weights are those of the file.

use graph_tests::arrays::nmse;
use graph_tests::random_model::{
    MAMBA1_130M, MAMBA2_130M, MATRIX_TYPES, MambaSizes, Model, QWEN35_500M, Qwen35Sizes, random_model,
};
use ssmgraph::backend::Devices;
use ssmgraph::formats::Gguf;
use ssmgraph::formats::gguf::{TensorInfo, Writer};
use ssmgraph::ops::DType;
use ssmgraph::ops::quant::Format;
use ssmgraph::sample::argmax;
use ssmgraph::{Engine, EngineOptions, Logits};
use std::sync::Arc;

/// Rows of 256 and 512, and of 192 and 64 where a file must fall back.
fn models() -> [(&'static str, Model); 3] {
    let mamba = MambaSizes { n_vocab: 67, n_layer: 2, n_embd: 256, ..MAMBA1_130M };
    let mamba2 = MambaSizes { n_vocab: 67, n_layer: 2, n_embd: 256, time_step_rank: 8, ..MAMBA2_130M };
    let qwen35 = Qwen35Sizes {
        n_vocab: 67,
        n_layer: 4,
        n_embd: 256,
        n_ff: 192,
        heads: [2, 1],
        head_dim: 128,
        n_rot: 32,
        delta_heads: [2, 2],
        d_state: 32,
    };
    [("mamba", Model::Mamba(mamba)), ("mamba2", Model::Mamba(mamba2)), ("qwen35", Model::Qwen35(qwen35))]
}

fn gguf(model: Model, matrices: DType) -> Gguf {
    random_model(model, matrices, 7).unwrap().to_gguf().unwrap()
}

/// The file with some of its tensors replaced.
fn edited(gguf: &Gguf, edit: impl Fn(&TensorInfo, &[u8]) -> Option<(DType, Vec<u8>)>) -> Gguf {
    let mut writer = Writer::new();
    for (key, value) in gguf.metadata() {
        writer.metadata(key, value.clone()).unwrap();
    }
    for tensor in gguf.tensors() {
        let bytes = gguf.tensor_bytes(&tensor.name).unwrap();
        let (dtype, bytes) = edit(tensor, bytes).unwrap_or((tensor.layout.dtype, bytes.to_vec()));
        writer.tensor(&tensor.name, dtype, &tensor.layout.ne, bytes).unwrap();
    }
    writer.to_gguf().unwrap()
}

/// The file with all blocks expanded.
fn expanded(gguf: &Gguf) -> Gguf {
    edited(gguf, |tensor, bytes| {
        let format = Format::of(tensor.layout.dtype)?;
        let mut values = vec![0.0; tensor.layout.elements()];
        format.decode(bytes, &mut values);
        Some((DType::F32, values.iter().flat_map(|value| value.to_le_bytes()).collect()))
    })
}

/// Greedy tokens after a prompt, and all logits on the way.
fn generated(gguf: &Gguf, devices: &Devices) -> (Vec<u32>, Vec<f32>) {
    let options = EngineOptions { context: Some(32), ..EngineOptions::default() };
    let mut engine = Engine::load(Arc::new(gguf.clone()), devices, options).unwrap();
    let mut logits = engine.step(&[(0, &[3, 1, 4, 1, 5])], Logits::Last).unwrap().remove(0);
    let mut tokens = Vec::new();
    let mut all = logits.clone();
    for _ in 0..6 {
        tokens.push(argmax(&logits).unwrap() as u32);
        logits = engine.step(&[(0, &tokens[tokens.len() - 1..])], Logits::Last).unwrap().remove(0);
        all.extend(&logits);
    }
    (tokens, all)
}

/// The logits of a prompt.
fn prompt_logits(gguf: &Gguf) -> Vec<f32> {
    let options = EngineOptions { context: Some(32), ..EngineOptions::default() };
    let mut engine = Engine::load(Arc::new(gguf.clone()), &Devices::cpu(Some(2)), options).unwrap();
    engine.step(&[(0, &[3, 1, 4, 1, 5])], Logits::All).unwrap().remove(0)
}

#[test]
fn devices_agree() {
    for (name, model) in models() {
        for dtype in [DType::Q4_0, DType::Q4K, DType::Q6K] {
            let gguf = gguf(model, dtype);
            let (tokens, logits) = generated(&gguf, &Devices::cpu(Some(2)));
            let (reference_tokens, reference_logits) = generated(&gguf, &Devices::reference());
            assert_eq!(tokens, reference_tokens, "{name} {dtype}");
            let off = nmse(&logits, &reference_logits);
            // An activation that lies between two integers may round to the other one.
            assert!(off < 5e-4, "{name} {dtype}: {off:e}");
        }
    }
}

#[test]
fn weights_are_those_of_the_file() {
    for (name, model) in models() {
        for dtype in [DType::Q8_0, DType::Q4_0, DType::Q4K, DType::Q6K] {
            let gguf = gguf(model, dtype);
            // What is left is the rounding of activations to 8 bits.
            let off = nmse(&prompt_logits(&gguf), &prompt_logits(&expanded(&gguf)));
            assert!(off < 3e-3, "{name} {dtype}: {off:e}");
        }
    }
}

#[test]
fn rows_that_do_not_fill_blocks_fall_back() {
    let [(_, mamba), _, (_, qwen35)] = models();
    let type_of = |gguf: &Gguf, name: &str| gguf.tensor(name).unwrap().layout.dtype;
    let file = gguf(qwen35, DType::Q4K);
    assert_eq!(type_of(&file, "token_embd.weight"), DType::Q6K);
    assert_eq!(type_of(&file, "output.weight"), DType::Q6K);
    assert_eq!(type_of(&file, "blk.0.attn_qkv.weight"), DType::Q4K);
    assert_eq!(type_of(&file, "blk.0.ffn_down.weight"), DType::Q8_0);
    assert_eq!(type_of(&file, "blk.0.attn_norm.weight"), DType::F32);
    for &dtype in MATRIX_TYPES {
        assert_eq!(type_of(&gguf(mamba, dtype), "blk.1.ssm_in.weight"), dtype);
    }
}

#[test]
fn files_of_benchmark_size_have_rows_for_all_formats() {
    let Qwen35Sizes { n_embd, n_ff, heads, head_dim, delta_heads, d_state, .. } = QWEN35_500M;
    for row in [n_embd, n_ff, heads[0] * head_dim, delta_heads[1] * d_state] {
        assert!(row.is_multiple_of(DType::Q4K.block_len()), "{row}");
    }
}

#[test]
fn blocks_are_refused_where_elements_are_used() {
    let [_, _, (_, qwen35)] = models();
    for dtype in [DType::Q4_0, DType::Q4K, DType::Q6K] {
        let gguf = edited(&gguf(qwen35, dtype), |tensor, _| {
            let row = tensor.layout.ne[0] / dtype.block_len() * dtype.block_bytes();
            (tensor.name == "blk.1.attn_norm.weight").then(|| (dtype, vec![0; row]))
        });
        let error = ssmgraph::models::load_model(&gguf).err().unwrap().to_string();
        assert_eq!(error, format!("tensor \"blk.1.attn_norm.weight\" has type {dtype}, expected f32"));
    }
    // A format with a layout alone, in a matrix.
    let gguf = edited(&gguf(qwen35, DType::Q4K), |tensor, _| {
        (tensor.name == "output.weight").then(|| (DType::Q5K, vec![0; 67 * DType::Q5K.block_bytes()]))
    });
    let error = ssmgraph::models::load_model(&gguf).err().unwrap().to_string();
    let types = "f32 or f16 or bf16 or q8_0 or q4_0 or q4_k or q6_k";
    assert_eq!(error, format!("tensor \"output.weight\" has type q5_k, expected {types}"));
}

/// Scales that are infinite or NaN, and any other bits, run; what they give is nobody's business.
#[test]
fn any_bits_of_blocks_are_survived() {
    let [(_, mamba), ..] = models();
    for dtype in [DType::Q4_0, DType::Q4K, DType::Q6K] {
        for fill in [0xFF, 0x7C, 0x00] {
            let gguf = edited(&gguf(mamba, dtype), |tensor, bytes| {
                tensor.layout.dtype.is_block().then(|| (tensor.layout.dtype, vec![fill; bytes.len()]))
            });
            assert_eq!(prompt_logits(&gguf).len(), 5 * 67);
        }
    }
}

#[test]
fn a_file_cut_inside_a_block_is_refused() {
    let file = random_model(models()[0].1, DType::Q6K, 7).unwrap().to_bytes();
    let read = Gguf::parse(Arc::new(file.clone())).unwrap();
    for tensor in read.tensors().iter().filter(|tensor| tensor.layout.dtype == DType::Q6K) {
        for cut in [1, 209, 211] {
            let error = Gguf::parse(Arc::new(file[..tensor.range().end - cut].to_vec())).unwrap_err();
            assert!(error.to_string().contains("but the file has"), "{}: {error}", tensor.name);
        }
    }
    let mut writer = Writer::new();
    for (dtype, row) in [(DType::Q4_0, 33), (DType::Q4K, 128), (DType::Q6K, 257)] {
        let error = writer.tensor("x", dtype, &[row], Vec::new()).unwrap_err().to_string();
        assert!(error.contains(&format!("is not a multiple of {}", dtype.block_len())), "{error}");
    }
}
