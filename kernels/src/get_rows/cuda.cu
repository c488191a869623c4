// y[d, n, i2, i3] = a[d, ids[n, i2, i3], i2, i3]; zeros for id -1.
//
// The walk of `unary` over y, so that one long row and many short ones fill the device alike; quads where rows are
// packed. Block 0 looks through all ids first. A stranger gives zeros everywhere, and a fault once. Limited by
// memory.
#include "../shared/ids.cuh"
#include "../shared/q8_0.cuh"

struct GetRowsParams {
    Tensor a, ids, y;
    i64 elements;
    i64 id_count;
    i64 table_rows;
    Fault* fault;
    int quads;
    int unused;
};

// Element 0 of the row that y's row takes; null for zeros.
__device__ __forceinline__ const char* picked(const GetRowsParams& p, const Row& row) {
    i64 id = id_at(p.ids, row.i1, row.i2, row.i3);
    if (id < 0 || id >= p.table_rows) return nullptr;
    return p.a.data + id * p.a.nb[1] + row.i2 * p.a.nb[2] + row.i3 * p.a.nb[3];
}

extern "C" __global__ void __launch_bounds__(ELEMENTWISE_THREADS) get_rows(GetRowsParams p) {
    __shared__ i64 first_of_warp[WARP];
    if (blockIdx.x == 0) ids_are_rows(p.ids, p.id_count, p.table_rows, p.fault, first_of_warp);
    auto block_of = [&](const char* from, i64 i0) { return from + i0 / Q8_0_BLOCK * p.a.nb[0]; };
    auto four = [&](const Spot& spot) {
        const char* from = picked(p, spot.row);
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (from != nullptr) {
            if (p.a.dtype == Q8_0) v = q8_0_quad(block_of(from, spot.i0), (int)(spot.i0 % Q8_0_BLOCK));
            else v = load_quad_or_one(p.a, from + spot.i0 * p.a.nb[0]);
        }
        store_quad(spot_in(p.y, spot), F32, v);
    };
    auto one = [&](const Spot& spot) {
        const char* from = picked(p, spot.row);
        char* to = spot_in(p.y, spot);
        if (p.a.dtype == I64) {
            *(i64*)to = from == nullptr ? 0 : *(const i64*)(from + spot.i0 * p.a.nb[0]);
        } else if (p.a.dtype == I32) {
            *(int*)to = from == nullptr ? 0 : *(const int*)(from + spot.i0 * p.a.nb[0]);
        } else {
            float value = 0.0f;
            if (from != nullptr) {
                if (p.a.dtype == Q8_0) value = q8_0_value(block_of(from, spot.i0), (int)(spot.i0 % Q8_0_BLOCK));
                else value = load_float(from + spot.i0 * p.a.nb[0], p.a.dtype);
            }
            *(float*)to = value;
        }
    };
    each_element(p.elements, p.y.ne, p.quads, four, one);
}
