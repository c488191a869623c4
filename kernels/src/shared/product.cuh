// Products of rows with columns by one warp. Lane l sums k = 4l..4l+3, then 4l+128.., in that order (twice as many of
// rounded blocks), and one xor tree adds the lanes: an output's bits depend on its row and its column alone.
#pragma once
#include "../shared/q8_0.cuh"

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

// Rows of weights and columns that meet.
template <int ROWS, int COLS>
struct Lines {
    const char* a[ROWS];
    const char* b[COLS];
};

template <int TYPE, int ROWS, int COLS>
__device__ __forceinline__ void accumulate_fours(const Lines<ROWS, COLS>& at, i64 length, float* sums) {
    constexpr int UNROLL = ROWS * COLS == 1 ? 4 : 1;
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
__device__ __forceinline__ void accumulate_ones(
    const Lines<ROWS, COLS>& at, i64 length, i64 a_stride, i64 b_stride, float* sums) {
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

// Rows of weights, and where rounded columns begin.
template <int ROWS, int COLS>
struct Rounded {
    const char* a[ROWS];
    i64 columns[COLS];
};

template <int ROWS, int COLS, bool EVEN>
__device__ __forceinline__ void accumulate_blocks(
    const Rounded<ROWS, COLS>& at, i64 length, const signed char* quants, const float* scales, float* sums) {
    constexpr int UNROLL = EVEN && ROWS * COLS == 1 ? 4 : 1;
#pragma unroll UNROLL
    for (i64 k = threadIdx.x % WARP * 8; k < length; k += 8 * WARP) {
        int low[ROWS], high[ROWS];
        float scale[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) load8<EVEN>(at.a[r], k, &low[r], &high[r], &scale[r]);
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            int2 x = *(const int2*)(quants + at.columns[c] + k);
            float step = scales[(at.columns[c] + k) >> 5];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float dot = (float)dot4(high[r], x.y, dot4(low[r], x.x, 0));
                sums[c * ROWS + r] = fmaf(scale[r] * step, dot, sums[c * ROWS + r]);
            }
        }
    }
}
