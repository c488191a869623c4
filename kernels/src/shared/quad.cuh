// Four neighbouring floats at a time, and the places that element-wise kernels visit.
#pragma once
#include "../shared/common.cuh"

// A block of an element-wise kernel covers this many elements: each of its threads four neighbours, or four
// elements a block width apart, so that the grid is the same for both walks.
constexpr int ELEMENTWISE_THREADS = 256;
constexpr int ELEMENTWISE_SPAN = 4 * ELEMENTWISE_THREADS;

// Four floats at a place that is a multiple of four elements.
__device__ __forceinline__ float4 load_quad(const char* at, int dtype) {
    if (dtype == F32) return *(const float4*)at;
    uint2 bits = *(const uint2*)at;
    u16 a = (u16)bits.x, b = (u16)(bits.x >> 16), c = (u16)bits.y, d = (u16)(bits.y >> 16);
    if (dtype == F16)
        return make_float4(half_to_float(a), half_to_float(b), half_to_float(c), half_to_float(d));
    return make_float4(bfloat_to_float(a), bfloat_to_float(b), bfloat_to_float(c), bfloat_to_float(d));
}

// As load_quad; where axis 0 has stride 0, one element four times.
__device__ __forceinline__ float4 load_quad_or_one(const Tensor& t, const char* at) {
    if (t.nb[0] != 0) return load_quad(at, t.dtype);
    float value = load_float(at, t.dtype);
    return make_float4(value, value, value, value);
}

__device__ __forceinline__ void store_quad(char* at, int dtype, float4 v) {
    if (dtype == F32) {
        *(float4*)at = v;
    } else if (dtype == F16) {
        u32 low = float_to_half(v.x) | (u32)float_to_half(v.y) << 16;
        u32 high = float_to_half(v.z) | (u32)float_to_half(v.w) << 16;
        *(uint2*)at = make_uint2(low, high);
    } else {
        u32 low = float_to_bfloat(v.x) | (u32)float_to_bfloat(v.y) << 16;
        u32 high = float_to_bfloat(v.z) | (u32)float_to_bfloat(v.w) << 16;
        *(uint2*)at = make_uint2(low, high);
    }
}

// An element's indices.
struct Spot { i64 i0; Row row; };

// The element with this running number in a shape. A shape of one row needs no division.
__device__ __forceinline__ Spot spot_at(i64 index, const i64* ne) {
    Spot spot{index, {0, 0, 0}};
    if (index >= ne[0]) spot.row = row_at(divide(index, ne[0], &spot.i0), ne);
    return spot;
}

__device__ __forceinline__ char* spot_in(const Tensor& t, const Spot& spot) {
    return row_start(t, spot.row) + spot.i0 * t.nb[0];
}

// The element that a tensor of shape ne, repeated along whole axes, has there.
__device__ __forceinline__ Spot repeated(Spot spot, const i64* ne) {
    divide(spot.i0, ne[0], &spot.i0);
    divide(spot.row.i1, ne[1], &spot.row.i1);
    divide(spot.row.i2, ne[2], &spot.row.i2);
    divide(spot.row.i3, ne[3], &spot.row.i3);
    return spot;
}

// Calls four(index) for whole quads and one(index) for single elements, over the block's share of `elements`.
template <class Four, class One>
__device__ __forceinline__ void each_index(i64 elements, int quads, Four four, One one) {
    i64 index = (i64)blockIdx.x * ELEMENTWISE_SPAN + (quads ? 4 : 1) * (i64)threadIdx.x;
    if (quads && index + 4 <= elements) {
        four(index);
        return;
    }
    i64 step = quads ? 1 : ELEMENTWISE_THREADS;
#pragma unroll 1
    for (int i = 0; i < 4 && index < elements; i++, index += step) one(index);
}

// As each_index, with places in shape ne. With `quads`, ne[0] is a multiple of 4 or there is one row, whose end is
// visited one by one.
template <class Four, class One>
__device__ __forceinline__ void each_element(i64 elements, const i64* ne, int quads, Four four, One one) {
    each_index(
        elements, quads, [&](i64 index) { four(spot_at(index, ne)); },
        [&](i64 index) { one(spot_at(index, ne)); });
}
