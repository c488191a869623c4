//! Launches of `mul_mat`: a form by weight type, and by how many columns there are. Every form adds in one order.

use crate::Declined;
use crate::cuda::{CudaCall, CudaKernel, DeviceTensor, GRID_X_MAX, Image, Launch, Params, WARP, embedded};
use crate::kernel::expect_plain_or_q8_0;
use ssmgraph_ops::quant::Q8_0_BLOCK;
use ssmgraph_ops::{DType, Layout, MulMat};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("mul_mat");

const WARPS: usize = 8;
const THREADS: usize = WARPS * WARP;

/// Outputs of a warp, and how a block's warps share them.
struct Form {
    /// Which of a family's three entries.
    index: usize,
    rows: usize,
    columns: usize,
    column_warps: usize,
}

impl Form {
    fn of(columns: usize) -> Form {
        match columns {
            0..=1 => Form { index: 0, rows: 1, columns: 1, column_warps: 1 },
            2..=4 => Form { index: 1, rows: 2, columns: 4, column_warps: 1 },
            5..=8 => Form { index: 2, rows: 4, columns: 8, column_warps: 1 },
            _ => Form { index: 2, rows: 4, columns: 8, column_warps: 2 },
        }
    }

    /// Tiles of a block along m and n.
    fn tiles(&self, m: usize, n: usize) -> [usize; 2] {
        let rows = self.rows * (WARPS / self.column_warps);
        [m.div_ceil(rows), n.div_ceil(self.columns * self.column_warps)]
    }
}

impl CudaKernel for MulMat {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        expect_plain_or_q8_0(inputs)?;
        let (a, b) = (&inputs[0], &inputs[1]);
        let [m, n] = Form::of(b.ne[1]).tiles(a.ne[1], b.ne[1]);
        let sizes = [m, n, b.ne[2], b.ne[3]];
        let tiles = sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        let rounded = if self.quantize { b.elements() / Q8_0_BLOCK / WARPS } else { 0 };
        match tiles.is_some_and(|tiles| tiles <= GRID_X_MAX) && rounded < GRID_X_MAX {
            true => Ok(()),
            false => Err(Declined("more outputs than one launch reaches".into())),
        }
    }

    fn scratch_bytes(&self, inputs: &[Layout], results: &[Layout]) -> usize {
        match self.quantize && !results[0].is_empty() {
            true => quantized_bytes(&inputs[1]),
            false => 0,
        }
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let (a, b, y) = (&call.inputs[0], &call.inputs[1], &call.results[0]);
        if y.layout.is_empty() {
            return Vec::new();
        }
        let (quants, scales) = (call.scratch, call.scratch + b.layout.elements() as u64);
        let mut launches = Vec::new();
        if self.quantize {
            launches.extend(quantize(b, quants, scales));
        }
        let form = Form::of(y.layout.ne[1]);
        let [tiles_m, tiles_n] = form.tiles(y.layout.ne[0], y.layout.ne[1]);
        let share = |axis: usize| b.layout.ne[axis] / a.layout.ne[axis];
        let params = Params::new().tensor(a).tensor(b).tensor(y).size(share(2)).size(share(3));
        let params = params.size(tiles_m).size(tiles_n).address(quants).address(scales);
        let wide = reads_fours(a) && (self.quantize || reads_fours(b));
        let params = params.i32(form.column_warps as i32).i32(wide.into());
        let tiles = tiles_m * tiles_n * y.layout.ne[2] * y.layout.ne[3];
        let entry = entries(self.quantize, a.layout.dtype)[form.index];
        launches.push(Launch::line(&IMAGE, entry, tiles, THREADS, params));
        launches
    }
}

/// Bytes of the rows of b as integers, then their scales.
pub(crate) fn quantized_bytes(b: &Layout) -> usize {
    b.elements() + b.elements() / Q8_0_BLOCK * size_of::<f32>()
}

/// The launch that rounds the rows of b, if they have elements.
pub(crate) fn quantize(b: &DeviceTensor, quants: u64, scales: u64) -> Option<Launch> {
    let blocks = b.layout.elements() / Q8_0_BLOCK;
    let params = Params::new().tensor(b).address(quants).address(scales).size(blocks);
    let launch = || Launch::line(&IMAGE, "mul_mat_quantize", blocks.div_ceil(WARPS), THREADS, params);
    (blocks > 0).then(launch)
}

/// The entries for one, up to four, and more columns.
fn entries(quantize: bool, weights: DType) -> [&'static str; 3] {
    match weights {
        DType::F16 => ["mul_mat_f16_1x1", "mul_mat_f16_2x4", "mul_mat_f16_4x8"],
        DType::BF16 => ["mul_mat_bf16_1x1", "mul_mat_bf16_2x4", "mul_mat_bf16_4x8"],
        DType::Q8_0 if quantize => ["mul_mat_blocks_1x1", "mul_mat_blocks_2x4", "mul_mat_blocks_4x8"],
        DType::Q8_0 => ["mul_mat_q8_0_1x1", "mul_mat_q8_0_2x4", "mul_mat_q8_0_4x8"],
        _ => ["mul_mat_f32_1x1", "mul_mat_f32_2x4", "mul_mat_f32_4x8"],
    }
}

/// Whether each row is packed, has whole groups of four elements, and every group lies at a multiple of its
/// size; for blocks, whether they lie at even addresses.
pub(crate) fn reads_fours(tensor: &DeviceTensor) -> bool {
    let layout = &tensor.layout;
    let blocks = layout.dtype == DType::Q8_0;
    let element = layout.dtype.block_bytes();
    let unit = if blocks { 2 } else { 4 * element };
    (blocks || (layout.ne[0].is_multiple_of(4) && layout.nb[0] == element))
        && (1..4).all(|axis| layout.ne[axis] == 1 || layout.nb[axis].is_multiple_of(unit))
        && tensor.address.is_multiple_of(unit as u64)
}
