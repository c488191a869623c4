// y[m, n] = sum over k of a[k, m] * b[k, n], for each matrix of b.
//
// A warp computes ROWS x COLS outputs. Lane l sums k = 4l..4l+3, then 4l+128.., in that order, and one xor tree
// adds the lanes; so an output's bits depend on its row and its column alone, never on the tile it is in. Rows
// that cannot be read four elements at a time, or blocks at odd addresses, are read one by one in the same order.
//
// Geometry: 8 warps a block, each with its own rows; with many columns two warps share rows (`column_warps`), so
// that a block covers 16 x 16 outputs and takes them from L1. Tiles along n are neighbours in the grid: a is
// streamed from memory once, b stays in L2.
//
// Limits: one column reads each weight once and is bound by memory. The 4 x 8 tile does 128 multiplications for
// 12 vector loads, which binds it to L1 at about two thirds of the peak. The tree moves halves of the outputs
// between lanes, 31 exchanges for 32 outputs where one tree for each needs 160.
//
// Forms considered: splitting k over warps fills the device for few rows, but the partial sums then want a second
// pass; matrix units round the operands.
#include "../shared/product.cuh"

struct MulMatParams {
    Tensor a, b, y;
    i64 share2, share3;   // matrices of b on axes 2 and 3 that meet one of a
    i64 tiles_m, tiles_n;
    const signed char* quants;  // b rounded to Q8_0: integers row after row, scales row after row
    const float* scales;
    int column_warps;
    int wide;             // rows may be read four elements at a time, blocks two bytes at a time
};

struct MulMatQuantizeParams {
    Tensor b;
    signed char* quants;
    float* scales;
    i64 blocks;
};

constexpr int WARPS = 8;

// ---- The outputs of one warp.
struct Tile {
    i64 m, n;           // the first row and column
    i64 matrix;         // of b and y
    const char* a;      // the matrix of a
    const char* b;
};

template <int ROWS, int COLS>
__device__ __forceinline__ bool tile_of_warp(const MulMatParams& p, Tile* tile) {
    int warp = threadIdx.x / WARP;
    i64 tile_n, tile_m, i2;
    i64 outer = divide(blockIdx.x, p.tiles_n, &tile_n);
    i64 matrix = divide(outer, p.tiles_m, &tile_m);
    i64 i3 = divide(matrix, p.y.ne[2], &i2);
    int row_warp = p.column_warps == 2 ? warp / 2 : warp;
    int column_warp = p.column_warps == 2 ? warp % 2 : 0;
    tile->m = (tile_m * (WARPS / p.column_warps) + row_warp) * ROWS;
    tile->n = (tile_n * p.column_warps + column_warp) * COLS;
    tile->matrix = matrix;
    tile->a = p.a.data + i2 / p.share2 * p.a.nb[2] + i3 / p.share3 * p.a.nb[3];
    tile->b = p.b.data + i2 * p.b.nb[2] + i3 * p.b.nb[3];
    return tile->m < p.y.ne[0] && tile->n < p.y.ne[1];
}

template <int ROWS, int COLS>
__device__ __forceinline__ void store(const MulMatParams& p, const Tile& tile, float* sums) {
    int lane = threadIdx.x % WARP;
    reduce<ROWS * COLS, WARP / 2>(sums, lane);
    constexpr int LANES = WARP / (ROWS * COLS);
    i64 m = tile.m + lane / LANES % ROWS, n = tile.n + lane / LANES / ROWS;
    if (lane % LANES == 0 && m < p.y.ne[0] && n < p.y.ne[1])
        ((float*)p.y.data)[(tile.matrix * p.y.ne[1] + n) * p.y.ne[0] + m] = sums[0];
}

// The rows of a tile and its columns; past the last of them the last again, whose sums are not stored.
template <int ROWS, int COLS>
__device__ __forceinline__ Lines<ROWS, COLS> lines_of(const MulMatParams& p, const Tile& tile) {
    Lines<ROWS, COLS> at;
#pragma unroll
    for (int r = 0; r < ROWS; r++) at.a[r] = tile.a + min(tile.m + r, p.y.ne[0] - 1) * p.a.nb[1];
#pragma unroll
    for (int c = 0; c < COLS; c++) at.b[c] = tile.b + min(tile.n + c, p.y.ne[1] - 1) * p.b.nb[1];
    return at;
}

template <int ROWS, int COLS>
__device__ __forceinline__ Rounded<ROWS, COLS> rounded_of(const MulMatParams& p, const Tile& tile) {
    Rounded<ROWS, COLS> at;
#pragma unroll
    for (int r = 0; r < ROWS; r++) at.a[r] = tile.a + min(tile.m + r, p.y.ne[0] - 1) * p.a.nb[1];
#pragma unroll
    for (int c = 0; c < COLS; c++)
        at.columns[c] = (tile.matrix * p.y.ne[1] + min(tile.n + c, p.y.ne[1] - 1)) * p.a.ne[0];
    return at;
}

