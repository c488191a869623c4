// y = x / sqrt(mean of x^2 over the row + eps) * w.
//
// A warp normalises a row of up to 128 elements (`heads`, with few registers, so that enough warps wait for memory at
// once) or 512, a block of 128 to 512 threads a longer one, in registers up to 8192 elements; the geometry depends on
// the row's length alone. Limited by memory: 8 bytes an element, w comes from cache. Blocks of 1024 threads would hold
// longer rows, but spill. One very long row alone would want several blocks; no model has one.
#include "../shared/norm.cuh"

struct RmsNormParams {
    Tensor x, w, y;
    i64 rows;
    NormScale scale;
    int weight;
    int x_form, w_form, y_form;
};

struct Values {
    float4 v;
};

// A row of w, repeated until it covers x.
struct Repeated {
    const char* row;
    i64 stride, length;
    __device__ __forceinline__ float one(i64 i) const {
        i64 rest;
        divide(i, length, &rest);
        return *(const float*)(row + rest * stride);
    }
    __device__ __forceinline__ float4 four(i64 i) const {
        return make_float4(one(i), one(i + 1), one(i + 2), one(i + 3));
    }
};

template <int HELD, class Group>
__device__ __forceinline__ void normalise_row(const RmsNormParams& p, const Group& group, i64 number) {
    Row row = row_at(number, p.x.ne);
    char* to = row_start(p.y, row);
    i64 length = p.x.ne[0];
    const char* w = nullptr;
    if (p.weight) {
        Row from;
        divide(row.i1, p.w.ne[1], &from.i1);
        divide(row.i2, p.w.ne[2], &from.i2);
        divide(row.i3, p.w.ne[3], &from.i3);
        w = row_start(p.w, from);
    }
    with_row(p.x_form, p.x, row_start(p.x, row), [&](auto from) {
        normalise<HELD>(
            group, length, p.scale, [&](i64 i) { return Values{load_quad(from, i, length, 0.0f)}; },
            [&](i64 i, const Values& values, float factor) {
                float4 v = scaled(values.v, factor);
                if (p.w_form == QUADS_F32) v = times(v, load_quad(F32Row{w}, i, length, 0.0f));
                else if (p.weight) v = times(v, load_quad(Repeated{w, p.w.nb[0], p.w.ne[0]}, i, length, 0.0f));
                store_quad(to, p.y.dtype, p.y_form, i, length, v);
            });
    });
}

extern "C" __global__ void __launch_bounds__(128) rms_norm_heads(RmsNormParams p) {
    i64 number = (i64)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (number < p.rows) normalise_row<1>(p, WarpGroup(), number);
}

extern "C" __global__ void __launch_bounds__(128) rms_norm_warps(RmsNormParams p) {
    i64 number = (i64)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (number < p.rows) normalise_row<HELD_MAX>(p, WarpGroup(), number);
}

extern "C" __global__ void __launch_bounds__(512) rms_norm_blocks(RmsNormParams p) {
    __shared__ u64 partial[WARPS_MAX];
    normalise_row<HELD_MAX>(p, BlockGroup{partial}, blockIdx.x);
}
