//! Qwen3.5, the dense hybrid: three layers of the gated delta rule, then one of gated attention.

use super::{Builder, Outline, TAPS, UNIT};
use ssmgraph::formats::gguf::WriteError;

/// Sizes of a random Qwen3.5.
#[derive(Clone, Copy, Debug)]
pub struct Qwen35Sizes {
    /// Tokens in the vocabulary.
    pub n_vocab: usize,
    /// Layers; every fourth uses attention.
    pub n_layer: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Width inside the feed-forward layers.
    pub n_ff: usize,
    /// Heads of queries, and those of keys and values.
    pub heads: [usize; 2],
    /// Elements of such a head.
    pub head_dim: usize,
    /// Those of them that positions turn.
    pub n_rot: usize,
    /// Key heads of the delta rule, and its value heads.
    pub delta_heads: [usize; 2],
    /// Rows and columns of a value head's state.
    pub d_state: usize,
}

/// 24 layers of width 1024: 382 million parameters in layers, 67 million in embedding and output.
pub const QWEN35_500M: Qwen35Sizes = Qwen35Sizes {
    n_vocab: 32_768,
    n_layer: 24,
    n_embd: 1024,
    n_ff: 2816,
    heads: [8, 2],
    head_dim: 128,
    n_rot: 32,
    delta_heads: [8, 16],
    d_state: 128,
};

/// One layer of attention in so many.
const INTERVAL: usize = 4;

pub(super) fn write(builder: &mut Builder, sizes: Qwen35Sizes) -> Result<(), WriteError> {
    let Qwen35Sizes { n_vocab, n_layer, n_embd, n_ff, .. } = sizes;
    let outline = Outline { architecture: "qwen35", n_vocab, n_layer, n_embd, n_ff, eps: 1e-6 };
    let numbers = [
        ("attention.head_count", sizes.heads[0]),
        ("attention.head_count_kv", sizes.heads[1]),
        ("attention.key_length", sizes.head_dim),
        ("attention.value_length", sizes.head_dim),
        ("rope.dimension_count", sizes.n_rot),
        ("ssm.inner_size", sizes.d_state * sizes.delta_heads[1]),
        ("ssm.state_size", sizes.d_state),
        ("ssm.group_count", sizes.delta_heads[0]),
        ("ssm.time_step_rank", sizes.delta_heads[1]),
        ("full_attention_interval", INTERVAL),
    ];
    builder.outline(&outline, &numbers)?;
    builder.writer.metadata("qwen35.rope.freq_base", 10_000f32)?;
    builder.writer.metadata("qwen35.rope.dimension_sections", sections(sizes.n_rot))?;
    for layer in 0..n_layer {
        let prefix = format!("blk.{layer}");
        builder.norm(&format!("{prefix}.attn_norm.weight"), &[n_embd])?;
        match (layer + 1) % INTERVAL {
            0 => write_attention(builder, &prefix, sizes)?,
            _ => write_delta(builder, &prefix, sizes)?,
        }
        builder.norm(&format!("{prefix}.post_attention_norm.weight"), &[n_embd])?;
        builder.matrix(&format!("{prefix}.ffn_gate.weight"), n_embd, n_ff, UNIT)?;
        builder.matrix(&format!("{prefix}.ffn_up.weight"), n_embd, n_ff, UNIT)?;
        builder.matrix(&format!("{prefix}.ffn_down.weight"), n_ff, n_embd, 2.0 * UNIT)?;
    }
    Ok(())
}

/// The pairs of elements that take the first, second and third position of a token: about a third each, none the
/// fourth.
fn sections(n_rot: usize) -> Vec<i32> {
    let pairs = n_rot / 2;
    let first = pairs.div_ceil(3);
    let second = (pairs - first).div_ceil(2);
    [first, second, pairs - first - second, 0].map(|count| count as i32).to_vec()
}

fn write_attention(builder: &mut Builder, prefix: &str, sizes: Qwen35Sizes) -> Result<(), WriteError> {
    let Qwen35Sizes { n_embd, heads: [heads, kv_heads], head_dim, .. } = sizes;
    let name = |end: &str| format!("{prefix}.{end}.weight");
    // Every head of queries brings its gate.
    builder.matrix(&name("attn_q"), n_embd, 2 * head_dim * heads, 1.5 * UNIT)?;
    builder.matrix(&name("attn_k"), n_embd, head_dim * kv_heads, 1.5 * UNIT)?;
    builder.matrix(&name("attn_v"), n_embd, head_dim * kv_heads, UNIT)?;
    builder.norm(&name("attn_q_norm"), &[head_dim])?;
    builder.norm(&name("attn_k_norm"), &[head_dim])?;
    builder.matrix(&name("attn_output"), head_dim * heads, n_embd, 2.0 * UNIT)
}

fn write_delta(builder: &mut Builder, prefix: &str, sizes: Qwen35Sizes) -> Result<(), WriteError> {
    let Qwen35Sizes { n_embd, delta_heads: [key_heads, heads], d_state, .. } = sizes;
    let (key_dim, value_dim) = (d_state * key_heads, d_state * heads);
    let name = |end: &str| format!("{prefix}.{end}");
    builder.matrix(&name("attn_qkv.weight"), n_embd, 2 * key_dim + value_dim, UNIT)?;
    builder.matrix(&name("attn_gate.weight"), n_embd, value_dim, UNIT)?;
    builder.vector(&name("ssm_conv1d.weight"), &[TAPS, 2 * key_dim + value_dim], -1.0, 1.0)?;
    builder.vector(&name("ssm_dt.bias"), &[heads], -4.6, -0.5)?;
    builder.vector(&name("ssm_a"), &[heads], -4.0, -0.05)?;
    builder.matrix(&name("ssm_beta.weight"), n_embd, heads, UNIT)?;
    builder.matrix(&name("ssm_alpha.weight"), n_embd, heads, UNIT)?;
    builder.norm(&name("ssm_norm.weight"), &[d_state])?;
    builder.matrix(&name("ssm_out.weight"), value_dim, n_embd, 1.5 * UNIT)
}
