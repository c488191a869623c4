// y[row] = the indices of the first k elements of a row in falling order; NaN is the largest, -0 equals +0, equals keep
// their order.
//
// top_k_rounds  for few elements, and for long rows: a block looks for the largest element below the one it found last,
//               k times. k passes over the row, from a cache.
// top_k_sorted  rows of up to 4096: a block sorts the row in shared memory, bitonically.
// An element and its index are one number, so that no two are equal and every order of meeting gives the same result.
//
// Limits: barriers; routers of some hundred experts are short rows. A sort of a whole long row (argsort) by rounds is
// quadratic; nobody here asks for one.
#include "../shared/order.cuh"
#include "../shared/reduce.cuh"

struct TopKParams {
    Tensor x, y;
    i64 places;          // the length of a row, raised to a power of two
};

constexpr int THREADS = 256;

extern __shared__ u64 dynamic_shared[];

__device__ __forceinline__ u64 candidate_at(const TopKParams& p, const char* row, i64 i) {
    return candidate(load_float(row + i * p.x.nb[0], p.x.dtype), (u32)i);
}

extern "C" __global__ void __launch_bounds__(THREADS) top_k_rounds(TopKParams p) {
    __shared__ u64 partial[WARPS_MAX];
    const char* row = row_start(p.x, row_at(blockIdx.x, p.x.ne));
    int* to = (int*)p.y.data + blockIdx.x * p.y.ne[0];
    u64 limit = ~0ull;  // of what is still to be found; a NaN at index 0 is as large
    for (i64 place = 0; place < p.y.ne[0]; place++) {
        u64 best = 0;
#pragma unroll 4
        for (i64 i = threadIdx.x; i < p.x.ne[0]; i += THREADS) {
            u64 here = candidate_at(p, row, i);
            if (here <= limit && here > best) best = here;
        }
        best = block_reduce(best, (u64)0, partial, Greater());
        limit = best - 1;
        if (threadIdx.x == 0) to[place] = (int)index_of(best);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) top_k_sorted(TopKParams p) {
    const char* row = row_start(p.x, row_at(blockIdx.x, p.x.ne));
    u32 places = (u32)p.places;
    for (u32 i = threadIdx.x; i < places; i += THREADS) dynamic_shared[i] = i < p.x.ne[0] ? candidate_at(p, row, i) : 0;
    __syncthreads();
    for (u32 run = 2; run <= places; run *= 2) {
        for (u32 distance = run / 2; distance > 0; distance /= 2) {
            for (u32 pair = threadIdx.x; pair < places / 2; pair += THREADS) {
                u32 low = pair / distance * 2 * distance + pair % distance, high = low + distance;
                u64 a = dynamic_shared[low], b = dynamic_shared[high];
                bool falling = (low & run) == 0;
                if ((a < b) == falling) dynamic_shared[low] = b, dynamic_shared[high] = a;
            }
            __syncthreads();
        }
    }
    int* to = (int*)p.y.data + blockIdx.x * p.y.ne[0];
    for (u32 i = threadIdx.x; i < p.y.ne[0]; i += THREADS) to[i] = (int)index_of(dynamic_shared[i]);
}
