// y = Σ x.
//
// A block of 256 adds a piece of 8192 elements in index order, whatever the layout, so that a view and its packed
// copy have the same sum; a second launch adds the pieces' sums (no last-block finish, see sum_rows). In f64, rounded
// once. A packed tensor is one row and limited by memory; a row whose length is a multiple of 4 costs one unravelling
// for four elements, others one for each.
#include "../shared/row_quads.cuh"
#include "../shared/reduce.cuh"

struct SumParams {
    Tensor x;
    float* y;
    double* partials;
    i64 elements;
    i64 pieces;
    i64 piece;
    int form;
};

// The elements of a tensor in index order, as one row.
struct Unravelled {
    const Tensor& t;
    __device__ __forceinline__ const char* at(i64 index) const {
        i64 i0;
        Row row = row_at(divide(index, t.ne[0], &i0), t.ne);
        return row_start(t, row) + i0 * t.nb[0];
    }
    __device__ __forceinline__ float one(i64 index) const { return load_float(at(index), t.dtype); }
    __device__ __forceinline__ float4 four(i64 index) const {
        if (t.ne[0] % 4 == 0) return StridedRow{at(index), t.nb[0], t.dtype}.four(0);
        return make_float4(one(index), one(index + 1), one(index + 2), one(index + 3));
    }
};

extern "C" __global__ void __launch_bounds__(256) sum_pieces(SumParams p) {
    __shared__ double partial[WARPS_MAX];
    i64 first = blockIdx.x * p.piece, end = min(p.elements, first + p.piece);
    double sum;
    if (p.form == QUADS_F32) sum = sum_quads(F32Row{p.x.data}, first, end, threadIdx.x, blockDim.x);
    else if (p.form == QUADS_16) sum = sum_quads(ShortRow{p.x.data, p.x.dtype}, first, end, threadIdx.x, blockDim.x);
    else sum = sum_quads(Unravelled{p.x}, first, end, threadIdx.x, blockDim.x);
    sum = block_reduce(sum, 0.0, partial, Plus());
    if (threadIdx.x != 0) return;
    if (p.pieces == 1) *p.y = (float)sum;
    else p.partials[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(256) sum_finish(SumParams p) {
    __shared__ double partial[WARPS_MAX];
    double sum = 0.0;
#pragma unroll 4
    for (i64 i = threadIdx.x; i < p.pieces; i += blockDim.x) sum += p.partials[i];
    sum = block_reduce(sum, 0.0, partial, Plus());
    if (threadIdx.x == 0) *p.y = (float)sum;
}
