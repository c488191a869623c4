// The order of ops that look for largest elements.
#pragma once
#include "../shared/common.cuh"

// Orders as those ops do: -0 equal to +0, every NaN the same and above +inf; 0 is below every number.
__device__ __forceinline__ u32 order_key(float value) {
    if (value != value) return 0xffffffffu;
    u32 bits = __float_as_uint(value + 0.0f);
    return bits >> 31 != 0u ? ~bits : bits | 0x80000000u;
}

// An element as one number: the greatest is the largest element of lowest index. None is 0.
__device__ __forceinline__ u64 candidate(float value, u32 index) { return (u64)order_key(value) << 32 | (u32)~index; }

__device__ __forceinline__ u32 index_of(u64 candidate) { return ~(u32)candidate; }
