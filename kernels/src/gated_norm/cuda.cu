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

// Values to normalise and, when the norm comes first, the gate before its activation.
struct Values {
    float4 v, gate;
};

__device__ __forceinline__ float4 activated(float4 z, int sigmoid_gate) {
    if (sigmoid_gate) return make_float4(sigmoid(z.x), sigmoid(z.y), sigmoid(z.z), sigmoid(z.w));
    return make_float4(silu(z.x), silu(z.y), silu(z.z), silu(z.w));
}

template <int HELD, class Group>
__device__ __forceinline__ void normalise_group(const GatedNormParams& p, const Group& group, i64 number) {
    i64 part;
    Row row = row_at(divide(number, p.row_groups, &part), p.x.ne);
    i64 start = part * p.group_size, length = p.group_size;
    const char* x = row_start(p.x, row) + start * p.x.nb[0];
    const char* z = row_start(p.z, row) + start * p.z.nb[0];
    const char* w = p.w.data + (p.shared_weight ? 0 : start * p.w.nb[0]);
    char* y = row_start(p.y, row) + start * p.y.nb[0];
    auto finish = [&](i64 i, const Values& values, float factor) {
        float4 v = scaled(values.v, factor);
        if (p.w_form == QUADS_F32) v = times(v, load_quad(F32Row{w}, i, length, 0.0f));
        else v = times(v, load_quad(StridedRow{w, p.w.nb[0], F32}, i, length, 0.0f));
        if (!p.gate_first) v = times(v, activated(values.gate, p.sigmoid_gate));
        store_quad(y, p.y.dtype, p.y_form, i, length, v);
    };
    auto all = [&](auto from_x, auto from_z) {
        auto load = [&](i64 i) {
            Values values = {load_quad(from_x, i, length, 0.0f), load_quad(from_z, i, length, 0.0f)};
            if (p.gate_first) values.v = times(values.v, activated(values.gate, p.sigmoid_gate));
            return values;
        };
        normalise<HELD>(group, length, p.scale, load, finish);
    };
    if (p.form == QUADS_F32) all(F32Row{x}, F32Row{z});
    else if (p.form == QUADS_16) all(ShortRow{x, p.x.dtype}, ShortRow{z, p.x.dtype});
    else all(StridedRow{x, p.x.nb[0], p.x.dtype}, StridedRow{z, p.z.nb[0], p.x.dtype});
}

extern "C" __global__ void __launch_bounds__(128) gated_norm_heads(GatedNormParams p) {
    i64 number = (i64)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (number < p.groups) normalise_group<1>(p, WarpGroup(), number);
}

extern "C" __global__ void __launch_bounds__(128) gated_norm_warps(GatedNormParams p) {
    i64 number = (i64)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (number < p.groups) normalise_group<HELD_MAX>(p, WarpGroup(), number);
}

extern "C" __global__ void __launch_bounds__(512) gated_norm_blocks(GatedNormParams p) {
    __shared__ u64 partial[WARPS_MAX];
    normalise_group<HELD_MAX>(p, BlockGroup{partial}, blockIdx.x);
}
