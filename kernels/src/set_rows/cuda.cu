// dst[d, ids[n, i2 mod B2, i3 mod B3], i2, i3] = src[d, n, i2, i3], in place; id -1 writes nothing.
//
// set_rows_short  rows of up to 1024: a warp each
// set_rows_long   longer rows: a block for each 4096 elements, so that one row of a state fills the device
// set_rows_check  looks through the ids where there are too many for every block to do so itself
//
// All ids are known to be rows before the first byte is written: dst survives a fault. Among equal ids the last row
// writes: the threads of a row first look for its id among the later ones of its list. That is quadratic in the
// list's length, but a list of 4096 is 16 KiB, which stays in the first-level cache. Limited by memory.
#include "../shared/ids.cuh"

struct SetRowsParams {
    Tensor dst, src, ids;
    i64 rows;
    i64 pieces;
    i64 id_count;
    Fault* fault;
    int checked;
    int quads;
};

constexpr int THREADS = 256;
constexpr int LONG_SPAN = 4096;

extern "C" __global__ void __launch_bounds__(1024) set_rows_check(SetRowsParams p) {
    __shared__ i64 first_of_warp[WARP];
    ids_are_rows(p.ids, p.id_count, p.dst.ne[1], p.fault, first_of_warp);
}

__device__ __forceinline__ bool may_write(const SetRowsParams& p, i64* first_of_warp) {
    if (p.checked) return p.fault->raised == 0;
    return ids_are_rows(p.ids, p.id_count, p.dst.ne[1], p.fault, first_of_warp);
}

// Elements first + lane, first + lane + lanes, ... of a row, up to `end`.
__device__ __forceinline__ void write_row(
    const SetRowsParams& p, const Row& row, i64 id, i64 first, i64 end, int lane, int lanes) {
    const char* from = row_start(p.src, row);
    char* to = row_start(p.dst, Row{id, row.i2, row.i3});
    if (p.quads) {
        for (i64 i = first + 4 * lane; i < end; i += 4 * lanes)
            store_quad(to + i * p.dst.nb[0], p.dst.dtype, load_quad_or_one(p.src, from + i * p.src.nb[0]));
        return;
    }
    for (i64 i = first + lane; i < end; i += lanes)
        store_float(to + i * p.dst.nb[0], p.dst.dtype, *(const float*)(from + i * p.src.nb[0]));
}

// A row of src, its id, and whether one of the lanes' share of later ids is equal.
struct Claim {
    Row row;
    i64 id;
    bool lost;
};

__device__ __forceinline__ Claim claim(const SetRowsParams& p, i64 row_number, int lane, int lanes) {
    Claim c;
    c.row = row_at(row_number, p.src.ne);
    i64 list2, list3;
    divide(c.row.i2, p.ids.ne[1], &list2);
    divide(c.row.i3, p.ids.ne[2], &list3);
    c.id = id_at(p.ids, c.row.i1, list2, list3);
    c.lost = false;
    for (i64 n = c.row.i1 + 1 + lane; n < p.ids.ne[0] && !c.lost; n += lanes)
        c.lost = id_at(p.ids, n, list2, list3) == c.id;
    return c;
}

extern "C" __global__ void __launch_bounds__(THREADS) set_rows_short(SetRowsParams p) {
    __shared__ i64 first_of_warp[WARP];
    if (!may_write(p, first_of_warp)) return;
    i64 row_number = (i64)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    if (row_number >= p.rows) return;
    int lane = threadIdx.x % WARP;
    Claim c = claim(p, row_number, lane, WARP);
    if (__any_sync(ALL_LANES, c.lost) || c.id < 0) return;
    write_row(p, c.row, c.id, 0, p.src.ne[0], lane, WARP);
}

extern "C" __global__ void __launch_bounds__(THREADS) set_rows_long(SetRowsParams p) {
    __shared__ i64 first_of_warp[WARP];
    if (!may_write(p, first_of_warp)) return;
    i64 piece;
    i64 row_number = divide(blockIdx.x, p.pieces, &piece);
    Claim c = claim(p, row_number, threadIdx.x, THREADS);
    if (__syncthreads_or(c.lost) || c.id < 0) return;
    i64 first = piece * LONG_SPAN;
    i64 end = first + LONG_SPAN < p.src.ne[0] ? first + LONG_SPAN : p.src.ne[0];
    write_row(p, c.row, c.id, first, end, threadIdx.x, THREADS);
}
