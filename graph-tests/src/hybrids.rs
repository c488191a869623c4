//! Hybrids of attention and recurrence, made from the tiny models of the fixtures. All functions panic on a wrong call,
//! which is a test's way to fail.

use crate::model_file::File;
use ssmgraph::formats::gguf::Value;

/// A file with its keys under the name of another architecture.
fn renamed(file: &File, from: &str, to: &str) -> File {
    let mut file = file.clone();
    for (key, value) in &mut file.metadata {
        if let Some(rest) = key.strip_prefix(&format!("{from}.")) {
            *key = format!("{to}.{rest}");
        }
        if key == "general.architecture" {
            *value = to.into();
        }
    }
    file
}

/// The file with a feed-forward part in each layer. With `scale` 0 it adds nothing.
pub fn with_ffn(file: &File, layers: usize, norm: &str, scale: f32) -> File {
    const N_FF: usize = 32;
    let n_embd = file.ne("output_norm.weight")[0];
    let mut file = file.clone();
    for layer in 0..layers {
        let name = |end: &str| format!("blk.{layer}.{end}");
        let values = |seed: usize, factor: f32| -> Vec<f32> {
            (0..n_embd * N_FF)
                .map(|i| ((i * 7919 + seed * 104_729 + layer) % 211) as f32 / 211.0 - 0.5)
                .map(|x| x * factor)
                .collect()
        };
        file = file.with_values(&name(norm), &[n_embd], &vec![1.0; n_embd]);
        file = file.with_values(&name("ffn_gate.weight"), &[n_embd, N_FF], &values(1, 1.0));
        file = file.with_values(&name("ffn_up.weight"), &[n_embd, N_FF], &values(2, 1.0));
        file = file.with_values(&name("ffn_down.weight"), &[N_FF, n_embd], &values(3, scale));
    }
    set(&file, "feed_forward_length", (N_FF as u32).into())
}

/// The file with a key of its architecture set.
pub fn set(file: &File, name: &str, value: Value) -> File {
    let mut file = file.clone();
    let architecture = file.metadata.iter().find(|(key, _)| key == "general.architecture");
    let Value::String(text) = &architecture.unwrap().1 else { panic!("an architecture is a text") };
    let key = format!("{}.{name}", text.as_str().unwrap());
    file.metadata.retain(|(have, _)| *have != key);
    file.metadata.push((key, value));
    file
}

/// Keys of attention with heads in none of `layers` layers.
fn without_attention(file: &File, layers: usize) -> File {
    set(&set(file, "attention.head_count", 4u32.into()), "attention.head_count_kv", vec![0u32; layers].into())
}

/// The file with attention in a layer, of 4 heads with 2 of keys and values. With `scale` 0 it adds nothing.
pub fn with_attention(file: &File, layer: usize, scale: f32) -> File {
    let n_embd = file.ne("output_norm.weight")[0];
    let values = |seed: usize, count: usize, factor: f32| -> Vec<f32> {
        (0..count * n_embd)
            .map(|i| ((i * 6007 + seed * 15_485) % 193) as f32 / 193.0 - 0.5)
            .map(|x| x * factor)
            .collect()
    };
    let name = |end: &str| format!("blk.{layer}.attn_{end}.weight");
    let file = file.with_values(&name("q"), &[n_embd, n_embd], &values(1, n_embd, 1.0));
    let file = file.with_values(&name("k"), &[n_embd, n_embd / 2], &values(2, n_embd / 2, 1.0));
    let file = file.with_values(&name("v"), &[n_embd, n_embd / 2], &values(3, n_embd / 2, 1.0));
    file.with_values(&name("output"), &[n_embd, n_embd], &values(4, n_embd, scale))
}

/// The file without the recurrent mixer of a layer.
pub fn without_mixer(file: &File, layer: usize) -> File {
    let mut file = file.clone();
    let prefix = format!("blk.{layer}.ssm_");
    file.tensors.retain(|(name, ..)| !name.starts_with(&prefix));
    file
}

