//! Launches of `rope`.

use crate::Declined;
use crate::cuda::walk::reached;
use crate::cuda::{CudaCall, CudaKernel, Image, Launch, Params, embedded};
use ssmgraph_ops::rope::RopeMode;
use ssmgraph_ops::{Layout, Rope};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("rope");

const THREADS: usize = 256;
/// Angles up to here have a number of quarter turns that an f64 holds exactly.
const ANGLE_MAX: f64 = 9e15;

impl CudaKernel for Rope {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        let fastest = f64::from(self.freq_scale).abs() / f64::from(self.freq_base).min(1.0);
        if 2f64.powi(31) * fastest > ANGLE_MAX {
            return Err(Declined("angles past what the kernel brings to a quarter turn".into()));
        }
        reached(inputs[0].elements(), THREADS)
    }

    fn scratch_bytes(&self, _inputs: &[Layout], _results: &[Layout]) -> usize {
        0
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let (x, positions, y) = (&call.inputs[0], &call.inputs[1], &call.results[0]);
        if y.layout.is_empty() {
            return Vec::new();
        }
        let rows = x.layout.rows();
        let units = x.layout.ne[0] - self.n_rot / 2;
        let (mode, sections) = match self.mode {
            RopeMode::Neox => (0, [0; 4]),
            RopeMode::Normal => (1, [0; 4]),
            RopeMode::Sections { .. } if positions.layout.ne[1] == 1 => (4, [0; 4]),
            RopeMode::Sections { sections, interleaved } => (2 + i32::from(interleaved), sections),
        };
        let params = Params::new().tensor(x).tensor(positions).tensor(y).size(rows).size(units);
        let params =
            params.f64(f64::from(self.freq_base).log2()).f64(self.freq_scale.into()).size(self.n_rot);
        let params = sections.iter().fold(params, |params, &count| params.size(count)).i32(mode).i32(0);
        vec![Launch::line(&IMAGE, "rope", (rows * units).div_ceil(THREADS), THREADS, params)]
    }
}
