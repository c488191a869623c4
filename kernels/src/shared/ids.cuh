// Row numbers that come from a user: which of them name no row, found before anything depends on them.
#pragma once
#include "../shared/quad.cuh"

__device__ __forceinline__ i64 id_at(const Tensor& ids, i64 i0, i64 i1, i64 i2) {
    return load_int(ids.data + i0 * ids.nb[0] + i1 * ids.nb[1] + i2 * ids.nb[2], ids.dtype);
}

// Looks through all ids with all threads of the block, whose number is a multiple of 32. Returns whether each is -1
// or below `rows`. If not, and this is block 0, raises a fault for the first one in index order: the same at every
// run, and the one that the reference names. `first_of_warp` is shared memory, for one number of each warp.
__device__ __forceinline__ bool ids_are_rows(
    const Tensor& ids, i64 count, i64 rows, Fault* fault, i64* first_of_warp) {
    i64 first = count;
    for (i64 place = threadIdx.x; place < count; place += blockDim.x) {
        Spot spot = spot_at(place, ids.ne);
        i64 id = id_at(ids, spot.i0, spot.row.i1, spot.row.i2);
        if (id >= -1 && id < rows) continue;
        first = place;
        break;
    }
    if (!__syncthreads_or(first < count)) return true;
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset >>= 1) {
        i64 other = __shfl_xor_sync(ALL_LANES, first, offset);
        first = other < first ? other : first;
    }
    if (threadIdx.x % WARP == 0) first_of_warp[threadIdx.x / WARP] = first;
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        for (u32 warp = 1; warp < blockDim.x / WARP; warp++)
            first = first_of_warp[warp] < first ? first_of_warp[warp] : first;
        Spot spot = spot_at(first, ids.ne);
        i64 id = id_at(ids, spot.i0, spot.row.i1, spot.row.i2);
        raise(fault, 0, id, spot.i0, spot.row.i1, spot.row.i2);
    }
    return false;
}
