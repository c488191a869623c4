//! Mamba and Mamba-2.

use super::{Builder, Outline, TAPS, UNIT};
use ssmgraph::formats::gguf::WriteError;

/// Sizes of a random Mamba or Mamba-2 model.
#[derive(Clone, Copy, Debug)]
pub struct MambaSizes {
    /// `mamba` or `mamba2`.
    pub architecture: &'static str,
    /// Tokens in the vocabulary.
    pub n_vocab: usize,
    /// Layers.
    pub n_layer: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// States per channel or head row.
    pub d_state: usize,
    /// dt rank of Mamba, heads of Mamba-2.
    pub time_step_rank: usize,
}

/// Mamba-1 with 24 layers of width 768, 16 states per channel.
pub const MAMBA1_130M: MambaSizes = MambaSizes {
    architecture: "mamba",
    n_vocab: 8192,
    n_layer: 24,
    n_embd: 768,
    d_state: 16,
    time_step_rank: 48,
};

/// Mamba-2 with 24 layers of width 768, 24 heads of 64 rows, 128 states.
pub const MAMBA2_130M: MambaSizes =
    MambaSizes { architecture: "mamba2", d_state: 128, time_step_rank: 24, ..MAMBA1_130M };

pub(super) fn write(builder: &mut Builder, sizes: MambaSizes) -> Result<(), WriteError> {
    let MambaSizes { architecture, n_vocab, n_layer, n_embd, .. } = sizes;
    let outline = Outline { architecture, n_vocab, n_layer, n_embd, n_ff: 0, eps: 1e-5 };
    let groups: &[_] = if architecture == "mamba2" { &[("ssm.group_count", 1)] } else { &[] };
    let numbers = [
        ("attention.head_count", 0),
        ("ssm.inner_size", 2 * n_embd),
        ("ssm.state_size", sizes.d_state),
        ("ssm.time_step_rank", sizes.time_step_rank),
    ];
    builder.outline(&outline, &[&numbers[..], groups].concat())?;
    for layer in 0..n_layer {
        write_layer(builder, &format!("blk.{layer}"), sizes)?;
    }
    Ok(())
}

fn write_layer(builder: &mut Builder, prefix: &str, sizes: MambaSizes) -> Result<(), WriteError> {
    let MambaSizes { n_embd, d_state, time_step_rank, .. } = sizes;
    let d_inner = 2 * n_embd;
    let name = |end: &str| format!("{prefix}.{end}");
    builder.norm(&name("attn_norm.weight"), &[n_embd])?;
    let channels = if sizes.architecture == "mamba" {
        builder.matrix(&name("ssm_in.weight"), n_embd, 2 * d_inner, UNIT)?;
        builder.matrix(&name("ssm_x.weight"), d_inner, time_step_rank + 2 * d_state, 5.0)?;
        // dt's rank is no multiple of a block; quantisers leave this matrix alone.
        builder.vector(&name("ssm_dt.weight"), &[time_step_rank, d_inner], -0.15, 0.15)?;
        builder.vector(&name("ssm_dt.bias"), &[d_inner], -4.6, -0.5)?;
        builder.vector(&name("ssm_a"), &[d_state, d_inner], -4.0, -0.25)?;
        builder.vector(&name("ssm_d"), &[d_inner], 0.0, 1.0)?;
        d_inner
    } else {
        builder.matrix(&name("ssm_in.weight"), n_embd, 2 * d_inner + 2 * d_state + time_step_rank, UNIT)?;
        builder.vector(&name("ssm_dt.bias"), &[time_step_rank], -4.6, -0.5)?;
        builder.vector(&name("ssm_a"), &[1, time_step_rank], -8.0, -0.1)?;
        builder.vector(&name("ssm_d"), &[1, time_step_rank], 0.0, 1.0)?;
        builder.norm(&name("ssm_norm.weight"), &[d_inner, 1])?;
        d_inner + 2 * d_state
    };
    builder.vector(&name("ssm_conv1d.weight"), &[TAPS, channels], -1.0, 1.0)?;
    builder.vector(&name("ssm_conv1d.bias"), &[channels], -0.2, 0.2)?;
    builder.matrix(&name("ssm_out.weight"), d_inner, n_embd, 3.0)
}
