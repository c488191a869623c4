// y[m, u, n] = sum over k of a[k, m, ids[u, n]] * b[k, u or 0, n]; zeros for id -1.
//
// A warp computes an output, in the order of `mul_mat`. The 8 warps of a block take neighbouring rows of one expert;
// blocks of the same rows for different result rows are neighbours in the grid, so that experts that several tokens
// use come from L2. Block 0 looks through all ids first; a stranger gives zeros, and a fault once.
//
// Limits: a step of one token reads each used weight once and is bound by memory. A prompt reads weights once for each
// token, from L2; sorting tokens by expert would let tiles share them, and takes launches that depend on ids.
#include "../shared/ids.cuh"
#include "../shared/product.cuh"

struct MulMatIdParams {
    Tensor a, b, ids, y;
    i64 pairs;                  // rows of y
    i64 experts;
    const signed char* quants;  // b rounded to Q8_0: integers row after row, scales row after row
    const float* scales;
    Fault* fault;
    int wide;                   // as in mul_mat
    int unused;
};

constexpr int WARPS = 8;

struct Output {
    i64 m, pair;
    i64 row_of_b;
    const char* a;              // the expert's row; null for zeros
    const char* b;
};

// The output of this warp; false past the last row.
__device__ __forceinline__ bool output_of_warp(const MulMatIdParams& p, Output* at) {
    __shared__ i64 first_of_warp[WARP];
    if (blockIdx.x == 0) ids_are_rows(p.ids, p.pairs, p.experts, p.fault, first_of_warp);
    // There is a block for each pair, so that 32 bits hold their number.
    u32 pairs = (u32)p.pairs, used = (u32)p.y.ne[1];
    u32 rows = blockIdx.x / pairs, pair = blockIdx.x - rows * pairs;
    u32 n = pair / used, u = pair - n * used;
    at->pair = pair;
    at->m = (i64)rows * WARPS + threadIdx.x / WARP;
    if (at->m >= p.y.ne[0]) return false;
    i64 id = id_at(p.ids, u, n, 0);
    u32 from = p.b.ne[1] == 1 ? 0 : u;
    at->a = id < 0 || id >= p.experts ? nullptr : p.a.data + at->m * p.a.nb[1] + id * p.a.nb[2];
    at->b = p.b.data + from * p.b.nb[1] + n * p.b.nb[2];
    at->row_of_b = n * p.b.ne[1] + from;
    return true;
}

__device__ __forceinline__ void store(const MulMatIdParams& p, const Output& at, float* sum) {
    int lane = threadIdx.x % WARP;
    reduce<1, WARP / 2>(sum, lane);
    if (lane == 0) ((float*)p.y.data)[at.pair * p.y.ne[0] + at.m] = sum[0];
}

template <int TYPE>
__device__ __forceinline__ void product(const MulMatIdParams& p) {
    Output at;
    if (!output_of_warp(p, &at)) return;
    float sum[1] = {};
    if (at.a != nullptr) {
        Lines<1, 1> lines{{at.a}, {at.b}};
        if (p.wide) accumulate_fours<TYPE, 1, 1>(lines, p.a.ne[0], sum);
        else accumulate_ones<TYPE, 1, 1>(lines, p.a.ne[0], p.a.nb[0], p.b.nb[0], sum);
    }
    store(p, at, sum);
}

extern "C" __global__ void __launch_bounds__(256) mul_mat_id_f32(MulMatIdParams p) { product<F32>(p); }
extern "C" __global__ void __launch_bounds__(256) mul_mat_id_f16(MulMatIdParams p) { product<F16>(p); }
extern "C" __global__ void __launch_bounds__(256) mul_mat_id_bf16(MulMatIdParams p) { product<BF16>(p); }
extern "C" __global__ void __launch_bounds__(256, 3) mul_mat_id_q8_0(MulMatIdParams p) { product<Q8_0>(p); }

extern "C" __global__ void __launch_bounds__(256) mul_mat_id_blocks(MulMatIdParams p) {
    Output at;
    if (!output_of_warp(p, &at)) return;
    float sum[1] = {};
    if (at.a != nullptr) {
        Rounded<1, 1> lines{{at.a}, {at.row_of_b * p.a.ne[0]}};
        if (p.wide) accumulate_blocks<1, 1, true>(lines, p.a.ne[0], p.quants, p.scales, sum);
        else accumulate_blocks<1, 1, false>(lines, p.a.ne[0], p.quants, p.scales, sum);
    }
    store(p, at, sum);
}
