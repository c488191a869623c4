// y = exp(v - max v) / sum of exp(v - max v), v = x * scale + mask.
//
// soft_max_short   rows of up to 128: a warp each, 4 values a lane in registers
// soft_max_medium  rows of up to 1024: a warp each, 32 values a lane in registers
// soft_max_long    a block per row, which is read three times, the second and third time from a cache
// All are limited by memory. The form depends on the row's length alone, and every sum has one order, so that a row
// gives the same bits whatever is beside it. No special values are treated apart: a largest v of -inf or +inf makes
// a NaN, which the sum spreads over the row.
#include "../shared/math.cuh"
#include "../shared/quad.cuh"

struct SoftMaxParams {
    Tensor x, mask, y;
    i64 rows;
    float scale;
    int repeats;
};

constexpr int THREADS = 256;
constexpr int LONG_THREADS = 512;

// Where a row's values come from.
struct Scores {
    const char* x;
    const char* mask;
};

__device__ __forceinline__ Scores scores_of(const SoftMaxParams& p, const Row& row) {
    Scores s{row_start(p.x, row), p.mask.data};
    if (s.mask == nullptr) return s;
    Spot spot{0, row};
    if (p.repeats) spot = repeated(spot, p.mask.ne);
    s.mask = row_start(p.mask, spot.row);
    return s;
}

__device__ __forceinline__ float score(const SoftMaxParams& p, const Scores& s, i64 i) {
    float x = load_float(s.x + i * p.x.nb[0], p.x.dtype);
    if (s.mask == nullptr) return x * p.scale;
    i64 from = i;
    if (p.repeats) divide(i, p.mask.ne[0], &from);
    return fmaf(x, p.scale, load_float(s.mask + from * p.mask.nb[0], p.mask.dtype));
}

template <int PER_LANE>
__device__ __forceinline__ void soft_max_warp(const SoftMaxParams& p) {
    i64 row_number = (i64)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    if (row_number >= p.rows) return;
    Row row = row_at(row_number, p.x.ne);
    Scores s = scores_of(p, row);
    int lane = threadIdx.x % WARP;
    int length = (int)p.x.ne[0];
    float v[PER_LANE];
    float largest = negative_infinity();
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) {
        int i = k * WARP + lane;
        v[k] = i < length ? score(p, s, i) : negative_infinity();
        largest = fmaxf(largest, v[k]);
    }
    largest = warp_max(largest);
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) {
        v[k] = k * WARP + lane < length ? expf(v[k] - largest) : 0.0f;
        sum += v[k];
    }
    sum = warp_sum(sum);
    char* to = row_start(p.y, row);
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) {
        int i = k * WARP + lane;
        if (i < length) store_float(to + i * p.y.nb[0], p.y.dtype, v[k] / sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) soft_max_short(SoftMaxParams p) { soft_max_warp<4>(p); }

extern "C" __global__ void __launch_bounds__(THREADS) soft_max_medium(SoftMaxParams p) { soft_max_warp<32>(p); }

// The largest or the sum over the block, for every thread.
template <bool SUM>
__device__ __forceinline__ float over_block(float value, float* of_warp) {
    value = SUM ? warp_sum(value) : warp_max(value);
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = value;
    __syncthreads();
    int lane = threadIdx.x % WARP;
    value = lane < LONG_THREADS / WARP ? of_warp[lane] : SUM ? 0.0f : negative_infinity();
    return SUM ? warp_sum(value) : warp_max(value);
}

extern "C" __global__ void __launch_bounds__(LONG_THREADS) soft_max_long(SoftMaxParams p) {
    __shared__ float largest_of_warp[LONG_THREADS / WARP];
    __shared__ float sum_of_warp[LONG_THREADS / WARP];
    Row row = row_at(blockIdx.x, p.x.ne);
    Scores s = scores_of(p, row);
    float largest = negative_infinity();
    for (i64 i = threadIdx.x; i < p.x.ne[0]; i += LONG_THREADS) largest = fmaxf(largest, score(p, s, i));
    largest = over_block<false>(largest, largest_of_warp);
    float sum = 0.0f;
    for (i64 i = threadIdx.x; i < p.x.ne[0]; i += LONG_THREADS) sum += expf(score(p, s, i) - largest);
    sum = over_block<true>(sum, sum_of_warp);
    // y may lie where x lies: each thread overwrites only what it alone reads.
    char* to = row_start(p.y, row);
    for (i64 i = threadIdx.x; i < p.x.ne[0]; i += LONG_THREADS)
        store_float(to + i * p.y.nb[0], p.y.dtype, expf(score(p, s, i) - largest) / sum);
}