/// FalconMamba and the same as a Jamba: no attention, norms with weights of 1, and networks that add nothing.
pub fn jamba() -> (File, File) {
    let base = File::read("mamba1-rms-tiny");
    let mut file = renamed(&base, "mamba", "jamba");
    file.metadata.retain(|(key, _)| !key.ends_with("dt_b_c_rms"));
    for layer in 0..2 {
        for (norm, count) in [("dt", 8), ("b", 16), ("c", 16)] {
            file =
                file.with_values(&format!("blk.{layer}.ssm_{norm}_norm.weight"), &[count], &vec![1.0; count]);
        }
    }
    (base, without_attention(&with_ffn(&file, 2, "ffn_norm.weight", 0.0), 2))
}

/// Mamba-2 and the same as a Granite hybrid without attention, whose networks add nothing.
pub fn granite() -> (File, File) {
    let base = File::read("mamba2-g1-tiny");
    let file = renamed(&base, "mamba2", "granitehybrid");
    (base, without_attention(&with_ffn(&file, 2, "ffn_norm.weight", 0.0), 2))
}

/// Mamba-2 and the same as a Falcon-H1, whose networks add nothing and whose attention is scaled.
pub fn falcon(attention_scale: f32) -> (File, File) {
    let base = File::read("mamba2-g1-tiny");
    let file = with_ffn(&renamed(&base, "mamba2", "falcon-h1"), 2, "ffn_norm", 0.0);
    let file = (0..2).fold(file, |file, layer| with_attention(&file, layer, attention_scale));
    let file = set(&file, "attention.head_count", 4u32.into());
    (base, set(&file, "attention.head_count_kv", 2u32.into()))
}

/// The file with 4 experts, 2 of them used, in the place of a layer's network.
pub fn with_experts(file: &File, layer: usize) -> File {
    const EXPERTS: usize = 4;
    const N_FF: usize = 16;
    let n_embd = file.ne("output_norm.weight")[0];
    let name = |end: &str| format!("blk.{layer}.ffn_{end}.weight");
    let values = |seed: usize, count: usize| -> Vec<f32> {
        (0..count).map(|i| ((i * 4001 + seed * 911) % 151) as f32 / 151.0 - 0.5).collect()
    };
    let mut file = file.clone();
    for (end, ne) in [("gate", [n_embd, N_FF]), ("up", [n_embd, N_FF]), ("down", [N_FF, n_embd])] {
        let ne = [ne[0], ne[1], EXPERTS];
        let numbers = values(end.len(), ne.iter().product());
        file = file.without_tensor(&name(end)).with_values(&name(&format!("{end}_exps")), &ne, &numbers);
    }
    file = file.with_values(&name("gate_inp"), &[n_embd, EXPERTS], &values(9, n_embd * EXPERTS));
    file = set(&file, "expert_feed_forward_length", (N_FF as u32).into());
    file = set(&file, "expert_count", (EXPERTS as u32).into());
    set(&file, "expert_used_count", 2u32.into())
}

/// Hybrids that use all they have, by name: attention in some layers, beside the mixers or in
/// their place, and experts in some.
pub fn mixed() -> Vec<(&'static str, File)> {
    let in_second = |file: File| {
        let file = with_attention(&without_mixer(&file, 1), 1, 1.0);
        set(&file, "attention.head_count_kv", vec![0u32, 2].into())
    };
    vec![
        ("jamba", in_second(with_experts(&with_ffn(&jamba().1, 2, "ffn_norm.weight", 1.0), 0))),
        ("granitehybrid", in_second(with_experts(&with_ffn(&granite().1, 2, "ffn_norm.weight", 1.0), 0))),
        ("falcon-h1", with_ffn(&falcon(1.0).1, 2, "ffn_norm", 1.0)),
    ]
}
