// Rows read and written four elements at a time: one 16-byte access (8 bytes for 16-bit types) where the row allows
// it, four accesses by stride elsewhere. An element is handled by the same thread in every form, so that the form
// changes no bit of a result.
#pragma once
#include "../shared/common.cuh"

// Indices of a row. 32 bits hold them where a launch has a warp or more for each row; 64-bit division would be a
// subroutine, whose call costs registers.
__device__ __forceinline__ Row row_in_grid(u32 number, const i64* ne) {
    u32 n1 = (u32)ne[1], n2 = (u32)ne[2];
    u32 outer = number / n1, i3 = outer / n2;
    Row row;
    row.i1 = number - outer * n1;
    row.i2 = outer - i3 * n2;
    row.i3 = i3;
    return row;
}

// How quads of a row are accessed; `quad_form` in Rust chooses.
enum QuadForm { BY_STRIDE = 0, QUADS_F32 = 1, QUADS_16 = 2 };

struct StridedRow {
    const char* row;
    i64 stride;
    int dtype;
    __device__ __forceinline__ float one(i64 i) const { return load_float(row + i * stride, dtype); }
    __device__ __forceinline__ float4 four(i64 i) const {
        return make_float4(one(i), one(i + 1), one(i + 2), one(i + 3));
    }
};

struct F32Row {
    const char* row;
    __device__ __forceinline__ float one(i64 i) const { return ((const float*)row)[i]; }
    __device__ __forceinline__ float4 four(i64 i) const { return *(const float4*)((const float*)row + i); }
};

struct ShortRow {
    const char* row;
    int dtype;
    __device__ __forceinline__ float widen(u16 bits) const {
        return dtype == F16 ? half_to_float(bits) : bfloat_to_float(bits);
    }
    __device__ __forceinline__ float one(i64 i) const { return widen(((const u16*)row)[i]); }
    __device__ __forceinline__ float4 four(i64 i) const {
        uint2 bits = *(const uint2*)((const u16*)row + i);
        return make_float4(widen((u16)bits.x), widen((u16)(bits.x >> 16)), widen((u16)bits.y),
                           widen((u16)(bits.y >> 16)));
    }
};

// Calls `body` with the row in its form. The branch is outside, so that loads in a loop of the body can overlap.
template <class Body>
__device__ __forceinline__ void with_row(int form, const Tensor& t, const char* row, const Body& body) {
    if (form == QUADS_F32) body(F32Row{row});
    else if (form == QUADS_16) body(ShortRow{row, t.dtype});
    else body(StridedRow{row, t.nb[0], t.dtype});
}

// Elements first … first + 3; those from `end` on are `fill`.
template <class From, class Index>
__device__ __forceinline__ float4 load_quad(const From& from, Index first, Index end, float fill) {
    if (first + 4 <= end) return from.four(first);
    float4 v = make_float4(fill, fill, fill, fill);
    if (first < end) v.x = from.one(first);
    if (first + 1 < end) v.y = from.one(first + 1);
    if (first + 2 < end) v.z = from.one(first + 2);
    return v;
}

// The sum in f64 of a thread's share of elements first … end: quads in steps of `threads`. The last quad stands apart,
// so that the loads of whole ones have no branch between them and overlap.
template <class From>
__device__ __forceinline__ double sum_quads(const From& from, i64 first, i64 end, int thread, int threads) {
    double sum = 0.0;
    i64 i = first + 4 * thread;
#pragma unroll 4
    for (; i + 4 <= end; i += 4 * threads) {
        float4 v = from.four(i);
        sum += ((double)v.x + (double)v.y) + ((double)v.z + (double)v.w);
    }
    if (i < end) {
        float4 v = load_quad(from, i, end, 0.0f);
        sum += ((double)v.x + (double)v.y) + ((double)v.z + (double)v.w);
    }
    return sum;
}

__device__ __forceinline__ u32 narrow_two(float low, float high, int dtype) {
    if (dtype == F16) return (u32)float_to_half(low) | (u32)float_to_half(high) << 16;
    return (u32)float_to_bfloat(low) | (u32)float_to_bfloat(high) << 16;
}

// Writes elements first … first + 3 of a packed row, those before `end`.
template <class Index>
__device__ __forceinline__ void store_quad(char* row, int dtype, int form, Index first, Index end, float4 v) {
    int bytes = dtype == F32 ? 4 : 2;
    char* to = row + (i64)first * bytes;
    if (first + 4 <= end && form != BY_STRIDE) {
        if (dtype == F32) *(float4*)to = v;
        else *(uint2*)to = make_uint2(narrow_two(v.x, v.y, dtype), narrow_two(v.z, v.w, dtype));
        return;
    }
    if (first < end) store_float(to, dtype, v.x);
    if (first + 1 < end) store_float(to + bytes, dtype, v.y);
    if (first + 2 < end) store_float(to + 2 * bytes, dtype, v.z);
    if (first + 3 < end) store_float(to + 3 * bytes, dtype, v.w);
}
