//! The causal convolution of every recurrent layer, with its window as state.

use super::{Batch, Loader, ModelError, Size, Weight};
use crate::graph::{Graph, Tensor};
use ssmgraph_ops::DType;

/// A depthwise convolution along time, then SiLU.
#[derive(Clone, Debug)]
pub struct Conv {
    prefix: String,
    weight: Weight,
    bias: Option<Weight>,
}

impl Conv {
    /// Reads `{prefix}.ssm_conv1d.weight` {taps, channels} and, where there is one, its bias.
    ///
    /// Errors: a tensor that is missing or has another shape or type.
    pub fn load(
        loader: &mut Loader<'_>,
        prefix: &str,
        taps: &Size,
        channels: &Size,
    ) -> Result<Conv, ModelError> {
        let name = |end: &str| format!("{prefix}.ssm_conv1d.{end}");
        let weight = loader.vector(&name("weight"), &[taps.clone(), channels.clone()])?;
        let bias = match loader.has(&name("bias")) {
            true => Some(loader.vector(&name("bias"), std::slice::from_ref(channels))?),
            false => None,
        };
        Ok(Conv { prefix: prefix.to_owned(), weight, bias })
    }

    /// Bytes of the window: the last taps − 1 inputs of every channel.
    pub fn state_bytes(&self) -> usize {
        let [taps, channels, ..] = self.weight.layout().ne;
        (taps - 1).saturating_mul(channels).saturating_mul(size_of::<f32>())
    }

    /// x {C, T, B}, which may be a view, to {C, T, B}. The window is the state `{prefix}.conv`: rows
    /// {taps − 1, C}, oldest input first.
    ///
    /// Errors: a batch of another graph, a shape that does not fit.
    pub fn forward(&self, graph: &mut Graph, x: Tensor, batch: &Batch) -> Result<Tensor, ModelError> {
        let [taps, channels, ..] = self.weight.layout().ne;
        let window = [taps - 1, channels];
        let state = graph.state(&format!("{}.conv", self.prefix), DType::F32, &window, &batch.slots)?;
        let weight = self.weight.declare(graph)?;
        let bias = self.bias.as_ref().map(|bias| bias.declare(graph)).transpose()?;
        let operands = [state.pool, x, weight, batch.slots.read];
        let conv = graph.ssm_conv_step(operands, bias, true, batch.slots.write.len())?;
        for (back, &rows) in conv.states.iter().enumerate() {
            graph.write_state(&state, &batch.slots, back, rows)?;
        }
        Ok(conv.y)
    }
}
