// Bytes moved from one strided tensor to another, whatever their type.
//
// Axis 0 counts units of 1, 2, 4, 8 or 16 bytes: an element, or as many bytes of packed rows as rows, strides and
// addresses are multiples of.
#pragma once
#include "../shared/quad.cuh"

constexpr int MOVE_THREADS = 256;

enum MoveWalk { SAME_SHAPE = 0, OWN_SHAPE = 1, REPEATS = 2 };

struct Move {
    Tensor from, to;
    i64 units;
    int unit;
    int walk;
};

__device__ __forceinline__ void move_unit(char* to, const char* from, int unit) {
    switch (unit) {
        case 16: *(uint4*)to = *(const uint4*)from; break;
        case 8: *(uint2*)to = *(const uint2*)from; break;
        case 4: *(u32*)to = *(const u32*)from; break;
        case 2: *(u16*)to = *(const u16*)from; break;
        default: *to = *from; break;
    }
}

// The share of block `block` of `blocks`. Neighbouring threads move neighbouring units.
__device__ __forceinline__ void move_units(const Move& m, i64 block, i64 blocks) {
#pragma unroll 1
    for (i64 index = block * MOVE_THREADS + threadIdx.x; index < m.units; index += blocks * MOVE_THREADS) {
        Spot to = spot_at(index, m.to.ne);
        Spot from = to;
        if (m.walk == OWN_SHAPE) from = spot_at(index, m.from.ne);
        if (m.walk == REPEATS) from = repeated(to, m.from.ne);
        move_unit(spot_in(m.to, to), spot_in(m.from, from), m.unit);
    }
}