template <int TYPE, int ROWS, int COLS>
__device__ __forceinline__ void product(const MulMatParams& p) {
    Tile tile;
    if (!tile_of_warp<ROWS, COLS>(p, &tile)) return;
    float sums[ROWS * COLS] = {};
    Lines<ROWS, COLS> at = lines_of<ROWS, COLS>(p, tile);
    if (p.wide) accumulate_fours<TYPE, ROWS, COLS>(at, p.a.ne[0], sums);
    else accumulate_ones<TYPE, ROWS, COLS>(at, p.a.ne[0], p.a.nb[0], p.b.nb[0], sums);
    store<ROWS, COLS>(p, tile, sums);
}

extern "C" __global__ void __launch_bounds__(256) mul_mat_f32_1x1(MulMatParams p) { product<F32, 1, 1>(p); }
extern "C" __global__ void __launch_bounds__(256) mul_mat_f32_2x4(MulMatParams p) { product<F32, 2, 4>(p); }
extern "C" __global__ void __launch_bounds__(512) mul_mat_f32_4x8(MulMatParams p) { product<F32, 4, 8>(p); }
extern "C" __global__ void __launch_bounds__(256) mul_mat_f16_1x1(MulMatParams p) { product<F16, 1, 1>(p); }
extern "C" __global__ void __launch_bounds__(256) mul_mat_f16_2x4(MulMatParams p) { product<F16, 2, 4>(p); }
extern "C" __global__ void __launch_bounds__(512) mul_mat_f16_4x8(MulMatParams p) { product<F16, 4, 8>(p); }
extern "C" __global__ void __launch_bounds__(256) mul_mat_bf16_1x1(MulMatParams p) { product<BF16, 1, 1>(p); }
extern "C" __global__ void __launch_bounds__(256) mul_mat_bf16_2x4(MulMatParams p) { product<BF16, 2, 4>(p); }
extern "C" __global__ void __launch_bounds__(512) mul_mat_bf16_4x8(MulMatParams p) { product<BF16, 4, 8>(p); }
extern "C" __global__ void __launch_bounds__(256) mul_mat_q8_0_1x1(MulMatParams p) { product<Q8_0, 1, 1>(p); }
extern "C" __global__ void __launch_bounds__(256) mul_mat_q8_0_2x4(MulMatParams p) { product<Q8_0, 2, 4>(p); }
extern "C" __global__ void __launch_bounds__(512) mul_mat_q8_0_4x8(MulMatParams p) { product<Q8_0, 4, 8>(p); }

template <int ROWS, int COLS>
__device__ __forceinline__ void product_of_blocks(const MulMatParams& p) {
    Tile tile;
    if (!tile_of_warp<ROWS, COLS>(p, &tile)) return;
    float sums[ROWS * COLS] = {};
    Rounded<ROWS, COLS> at = rounded_of<ROWS, COLS>(p, tile);
    if (p.wide) accumulate_blocks<ROWS, COLS, true>(at, p.a.ne[0], p.quants, p.scales, sums);
    else accumulate_blocks<ROWS, COLS, false>(at, p.a.ne[0], p.quants, p.scales, sums);
    store<ROWS, COLS>(p, tile, sums);
}

extern "C" __global__ void __launch_bounds__(256) mul_mat_blocks_1x1(MulMatParams p) { product_of_blocks<1, 1>(p); }
extern "C" __global__ void __launch_bounds__(256) mul_mat_blocks_2x4(MulMatParams p) { product_of_blocks<2, 4>(p); }
extern "C" __global__ void __launch_bounds__(512) mul_mat_blocks_4x8(MulMatParams p) { product_of_blocks<4, 8>(p); }

// As `store_q8_0`, with integers and scales apart. A warp a block of 32.
extern "C" __global__ void __launch_bounds__(256) mul_mat_quantize(MulMatQuantizeParams p) {
    int lane = threadIdx.x % WARP;
    i64 block = (i64)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (block >= p.blocks) return;
    i64 in_row;
    i64 row = divide(block, p.b.ne[0] / Q8_0_BLOCK, &in_row);
    const char* at = row_start(p.b, row_at(row, p.b.ne));
    float x = *(const float*)(at + (in_row * Q8_0_BLOCK + lane) * p.b.nb[0]);
    u32 largest = __float_as_uint(x) & 0x7fffffffu;
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset >>= 1)
        largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, offset));
    float step = __uint_as_float(largest) / 127.0f;
    float inverse = step == 0.0f ? 0.0f : 1.0f / step;
    p.quants[block * Q8_0_BLOCK + lane] = (signed char)round_half_away(x * inverse);
    if (lane == 0) p.scales[block] = half_to_float(float_to_half(step));
}
