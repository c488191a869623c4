// y = x / max(sqrt(sum of x^2 over the row), eps), or x / sqrt(sum of x^2 + eps).
//
// As rms_norm: a warp for a row of up to 512 elements, a block for a longer one, 8 bytes an element.
#include "../shared/norm.cuh"

struct L2NormParams {
    Tensor x, y;
    i64 rows;
    NormScale scale;
    int x_form, y_form;
};

struct Values {
    float4 v;
};

template <int HELD, class Group>
__device__ __forceinline__ void normalise_row(const L2NormParams& p, const Group& group, i64 number) {
    Row row = row_at(number, p.x.ne);
    char* to = row_start(p.y, row);
    i64 length = p.x.ne[0];
    with_row(p.x_form, p.x, row_start(p.x, row), [&](auto from) {
        normalise<HELD>(
            group, length, p.scale, [&](i64 i) { return Values{load_quad(from, i, length, 0.0f)}; },
            [&](i64 i, const Values& values, float factor) {
                store_quad(to, p.y.dtype, p.y_form, i, length, scaled(values.v, factor));
            });
    });
}

extern "C" __global__ void __launch_bounds__(128) l2_norm_heads(L2NormParams p) {
    i64 number = (i64)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (number < p.rows) normalise_row<1>(p, WarpGroup(), number);
}

extern "C" __global__ void __launch_bounds__(128) l2_norm_warps(L2NormParams p) {
    i64 number = (i64)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (number < p.rows) normalise_row<HELD_MAX>(p, WarpGroup(), number);
}

extern "C" __global__ void __launch_bounds__(512) l2_norm_blocks(L2NormParams p) {
    __shared__ u64 partial[WARPS_MAX];
    normalise_row<HELD_MAX>(p, BlockGroup{partial}, blockIdx.x);
}
