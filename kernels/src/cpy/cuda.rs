//! Launches of `cpy`.

use crate::Declined;
use crate::cuda::moves::{MOVE_THREADS, Move, counted_in_blocks};
use crate::cuda::walk::{ELEMENTWISE_SPAN, ELEMENTWISE_THREADS, in_quads, merged, reached};
use crate::cuda::{CudaCall, CudaKernel, DeviceTensor, GRID_X_MAX, Image, Launch, Params, WARP, embedded};
use crate::kernel::expect_plain_or_q8_0;
use ssmgraph_ops::Layout;
use ssmgraph_ops::cpy::{Conversion, Cpy};
use ssmgraph_ops::quant::Q8_0_BLOCK;

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("cpy");

/// Side of a tile, in elements.
const TILE: usize = 32;
/// Threads that move a tile.
const TILE_THREADS: usize = 256;
/// Fewer elements along an axis leave a tile mostly empty.
const TILED_AXIS_MIN: usize = 8;
/// Blocks of q8_0 that a thread block quantises.
const QUANTIZE_SPAN: usize = ELEMENTWISE_THREADS / WARP;

impl CudaKernel for Cpy {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        // Between equal types bytes are moved, whatever they mean.
        if inputs[0].dtype != self.to.dtype {
            expect_plain_or_q8_0(&[inputs[0], self.to])?;
        }
        // The narrowest grid: a thread block for eight blocks of q8_0.
        reached(inputs[0].elements(), QUANTIZE_SPAN * Q8_0_BLOCK)
    }

    fn scratch_bytes(&self, _inputs: &[Layout], _results: &[Layout]) -> usize {
        0
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let (x, y) = (&call.inputs[0], &call.results[0]);
        if y.layout.is_empty() {
            return Vec::new();
        }
        let conversion = Conversion::between(x.layout.dtype, y.layout.dtype).expect("infer checked it");
        vec![match conversion {
            Conversion::Bits => transposing(x, y).unwrap_or_else(|| moving(x, y)),
            Conversion::Float => transposing(x, y).unwrap_or_else(|| converting(x, y, 0)),
            Conversion::Int => converting(x, y, 1),
            Conversion::IntToFloat => converting(x, y, 2),
            Conversion::FloatToInt => converting(x, y, 3),
            Conversion::Expand => expanding(x, y),
            Conversion::Quantize => quantizing(x, y),
        }]
    }
}

fn moving(x: &DeviceTensor, y: &DeviceTensor) -> Launch {
    let between = Move::between(x, y);
    Launch::line(&IMAGE, "cpy_move", between.blocks, MOVE_THREADS, between.append(Params::new()))
}

/// A copy by tiles, where x and y have one shape and different packed axes.
fn transposing(x: &DeviceTensor, y: &DeviceTensor) -> Option<Launch> {
    let size = |tensor: &DeviceTensor| tensor.layout.dtype.block_bytes();
    if x.layout.ne != y.layout.ne || ![x, y].iter().all(|tensor| [2, 4].contains(&size(tensor))) {
        return None;
    }
    let [x, y] = merged([*x, *y]);
    let packed_axis = |tensor: &DeviceTensor| {
        (0..4)
            .find(|&axis| tensor.layout.nb[axis] == size(tensor) && tensor.layout.ne[axis] >= TILED_AXIS_MIN)
    };
    let (axis0, axis1) = (packed_axis(&y)?, packed_axis(&x)?);
    if axis0 == axis1 {
        return None;
    }
    let mut others = (0..4).filter(|&axis| axis != axis0 && axis != axis1);
    let axes = [axis0, axis1, others.next()?, others.next()?];
    let [x, y] = [x, y].map(|tensor| {
        let Layout { dtype, ne, nb } = tensor.layout;
        let layout = Layout { dtype, ne: axes.map(|axis| ne[axis]), nb: axes.map(|axis| nb[axis]) };
        DeviceTensor { layout, ..tensor }
    });
    let [n0, n1, n2, n3] = y.layout.ne;
    let tiles = [n0.div_ceil(TILE), n1.div_ceil(TILE)];
    let blocks = tiles[0] * tiles[1] * n2 * n3;
    if blocks > GRID_X_MAX {
        return None;
    }
    let raw_bytes = if x.layout.dtype == y.layout.dtype { size(&x) as i32 } else { 0 };
    let params = Params::new().tensor(&x).tensor(&y).size(tiles[0]).size(tiles[1]).i32(raw_bytes).i32(0);
    Some(Launch::line(&IMAGE, "cpy_transpose", blocks, TILE_THREADS, params))
}

fn converting(x: &DeviceTensor, y: &DeviceTensor, code: i32) -> Launch {
    let reshapes = x.layout.ne != y.layout.ne;
    let [x, y] = match reshapes {
        false => merged([*x, *y]),
        true => [merged([*x])[0], merged([*y])[0]],
    };
    // A reshape of packed tensors has one row on both sides.
    let reshapes = x.layout.ne != y.layout.ne;
    let quads = code == 0 && !reshapes && y.layout.nb[0] != 0 && in_quads(&[x, y]);
    let elements = y.layout.elements();
    let params = Params::new()
        .tensor(&x)
        .tensor(&y)
        .size(elements)
        .i32(code)
        .i32(quads.into())
        .i32(reshapes.into())
        .i32(0);
    let blocks = elements.div_ceil(ELEMENTWISE_SPAN);
    Launch::line(&IMAGE, "cpy_convert", blocks, ELEMENTWISE_THREADS, params)
}

fn expanding(x: &DeviceTensor, y: &DeviceTensor) -> Launch {
    let elements = y.layout.elements();
    let ([x], [y]) = (merged([counted_in_blocks(x)]), merged([*y]));
    let quads = in_quads(&[y]);
    let params = Params::new().tensor(&x).tensor(&y).size(elements).i32(quads.into()).i32(0);
    let blocks = elements.div_ceil(ELEMENTWISE_SPAN);
    Launch::line(&IMAGE, "cpy_expand", blocks, ELEMENTWISE_THREADS, params)
}

fn quantizing(x: &DeviceTensor, y: &DeviceTensor) -> Launch {
    let ([x], [y]) = (merged([*x]), merged([counted_in_blocks(y)]));
    let blocks = y.layout.ne.iter().product::<usize>();
    let params = Params::new().tensor(&x).tensor(&y).size(blocks);
    Launch::line(&IMAGE, "cpy_quantize", blocks.div_ceil(QUANTIZE_SPAN), ELEMENTWISE_THREADS, params)
}
