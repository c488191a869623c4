//! Launches of `rms_norm`, and the geometry that it shares with the other norms.

use crate::Declined;
use crate::cuda::{CudaCall, CudaKernel, GRID_X_MAX, Image, Launch, Params, WARP, embedded, quad_form};
use ssmgraph_ops::{Layout, RmsNorm};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("rms_norm");

/// Elements that a thread holds at most: `HELD_MAX` quads.
const HELD: usize = 16;
const WARPS: usize = 4;
/// Indices inside a row have 32 bits.
const LENGTH_MAX: usize = 1 << 30;

/// Entries of a norm's image by the length of rows.
pub(crate) struct Entries {
    /// A warp for a row of one quad a lane.
    pub heads: &'static str,
    /// A warp for a row of four quads a lane.
    pub warps: &'static str,
    /// A block for a row.
    pub blocks: &'static str,
}

const ENTRIES: Entries =
    Entries { heads: "rms_norm_heads", warps: "rms_norm_warps", blocks: "rms_norm_blocks" };

/// From the sum of a row's squares to the factor of its elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormScale {
    /// Multiplies the sum: 1 / length for a mean.
    pub share: f64,
    /// Added to that before the root is taken.
    pub eps: f64,
    /// A shorter row is divided by this length.
    pub length_min: f64,
}

impl NormScale {
    /// Divides by √(mean square + eps).
    pub fn rms(length: usize, eps: f32) -> NormScale {
        NormScale { share: 1.0 / length as f64, eps: f64::from(eps), length_min: 0.0 }
    }

    /// Appends the kernels' `NormScale`.
    pub fn append(self, params: Params) -> Params {
        let least_squares = self.length_min * self.length_min;
        // Its alignment and its size are multiples of 8.
        params.f64(self.share).f64(self.eps).f64(least_squares).f32((1.0 / self.length_min) as f32).i32(0)
    }
}

/// The launch that normalises `rows` rows of `length` elements. The geometry of a row depends on its length
/// alone, and its bits with it.
pub(crate) fn norm_launch(
    image: &'static Image,
    entries: &Entries,
    rows: usize,
    length: usize,
    params: Params,
) -> Launch {
    if length <= HELD * WARP {
        let entry = if length <= 4 * WARP { entries.heads } else { entries.warps };
        return Launch::line(image, entry, rows.div_ceil(WARPS), WARPS * WARP, params);
    }
    let threads = length.div_ceil(HELD).next_power_of_two().clamp(128, 512);
    Launch::line(image, entries.blocks, rows, threads, params)
}

/// Whether rows of this length can be launched.
pub(crate) fn norm_supported(rows: usize, length: usize) -> Result<(), Declined> {
    if length > LENGTH_MAX {
        return Err(Declined(format!("rows of more than {LENGTH_MAX} elements")));
    }
    match rows <= GRID_X_MAX {
        true => Ok(()),
        false => Err(Declined("more rows than one launch reaches".into())),
    }
}

impl CudaKernel for RmsNorm {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        norm_supported(inputs[0].rows(), inputs[0].ne[0])
    }

    fn scratch_bytes(&self, _inputs: &[Layout], _results: &[Layout]) -> usize {
        0
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let (x, w, y) = (&call.inputs[0], call.inputs.get(1), &call.results[0]);
        if x.layout.is_empty() {
            return Vec::new();
        }
        let (rows, length) = (x.layout.rows(), x.layout.ne[0]);
        let w_form = w.filter(|w| w.layout.ne[0] == length).map_or(0, quad_form);
        let params = Params::new().tensor(x).optional(w).tensor(y).size(rows);
        let params = NormScale::rms(length, self.eps)
            .append(params)
            .i32(w.is_some().into())
            .i32(quad_form(x))
            .i32(w_form)
            .i32(quad_form(y));
        vec![norm_launch(&IMAGE, &ENTRIES, rows, length, params)]
    }
}
