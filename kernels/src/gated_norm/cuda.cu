// y = norm(x) * act(z), or norm(x * act(z)), in groups of a row; norm includes the weight.
//
// As rms_norm, with a warp for a group of up to 512 elements (a head of Gated DeltaNet) and a block for a longer one
// (Mamba-2). One pass: x and z are read at once, so that their latencies overlap, and held in registers. Limited by
// memory: 12 bytes an element. Groups of less than 128 leave lanes idle.
#include "../shared/math.cuh"
#include "../shared/norm.cuh"

struct GatedNormParams {
    Tensor x, z, w, y;
    i64 groups;          // of all rows
    i64 row_groups;      // of one row
    i64 group_size;
    NormScale scale;
    int gate_first;
    int sigmoid_gate;
    int shared_weight;
    int form, w_form, y_form;
};

// The activation of the gate. At -inf both are 0, where z * sigmoid(z) would be NaN.
__device__ __forceinline__ float activated(float z, int sigmoid_gate) {
    float s = sigmoid(z);
    return sigmoid_gate || z == negative_infinity() ? s : z * s;
}

// A group with the operands that belong to it.
struct GatedGroup {
    const GatedNormParams& p;
    const char* x;
    const char* z;
    const char* w;
    char* y;
    int length;

    // Values to normalise, and the gate.
    struct Quad {
        float4 v, gate;
    };

    template <class Body> __device__ __forceinline__ void with(const Body& body) const {
        auto call = [&](auto from_x, auto from_z) {
            if (length % 4 == 0) body([&](int i) { return Quad{from_x.four(i), from_z.four(i)}; });
            else body([&](int i) { return Quad{load_quad(from_x, i, length, 0.0f), load_quad(from_z, i, length, 0.0f)}; });
        };
        if (p.form == QUADS_F32) call(F32Row{x}, F32Row{z});
        else if (p.form == QUADS_16) call(ShortRow{x, p.x.dtype}, ShortRow{z, p.x.dtype});
        else call(StridedRow{x, p.x.nb[0], p.x.dtype}, StridedRow{z, p.z.nb[0], p.x.dtype});
    }

    __device__ __forceinline__ void prepare(Quad& quad) const {
        float4 z = quad.gate;
        quad.gate = make_float4(activated(z.x, p.sigmoid_gate), activated(z.y, p.sigmoid_gate),
                                activated(z.z, p.sigmoid_gate), activated(z.w, p.sigmoid_gate));
        if (p.gate_first) quad.v = times(quad.v, quad.gate);
    }

    __device__ __forceinline__ void store(int i, const Quad& quad, float factor) const {
        float4 v = scaled(quad.v, factor);
        if (p.w_form == QUADS_F32) v = times(v, load_quad(F32Row{w}, i, length, 0.0f));
        else v = times(v, load_quad(StridedRow{w, p.w.nb[0], F32}, i, length, 0.0f));
        if (!p.gate_first) v = times(v, quad.gate);
        store_quad(y, p.y.dtype, p.y_form, i, length, v);
    }
};

template <int HELD, class Group>
__device__ __forceinline__ void normalise_group(const GatedNormParams& p, const Group& group, u32 number) {
    u32 outer = number / (u32)p.row_groups;
    Row row = row_in_grid(outer, p.x.ne);
    i64 start = (number - outer * p.row_groups) * p.group_size;
    int length = (int)p.group_size;
    const char* w = p.w.data + (p.shared_weight ? 0 : start * p.w.nb[0]);
    GatedGroup operands = {p, row_start(p.x, row) + start * p.x.nb[0], row_start(p.z, row) + start * p.z.nb[0], w,
                           row_start(p.y, row) + start * p.y.nb[0], length};
    normalise<HELD>(group, length, p.scale, operands);
}

extern "C" __global__ void __launch_bounds__(128) gated_norm_heads(GatedNormParams p) {
    u32 number = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (number < p.groups) normalise_group<1>(p, WarpGroup(), number);
}

extern "C" __global__ void __launch_bounds__(128) gated_norm_warps(GatedNormParams p) {
    u32 number = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (number < p.groups) normalise_group<HELD_MAX>(p, WarpGroup(), number);
}

extern "C" __global__ void __launch_bounds__(512) gated_norm_blocks(GatedNormParams p) {
    __shared__ u64 partial[WARPS_MAX];
    normalise_group<HELD_MAX>(p, BlockGroup{partial}, blockIdx.x);
}
