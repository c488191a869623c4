// Blocks of Q8_0: an f16 scale, then 32 signed bytes. Read by bytes: a block has no alignment.
#pragma once
#include "../shared/common.cuh"

constexpr int Q8_0_BLOCK = 32;

__device__ __forceinline__ float q8_0_scale(const char* block) {
    const unsigned char* bytes = (const unsigned char*)block;
    return half_to_float((u16)(bytes[0] | (u16)bytes[1] << 8));
}

// Element j of a block. The product is exact in f32.
__device__ __forceinline__ float q8_0_value(const char* block, int j) {
    return q8_0_scale(block) * (float)((const signed char*)block)[2 + j];
}

// Elements j to j + 3.
__device__ __forceinline__ float4 q8_0_quad(const char* block, int j) {
    float scale = q8_0_scale(block);
    const signed char* q = (const signed char*)block + 2 + j;
    return make_float4(scale * q[0], scale * q[1], scale * q[2], scale * q[3]);
}

// The nearest integer, halves away from zero, of a number that fits a byte; the steps of quantize_q8_0.
__device__ __forceinline__ int round_half_away(float x) {
    const float shift = 12582912.0f;
    float shifted = x + shift;
    int nearest = (int)(__float_as_uint(shifted) - __float_as_uint(shift));
    float rest = x - (shifted - shift);
    return nearest + (rest == 0.5f && x > 0.0f) - (rest == -0.5f && x < 0.0f);
}

// Rounds one number of each lane to a block.
__device__ __forceinline__ void store_q8_0(char* block, float value) {
    u32 largest = __float_as_uint(value) & 0x7fffffffu;
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset >>= 1) {
        u32 other = __shfl_xor_sync(ALL_LANES, largest, offset);
        largest = other > largest ? other : largest;
    }
    float step = __uint_as_float(largest) / 127.0f;
    float inverse = step == 0.0f ? 0.0f : 1.0f / step;
    int lane = threadIdx.x % WARP;
    block[2 + lane] = (char)round_half_away(value * inverse);
    if (lane < 2) block[lane] = (char)(float_to_half(step) >> 8 * lane);
}
