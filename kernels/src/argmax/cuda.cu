// y[row] = the least i with the largest x[row][i]; NaN is the largest, -0 equals +0.
//
// A warp searches a short row, a block of 256 a longer one; where there are too few rows to fill a device, long rows
// are cut into pieces of 8192 and a second launch finishes them (no last-block finish, see sum_rows). A thread looks
// at four elements at once and goes into detail only when one of them beats its best so far, which happens rarely: a
// compare per element, so that memory is the limit (4 bytes an element). Candidates meet as one 64-bit number, an
// order key above the complement of the index: the greatest is the largest element of lowest index, in any order of
// meeting, so that cutting a row changes no result.
#include "../shared/order.cuh"
#include "../shared/row_quads.cuh"
#include "../shared/reduce.cuh"

struct ArgmaxParams {
    Tensor x, y;
    u64* partials;
    i64 rows;
    i64 pieces;
    i64 piece;
    int form;
};

struct Best {
    float value;
    u32 index;

    // Whether a later element takes its place: it is greater, or the first NaN.
    __device__ __forceinline__ void meet(float later, u32 place) {
        if (later > value || (later != later && value == value)) {
            value = later;
            index = place;
        }
    }
    // False only when `meet` would change nothing.
    __device__ __forceinline__ bool may_lose_to(float later) const { return !(later <= value); }
};

// The best of this thread's share of elements first … end, as a candidate; 0 where it has no share.
template <class From>
__device__ __forceinline__ u64 search(const From& from, i64 first, i64 end, int thread, int threads) {
    i64 i = first + 4 * thread;
    if (i >= end) return 0;
    Best best = {from.one(i), (u32)i};
#pragma unroll 4
    for (; i + 4 <= end; i += 4 * threads) {
        float4 v = from.four(i);
        if (best.may_lose_to(v.x) | best.may_lose_to(v.y) | best.may_lose_to(v.z) | best.may_lose_to(v.w)) {
            best.meet(v.x, (u32)i);
            best.meet(v.y, (u32)i + 1);
            best.meet(v.z, (u32)i + 2);
            best.meet(v.w, (u32)i + 3);
        }
    }
    for (; i < end; i++) best.meet(from.one(i), (u32)i);
    return candidate(best.value, best.index);
}

template <class Group>
__device__ __forceinline__ u64 best_of(const ArgmaxParams& p, const Group& group, u32 row, i64 first, i64 end) {
    u64 best = 0;
    with_row(p.form, p.x, row_start(p.x, row_in_grid(row, p.x.ne)),
             [&](auto from) { best = search(from, first, end, group.thread(), group.threads()); });
    return group.reduce(best, (u64)0, Greater());
}

__device__ __forceinline__ void store_index(const ArgmaxParams& p, u32 row, u64 best) {
    ((int*)p.y.data)[row] = (int)index_of(best);
}

extern "C" __global__ void __launch_bounds__(128) argmax_warps(ArgmaxParams p) {
    u32 row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (row >= p.rows) return;
    u64 best = best_of(p, WarpGroup(), row, 0, p.x.ne[0]);
    if (threadIdx.x % WARP == 0) store_index(p, row, best);
}

extern "C" __global__ void __launch_bounds__(256) argmax_blocks(ArgmaxParams p) {
    __shared__ u64 partial[WARPS_MAX];
    u32 row = blockIdx.x / (u32)p.pieces;
    i64 first = (blockIdx.x - row * p.pieces) * p.piece, end = min(p.x.ne[0], first + p.piece);
    u64 best = best_of(p, BlockGroup{partial}, row, first, end);
    if (threadIdx.x != 0) return;
    if (p.pieces == 1) store_index(p, row, best);
    else p.partials[blockIdx.x] = best;
}

extern "C" __global__ void __launch_bounds__(128) argmax_finish(ArgmaxParams p) {
    u32 row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (row >= p.rows) return;
    u64 best = 0;
    for (i64 i = threadIdx.x % WARP; i < p.pieces; i += WARP) best = max(best, p.partials[row * p.pieces + i]);
    best = warp_reduce(best, Greater());
    if (threadIdx.x % WARP == 0) store_index(p, row, best);
}
