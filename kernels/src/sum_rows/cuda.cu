// y[row] = Σ x[row] / divisor, for sum_rows (divisor 1) and mean.
//
// A warp adds a short row, a block of 256 a row of up to 8192 elements; longer rows are cut into pieces of 8192,
// whose sums a second launch adds. Scratch arrives undefined, so that a last-block finish would need a launch that
// clears its counter: as many launches, and atomics besides. The geometry depends on the row's length alone.
//
// Sums in f64, rounded once, as on the CPU. Limited by memory (4 bytes an element); with f64 units at 1/64 of the
// f32 rate, as in consumer devices, conversion and addition come to about the same time. Two-term f32 sums would be
// cheaper there, but turn infinities into NaN. A row below 128 elements leaves lanes idle.
#include "../shared/row_quads.cuh"
#include "../shared/reduce.cuh"

struct SumRowsParams {
    Tensor x, y;
    double* partials;
    i64 rows;
    i64 pieces;
    i64 piece;
    double divisor;
    int form;
};

template <class Group>
__device__ __forceinline__ double sum_of(const SumRowsParams& p, const Group& group, u32 row, i64 first, i64 end) {
    double sum = 0.0;
    with_row(p.form, p.x, row_start(p.x, row_in_grid(row, p.y.ne)),
             [&](auto from) { sum = sum_quads(from, first, end, group.thread(), group.threads()); });
    return group.reduce(sum, 0.0, Plus());
}

extern "C" __global__ void __launch_bounds__(128) sum_rows_warps(SumRowsParams p) {
    u32 row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (row >= p.rows) return;
    double sum = sum_of(p, WarpGroup(), row, 0, p.x.ne[0]);
    if (threadIdx.x % WARP == 0) ((float*)p.y.data)[row] = (float)(sum / p.divisor);
}

extern "C" __global__ void __launch_bounds__(256) sum_rows_blocks(SumRowsParams p) {
    __shared__ u64 partial[WARPS_MAX];
    u32 row = blockIdx.x / (u32)p.pieces;
    i64 first = (blockIdx.x - row * p.pieces) * p.piece, end = min(p.x.ne[0], first + p.piece);
    double sum = sum_of(p, BlockGroup{partial}, row, first, end);
    if (threadIdx.x != 0) return;
    if (p.pieces == 1) ((float*)p.y.data)[row] = (float)(sum / p.divisor);
    else p.partials[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(128) sum_rows_finish(SumRowsParams p) {
    u32 row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (row >= p.rows) return;
    double sum = 0.0;
    for (i64 i = threadIdx.x % WARP; i < p.pieces; i += WARP) sum += p.partials[row * p.pieces + i];
    sum = warp_reduce(sum, Plus());
    if (threadIdx.x % WARP == 0) ((float*)p.y.data)[row] = (float)(sum / p.divisor);
}
