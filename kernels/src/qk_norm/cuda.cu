// q and k divided by the lengths of their rows, for each head that repeats a row: one launch for both.
//
// As l2_norm, a warp for a row of up to 512 elements, a block for a longer one. Rows of the results are counted, those
// of q before those of k, so that a row that is repeated is read again, from cache; 8 bytes an element.
#include "../shared/norm.cuh"

struct QkNormParams {
    Tensor q, k, q_result, k_result;
    i64 rows;  // of one result
    NormScale scale;
    int heads_per_key;  // neighbours that repeat a head; 0 where heads are tiled
    int q_form, k_form, y_form;
};

struct QkRow {
    const char* x;
    char* y;
    i64 stride;
    int form, y_form, length;

    struct Quad {
        float4 v;
    };

    template <class Body> __device__ __forceinline__ void with(const Body& body) const {
        if (form == QUADS_F32) body([&](int i) { return Quad{F32Row{x}.four(i)}; });
        else body([&](int i) { return read(i); });
    }

    __device__ __forceinline__ Quad read(int i) const {
        return {load_quad(StridedRow{x, stride, F32}, i, length, 0.0f)};
    }

    __device__ __forceinline__ void prepare(Quad&) const {}

    __device__ __forceinline__ void store(int i, const Quad& quad, float factor) const {
        store_quad(y, F32, y_form, i, length, scaled(quad.v, factor));
    }
};

template <int HELD, class Group>
__device__ __forceinline__ void normalise_row(const QkNormParams& p, const Group& group, u32 number) {
    bool is_key = number >= p.rows;
    Row to = row_in_grid(is_key ? number - (u32)p.rows : number, p.q_result.ne);
    Row from = to;
    u32 head = (u32)to.i1, key_heads = (u32)p.q.ne[1];
    from.i1 = p.heads_per_key == 0 ? head % key_heads : head / (u32)p.heads_per_key;
    QkRow row;
    row.x = is_key ? row_start(p.k, from) : row_start(p.q, from);
    row.y = is_key ? row_start(p.k_result, to) : row_start(p.q_result, to);
    row.stride = is_key ? p.k.nb[0] : p.q.nb[0];
    row.form = is_key ? p.k_form : p.q_form;
    row.y_form = p.y_form;
    row.length = (int)p.q.ne[0];
    normalise<HELD>(group, row.length, p.scale, row);
}

extern "C" __global__ void __launch_bounds__(128) qk_norm_heads(QkNormParams p) {
    u32 number = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (number < 2 * p.rows) normalise_row<1>(p, WarpGroup(), number);
}

extern "C" __global__ void __launch_bounds__(128) qk_norm_warps(QkNormParams p) {
    u32 number = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (number < 2 * p.rows) normalise_row<HELD_MAX>(p, WarpGroup(), number);
}

extern "C" __global__ void __launch_bounds__(768) qk_norm_blocks(QkNormParams p) {
    __shared__ u64 partial[WARPS_MAX];
    normalise_row<HELD_MAX>(p, BlockGroup{partial}, blockIdx.x);
}
