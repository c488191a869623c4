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

struct L2Row {
    const L2NormParams& p;
    const char* x;
    char* y;
    int length;

    struct Quad {
        float4 v;
    };

    template <class Body> __device__ __forceinline__ void with(const Body& body) const {
        with_row(p.x_form, p.x, x, [&](auto from) {
            if (length % 4 == 0) body([&](int i) { return Quad{from.four(i)}; });
            else body([&](int i) { return Quad{load_quad(from, i, length, 0.0f)}; });
        });
    }

    __device__ __forceinline__ void prepare(Quad&) const {}

    __device__ __forceinline__ void store(int i, const Quad& quad, float factor) const {
        store_quad(y, p.y.dtype, p.y_form, i, length, scaled(quad.v, factor));
    }
};

template <int HELD, class Group>
__device__ __forceinline__ void normalise_row(const L2NormParams& p, const Group& group, u32 number) {
    Row row = row_in_grid(number, p.x.ne);
    int length = (int)p.x.ne[0];
    normalise<HELD>(group, length, p.scale, L2Row{p, row_start(p.x, row), row_start(p.y, row), length});
}

extern "C" __global__ void __launch_bounds__(128) l2_norm_heads(L2NormParams p) {
    u32 number = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (number < p.rows) normalise_row<1>(p, WarpGroup(), number);
}

extern "C" __global__ void __launch_bounds__(128) l2_norm_warps(L2NormParams p) {
    u32 number = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (number < p.rows) normalise_row<HELD_MAX>(p, WarpGroup(), number);
}

extern "C" __global__ void __launch_bounds__(512) l2_norm_blocks(L2NormParams p) {
    __shared__ u64 partial[WARPS_MAX];
    normalise_row<HELD_MAX>(p, BlockGroup{partial}, blockIdx.x);
}
