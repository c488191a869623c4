// Reductions and prefix sums over a warp or a block, always by the same tree: the bits of a result depend on the
// number of threads alone. Blocks are whole warps.
#pragma once
#include "../shared/common.cuh"

constexpr int WARPS_MAX = 32;

struct Plus {
    template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};

struct Greater {
    template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return a > b ? a : b; }
};

// The reduction of all lanes, in every lane.
template <class T, class Op> __device__ __forceinline__ T warp_reduce(T value, Op op) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset >>= 1)
        value = op(value, __shfl_xor_sync(ALL_LANES, value, offset));
    return value;
}

// The reduction of all threads, in every thread. `partial` has WARPS_MAX places and may be used again at once.
// Each warp repeats the last step for itself, which saves a barrier.
template <class T, class Op> __device__ __forceinline__ T block_reduce(T value, T none, T* partial, Op op) {
    int lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    value = warp_reduce(value, op);
    if (lane == 0) partial[threadIdx.x / WARP] = value;
    __syncthreads();
    value = warp_reduce(lane < warps ? partial[lane] : none, op);
    __syncthreads();
    return value;
}

// The sum of the lanes up to and with this one.
__device__ __forceinline__ double warp_prefix(double value) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int offset = 1; offset < WARP; offset <<= 1) {
        double before = __shfl_up_sync(ALL_LANES, value, offset);
        if (lane >= offset) value = before + value;
    }
    return value;
}

// Threads that share a row: one way to write a kernel for a warp and for a block.
struct WarpGroup {
    static constexpr bool ONE_WARP = true;
    __device__ __forceinline__ int thread() const { return threadIdx.x % WARP; }
    __device__ __forceinline__ int threads() const { return WARP; }
    template <class T, class Op> __device__ __forceinline__ T reduce(T value, T, Op op) const {
        return warp_reduce(value, op);
    }
};

struct BlockGroup {
    static constexpr bool ONE_WARP = false;
    u64* partial;
    __device__ __forceinline__ int thread() const { return threadIdx.x; }
    __device__ __forceinline__ int threads() const { return blockDim.x; }
    template <class T, class Op> __device__ __forceinline__ T reduce(T value, T none, Op op) const {
        return block_reduce(value, none, (T*)partial, op);
    }
};
