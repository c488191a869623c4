// y = (x - mean) / sqrt(mean of (x - mean)^2 + eps) over each row.
//
// As rms_norm, after one more pass for the mean, in f64: a warp for a row of up to 512 elements, a block for a longer
// one. The second pass finds a row of a warp or a block in the first-level cache. 8 bytes an element from memory.
#include "../shared/norm.cuh"

struct NormParams {
    Tensor x, y;
    i64 rows;
    NormScale scale;
    int x_form, y_form;
};

struct CentredRow {
    const NormParams& p;
    const char* x;
    char* y;
    int length;
    float mean, mean_rest;  // the mean is their sum: f64 in the second pass would cost registers

    struct Quad {
        float4 v;
        int count;  // elements of the row from the quad's first on; what lies behind the end stays 0
    };

    template <class Body> __device__ __forceinline__ void with(const Body& body) const {
        if (p.x_form == QUADS_F32) body([&](int i) { return Quad{F32Row{x}.four(i), length - i}; });
        else if (p.x_form == QUADS_16) body([&](int i) { return Quad{ShortRow{x, p.x.dtype}.four(i), length - i}; });
        else body([&](int i) { return read(i); });
    }

    __device__ __forceinline__ Quad read(int i) const {
        return {load_quad(StridedRow{x, p.x.nb[0], p.x.dtype}, i, length, 0.0f), length - i};
    }

    __device__ __forceinline__ float centred(float v, bool is_there) const {
        return is_there ? (v - mean) - mean_rest : 0.0f;
    }

    __device__ __forceinline__ void prepare(Quad& quad) const {
        quad.v.x = centred(quad.v.x, quad.count > 0);
        quad.v.y = centred(quad.v.y, quad.count > 1);
        quad.v.z = centred(quad.v.z, quad.count > 2);
        quad.v.w = centred(quad.v.w, quad.count > 3);
    }

    __device__ __forceinline__ void store(int i, const Quad& quad, float factor) const {
        store_quad(y, p.y.dtype, p.y_form, i, length, scaled(quad.v, factor));
    }
};

template <int HELD, class Group>
__device__ __forceinline__ void normalise_row(const NormParams& p, const Group& group, u32 number) {
    Row row = row_in_grid(number, p.x.ne);
    int length = (int)p.x.ne[0];
    const char* x = row_start(p.x, row);
    double sum = 0.0;
    with_row(p.x_form, p.x, x, [&](auto from) { sum = sum_quads(from, 0, length, group.thread(), group.threads()); });
    // The share is 1 / length.
    double mean = group.reduce(sum, 0.0, Plus()) * p.scale.share;
    float near = (float)mean, rest = (float)(mean - (double)near);
    normalise<HELD>(group, length, p.scale, CentredRow{p, x, row_start(p.y, row), length, near, rest});
}

extern "C" __global__ void __launch_bounds__(128) norm_heads(NormParams p) {
    u32 number = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (number < p.rows) normalise_row<1>(p, WarpGroup(), number);
}

extern "C" __global__ void __launch_bounds__(128) norm_warps(NormParams p) {
    u32 number = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (number < p.rows) normalise_row<HELD_MAX>(p, WarpGroup(), number);
}

// Two quads a thread: with four, ptxas wants a stack on sm_70.
extern "C" __global__ void __launch_bounds__(768) norm_blocks(NormParams p) {
    __shared__ u64 partial[WARPS_MAX];
    normalise_row<2>(p, BlockGroup{partial}, blockIdx.x);
}
