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
#include "../shared/q8_0.cuh"

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
constexpr int Q8_0_BYTES = 34;

// ---- The tree: after it, lane l holds the sum of output l / (32 / COUNT).
template <int COUNT, int OFFSET>
__device__ __forceinline__ void reduce(float* sums, int lane) {
    if constexpr (OFFSET > 0) {
        if constexpr (COUNT > 1) {
            bool upper = (lane & OFFSET) != 0;
#pragma unroll
            for (int i = 0; i < COUNT / 2; i++) {
                float sent = upper ? sums[i] : sums[i + COUNT / 2];
                float kept = upper ? sums[i + COUNT / 2] : sums[i];
                sums[i] = kept + __shfl_xor_sync(ALL_LANES, sent, OFFSET);
            }
        } else {
            sums[0] += __shfl_xor_sync(ALL_LANES, sums[0], OFFSET);
        }
        reduce<(COUNT > 1 ? COUNT / 2 : 1), OFFSET / 2>(sums, lane);
    }
}

// ---- Four elements from k on.
template <int TYPE>
__device__ __forceinline__ void load4(const char* row, i64 k, float* v) {
    if constexpr (TYPE == Q8_0) {
        const char* block = row + (k >> 5) * Q8_0_BYTES;
        const u16* at = (const u16*)(block + 2 + (k & 31));
        float scale = half_to_float(*(const u16*)block);
        u32 low = at[0], high = at[1];
        v[0] = scale * (float)(signed char)(low & 0xffu);
        v[1] = scale * (float)(signed char)(low >> 8);
        v[2] = scale * (float)(signed char)(high & 0xffu);
        v[3] = scale * (float)(signed char)(high >> 8);
    } else if constexpr (TYPE == F32) {
        float4 four = *(const float4*)(row + k * 4);
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    } else {
        uint2 four = *(const uint2*)(row + k * 2);
        u16 bits[4] = {(u16)four.x, (u16)(four.x >> 16), (u16)four.y, (u16)(four.y >> 16)};
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = TYPE == F16 ? half_to_float(bits[j]) : bfloat_to_float(bits[j]);
    }
}

// One element.
template <int TYPE>
__device__ __forceinline__ float load1(const char* row, i64 k, i64 stride) {
    if constexpr (TYPE == Q8_0) return q8_0_value(row + (k >> 5) * Q8_0_BYTES, (int)(k & 31));
    else return load_float(row + k * stride, TYPE);
}

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
struct Lines {
    const char* a[ROWS];
    const char* b[COLS];

    __device__ __forceinline__ Lines(const MulMatParams& p, const Tile& tile) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) a[r] = tile.a + min(tile.m + r, p.y.ne[0] - 1) * p.a.nb[1];
#pragma unroll
        for (int c = 0; c < COLS; c++) b[c] = tile.b + min(tile.n + c, p.y.ne[1] - 1) * p.b.nb[1];
    }
};

template <int TYPE, int ROWS, int COLS>
__device__ __forceinline__ void accumulate_fours(const MulMatParams& p, const Tile& tile, float* sums) {
    constexpr int UNROLL = ROWS * COLS == 1 ? 4 : 1;
    Lines<ROWS, COLS> at(p, tile);
    i64 length = p.a.ne[0];
#pragma unroll UNROLL
    for (i64 k = threadIdx.x % WARP * 4; k < length; k += 4 * WARP) {
        float weights[ROWS][4];
#pragma unroll
        for (int r = 0; r < ROWS; r++) load4<TYPE>(at.a[r], k, weights[r]);
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            float x[4];
            load4<F32>(at.b[c], k, x);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
#pragma unroll
                for (int j = 0; j < 4; j++) sums[c * ROWS + r] = fmaf(weights[r][j], x[j], sums[c * ROWS + r]);
            }
        }
    }
}

