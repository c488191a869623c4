// What the kernels share: tensors with ggml's ne/nb, element access by type, walks over rows, reductions in a
// fixed order. The same text is compiled by NVRTC for a GPU and by g++ for the emulator.
#pragma once

typedef long long i64;
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;

constexpr int WARP = 32;
constexpr u32 ALL_LANES = 0xffffffffu;

enum DType { F32 = 0, F16 = 1, BF16 = 2, I32 = 3, I64 = 4, Q8_0 = 5 };

// Element (i0, i1, i2, i3) lies at data + i0*nb[0] + i1*nb[1] + i2*nb[2] + i3*nb[3]. `Params::tensor` writes it.
struct Tensor {
    char* data;
    i64 ne[4];
    i64 nb[4];
    int dtype;
    int unused;
};

// A call's record of the first id outside a table; `raised` is 0 until then, and then 1 more than the number of the
// launch's guard.
struct Fault {
    u32 raised;
    u32 unused;
    i64 id;
    i64 place[3];
};

__device__ __forceinline__ void raise(Fault* fault, i64 id, i64 p0, i64 p1, i64 p2, u32 guard = 0) {
    if (atomicCAS(&fault->raised, 0u, 1u + guard) != 0u) return;
    fault->id = id;
    fault->place[0] = p0;
    fault->place[1] = p1;
    fault->place[2] = p2;
}

// ---- 16-bit floats. Conversions in PTX rather than from CUDA's headers, which a machine with NVRTC may lack.
__device__ __forceinline__ float half_to_float(u16 bits) {
#ifdef CUDA_EMU
    return emu_half_to_float(bits);
#else
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#endif
}

__device__ __forceinline__ u16 float_to_half(float value) {
#ifdef CUDA_EMU
    return emu_float_to_half(value);
#else
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#endif
}

__device__ __forceinline__ float bfloat_to_float(u16 bits) { return __uint_as_float((u32)bits << 16); }

// Round to nearest even; a NaN stays one.
__device__ __forceinline__ u16 float_to_bfloat(float value) {
    u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)(bits >> 16 | 0x40u);
    return (u16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

__device__ __forceinline__ float load_float(const char* at, int dtype) {
    if (dtype == F32) return *(const float*)at;
    if (dtype == F16) return half_to_float(*(const u16*)at);
    return bfloat_to_float(*(const u16*)at);
}

__device__ __forceinline__ void store_float(char* at, int dtype, float value) {
    if (dtype == F32) *(float*)at = value;
    else if (dtype == F16) *(u16*)at = float_to_half(value);
    else *(u16*)at = float_to_bfloat(value);
}

__device__ __forceinline__ i64 load_int(const char* at, int dtype) {
    return dtype == I32 ? (i64)*(const int*)at : *(const i64*)at;
}

// ---- Rows. A row is named by its indices on axes 1, 2 and 3; `row` counts them with axis 1 fastest.
struct Row { i64 i1, i2, i3; };

// Divides in 32 bits where that is enough: 64-bit division is some hundred instructions.
__device__ __forceinline__ i64 divide(i64 a, i64 b, i64* rest) {
    if ((u64)a <= 0xffffffffull && (u64)b <= 0xffffffffull) {
        u32 q = (u32)a / (u32)b;
        *rest = (u32)a - q * (u32)b;
        return q;
    }
    i64 q = a / b;
    *rest = a - q * b;
    return q;
}

__device__ __forceinline__ Row row_at(i64 row, const i64* ne) {
    Row r;
    i64 outer = divide(row, ne[1], &r.i1);
    r.i3 = divide(outer, ne[2], &r.i2);
    return r;
}

__device__ __forceinline__ char* row_start(const Tensor& t, const Row& r) {
    return t.data + r.i1 * t.nb[1] + r.i2 * t.nb[2] + r.i3 * t.nb[3];
}

// ---- Reductions: always the same tree, so that a result does not depend on the launch.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset >>= 1) value += __shfl_xor_sync(ALL_LANES, value, offset);
    return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset >>= 1)
        value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, offset));
    return value;
}
