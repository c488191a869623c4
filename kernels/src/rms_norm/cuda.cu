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

// A row of w, repeated until it covers x.
struct Repeated {
    const char* row;
    i64 stride;
    u32 length;
    __device__ __forceinline__ float at(u32 i) const { return *(const float*)(row + i * stride); }
    __device__ __forceinline__ float one(u32 i) const { return at(i % length); }
    __device__ __forceinline__ float4 four(u32 i) const {
        u32 a = i % length, b = next(a), c = next(b), d = next(c);
        return make_float4(at(a), at(b), at(c), at(d));
    }
    __device__ __forceinline__ u32 next(u32 i) const { return i + 1 == length ? 0 : i + 1; }
};

// A row with the operands that belong to it.
struct RmsRow {
    const RmsNormParams& p;
    const char* x;
    const char* w;
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
        float4 v = scaled(quad.v, factor);
        if (p.w_form == QUADS_F32) v = times(v, load_quad(F32Row{w}, i, length, 0.0f));
        else if (p.weight) v = times(v, load_quad(Repeated{w, p.w.nb[0], (u32)p.w.ne[0]}, i, length, 0.0f));
        store_quad(y, p.y.dtype, p.y_form, i, length, v);
    }
};

template <int HELD, class Group>
__device__ __forceinline__ void normalise_row(const RmsNormParams& p, const Group& group, u32 number) {
    Row row = row_in_grid(number, p.x.ne);
    const char* w = nullptr;
    if (p.weight) {
        Row from = {(u32)row.i1 % (u32)p.w.ne[1], (u32)row.i2 % (u32)p.w.ne[2], (u32)row.i3 % (u32)p.w.ne[3]};
        w = row_start(p.w, from);
    }
    int length = (int)p.x.ne[0];
    normalise<HELD>(group, length, p.scale, RmsRow{p, row_start(p.x, row), w, row_start(p.y, row), length});
}

extern "C" __global__ void __launch_bounds__(128) rms_norm_heads(RmsNormParams p) {
    u32 number = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (number < p.rows) normalise_row<1>(p, WarpGroup(), number);
}

extern "C" __global__ void __launch_bounds__(128) rms_norm_warps(RmsNormParams p) {
    u32 number = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (number < p.rows) normalise_row<HELD_MAX>(p, WarpGroup(), number);
}

extern "C" __global__ void __launch_bounds__(512) rms_norm_blocks(RmsNormParams p) {
    __shared__ u64 partial[WARPS_MAX];
    normalise_row<HELD_MAX>(p, BlockGroup{partial}, blockIdx.x);
}