template <int TYPE, int ROWS, int COLS>
__device__ __forceinline__ void accumulate_ones(const MulMatParams& p, const Tile& tile, float* sums) {
    Lines<ROWS, COLS> at(p, tile);
    i64 length = p.a.ne[0], a_stride = p.a.nb[0], b_stride = p.b.nb[0];
    // The lane's four elements, then its next four.
#pragma unroll 1
    for (i64 k = threadIdx.x % WARP * 4; k < length; k += (k & 3) == 3 ? 4 * WARP - 3 : 1) {
        float weights[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) weights[r] = load1<TYPE>(at.a[r], k, a_stride);
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            float x = load1<F32>(at.b[c], k, b_stride);
#pragma unroll
            for (int r = 0; r < ROWS; r++) sums[c * ROWS + r] = fmaf(weights[r], x, sums[c * ROWS + r]);
        }
    }
}

template <int TYPE, int ROWS, int COLS>
__device__ __forceinline__ void product(const MulMatParams& p) {
    Tile tile;
    if (!tile_of_warp<ROWS, COLS>(p, &tile)) return;
    float sums[ROWS * COLS] = {};
    if (p.wide) accumulate_fours<TYPE, ROWS, COLS>(p, tile, sums);
    else accumulate_ones<TYPE, ROWS, COLS>(p, tile, sums);
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

// Four products of signed bytes, added to c. In PTX, since NVRTC knows the intrinsic from CUDA's headers alone.
__device__ __forceinline__ int dot4(int a, int b, int c) {
#ifdef CUDA_EMU
    return __dp4a(a, b, c);
#else
    int sum;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
#endif
}

// ---- Rounded activations. A lane takes 8 elements, four lanes a block: the integers of a block's quarter are
// added exactly and weighed with d_a * d_b.

// A block of b with an infinity has an infinite scale, as in the op; where its integers cancel, the sum is a NaN.

// Eight integers of a row, from k on, and their scale.
template <bool EVEN>
__device__ __forceinline__ void load8(const char* row, i64 k, int* low, int* high, float* scale) {
    const char* block = row + (k >> 5) * Q8_0_BYTES;
    if constexpr (EVEN) {
        const u16* at = (const u16*)(block + 2 + (k & 31));
        *low = (int)((u32)at[0] | (u32)at[1] << 16);
        *high = (int)((u32)at[2] | (u32)at[3] << 16);
        *scale = half_to_float(*(const u16*)block);
    } else {
        const unsigned char* at = (const unsigned char*)(block + 2 + (k & 31));
        *low = (int)((u32)at[0] | (u32)at[1] << 8 | (u32)at[2] << 16 | (u32)at[3] << 24);
        *high = (int)((u32)at[4] | (u32)at[5] << 8 | (u32)at[6] << 16 | (u32)at[7] << 24);
        *scale = q8_0_scale(block);
    }
}

template <int ROWS, int COLS, bool EVEN>
__device__ __forceinline__ void accumulate_blocks(const MulMatParams& p, const Tile& tile, float* sums) {
    constexpr int UNROLL = EVEN && ROWS * COLS == 1 ? 4 : 1;
    i64 length = p.a.ne[0];
    const char* a[ROWS];
    i64 columns[COLS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) a[r] = tile.a + min(tile.m + r, p.y.ne[0] - 1) * p.a.nb[1];
#pragma unroll
    for (int c = 0; c < COLS; c++)
        columns[c] = (tile.matrix * p.y.ne[1] + min(tile.n + c, p.y.ne[1] - 1)) * length;
#pragma unroll UNROLL
    for (i64 k = threadIdx.x % WARP * 8; k < length; k += 8 * WARP) {
        int low[ROWS], high[ROWS];
        float scale[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) load8<EVEN>(a[r], k, &low[r], &high[r], &scale[r]);
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            int2 x = *(const int2*)(p.quants + columns[c] + k);
            float step = p.scales[(columns[c] + k) >> 5];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float dot = (float)dot4(high[r], x.y, dot4(low[r], x.x, 0));
                sums[c * ROWS + r] = fmaf(scale[r] * step, dot, sums[c * ROWS + r]);
            }
        }
    }
}

template <int ROWS, int COLS>
__device__ __forceinline__ void product_of_blocks(const MulMatParams& p) {
    Tile tile;
    if (!tile_of_warp<ROWS, COLS>(p, &tile)) return;
    float sums[ROWS * COLS] = {};
    if (p.wide) accumulate_blocks<ROWS, COLS, true>(p, tile, sums);
    else accumulate_blocks<ROWS, COLS, false>(p, tile, sums);
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
