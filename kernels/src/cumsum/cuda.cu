// y[row][i] = x[row][0] + … + x[row][i].
//
// Sums in f64, rounded one by one, as on the CPU. A warp scans a row of up to 2048 elements, 512 at a time; longer
// rows are cut into pieces of 4096, each scanned by a block of 256 in registers. With many rows a block takes all the
// pieces of a row, one after another (8 bytes an element). With few rows there are three launches: the pieces' sums,
// a running sum over them, and the pieces themselves, each from the sum before it (12 bytes an element, of which the
// second read often meets L2). Both forms add the same numbers in the same order: a row has the same bits in any
// company.
//
// Decoupled look-back would save the second read. Its usual form adds the aggregates it finds ready, which makes the
// bits depend on timing; one that always waits for the whole sum before it is a chain of some 0.5 us per piece.
#include "../shared/quads.cuh"
#include "../shared/reduce.cuh"

struct CumsumParams {
    Tensor x, y;
    double* carries;    // by row and piece; first the pieces' sums, then the sums before them
    i64 rows;
    i64 pieces;
    int x_form, y_form;
};

constexpr int QUADS = 4;            // quads that a thread holds
constexpr int WARP_TILE = QUADS * 4 * WARP;
constexpr int WARPS = 8;
constexpr int PIECE = WARPS * WARP_TILE;

// A warp's share of a row: WARP_TILE elements from `first` on, and for each quad of this lane the sum of the
// elements of the tile before it.
struct Tile {
    float4 quads[QUADS];
    double before[QUADS];
    double sum;
};

__device__ __forceinline__ double sum_of(float4 v) { return (((double)v.x + (double)v.y) + (double)v.z) + (double)v.w; }

template <class From>
__device__ __forceinline__ void scan_tile(const From& from, i64 first, i64 end, Tile& tile) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < QUADS; k++) tile.quads[k] = load_quad(from, first + 4 * (k * WARP + lane), end, 0.0f);
    tile.sum = 0.0;
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        double upto = warp_prefix(sum_of(tile.quads[k]));
        // Shifted rather than subtracted: what lies behind must not spoil a sum.
        double before = __shfl_up_sync(ALL_LANES, upto, 1);
        tile.before[k] = tile.sum + (lane == 0 ? 0.0 : before);
        tile.sum += __shfl_sync(ALL_LANES, upto, WARP - 1);
    }
}

__device__ __forceinline__ void store_tile(const CumsumParams& p, char* to, i64 first, const Tile& tile, double carry) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        float4 v = tile.quads[k];
        double sum = carry + tile.before[k];
        sum += v.x, v.x = (float)sum;
        sum += v.y, v.y = (float)sum;
        sum += v.z, v.z = (float)sum;
        sum += v.w, v.w = (float)sum;
        store_quad(to, p.y.dtype, p.y_form, first + 4 * (k * WARP + lane), p.x.ne[0], v);
    }
}

extern "C" __global__ void __launch_bounds__(128) cumsum_warps(CumsumParams p) {
    i64 number = (i64)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (number >= p.rows) return;
    Row row = row_at(number, p.x.ne);
    char* to = row_start(p.y, row);
    with_row(p.x_form, p.x, row_start(p.x, row), [&](auto from) {
        double carry = 0.0;
        for (i64 first = 0; first < p.x.ne[0]; first += WARP_TILE) {
            Tile tile;
            scan_tile(from, first, p.x.ne[0], tile);
            store_tile(p, to, first, tile, carry);
            carry += tile.sum;
        }
    });
}

// The sums of the warps before this one, and of all.
__device__ __forceinline__ double before_warp(double tile_sum, double* sums, double* all) {
    int warp = threadIdx.x / WARP;
    if (threadIdx.x % WARP == 0) sums[warp] = tile_sum;
    __syncthreads();
    double before = 0.0, sum = 0.0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        if (w == warp) before = sum;
        sum += sums[w];
    }
    __syncthreads();
    *all = sum;
    return before;
}

// A block for every row.
extern "C" __global__ void __launch_bounds__(256) cumsum_rows(CumsumParams p) {
    __shared__ double sums[WARPS];
    Row row = row_at(blockIdx.x, p.x.ne);
    char* to = row_start(p.y, row);
    i64 offset = threadIdx.x / WARP * WARP_TILE;
    with_row(p.x_form, p.x, row_start(p.x, row), [&](auto from) {
        double carry = 0.0, all;
        for (i64 first = offset; first < p.x.ne[0] + offset; first += PIECE) {
            Tile tile;
            scan_tile(from, first, p.x.ne[0], tile);
            double before = before_warp(tile.sum, sums, &all);
            store_tile(p, to, first, tile, carry + before);
            carry += all;
        }
    });
}

// A block for every piece: its sum.
extern "C" __global__ void __launch_bounds__(256) cumsum_pieces(CumsumParams p) {
    __shared__ double sums[WARPS];
    i64 piece;
    Row row = row_at(divide(blockIdx.x, p.pieces, &piece), p.x.ne);
    i64 first = piece * PIECE + threadIdx.x / WARP * WARP_TILE;
    with_row(p.x_form, p.x, row_start(p.x, row), [&](auto from) {
        Tile tile;
        scan_tile(from, first, p.x.ne[0], tile);
        double all;
        before_warp(tile.sum, sums, &all);
        if (threadIdx.x == 0) p.carries[blockIdx.x] = all;
    });
}

// A thread for every row: the sums before its pieces.
extern "C" __global__ void __launch_bounds__(32) cumsum_carries(CumsumParams p) {
    i64 row = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= p.rows) return;
    double* carries = p.carries + row * p.pieces;
    double carry = 0.0;
#pragma unroll 8
    for (i64 piece = 0; piece < p.pieces; piece++) {
        double sum = carries[piece];
        carries[piece] = carry;
        carry += sum;
    }
}

// A block for every piece: its running sums.
extern "C" __global__ void __launch_bounds__(256) cumsum_finish(CumsumParams p) {
    __shared__ double sums[WARPS];
    i64 piece;
    Row row = row_at(divide(blockIdx.x, p.pieces, &piece), p.x.ne);
    char* to = row_start(p.y, row);
    i64 first = piece * PIECE + threadIdx.x / WARP * WARP_TILE;
    with_row(p.x_form, p.x, row_start(p.x, row), [&](auto from) {
        Tile tile;
        scan_tile(from, first, p.x.ne[0], tile);
        double all;
        double before = before_warp(tile.sum, sums, &all);
        store_tile(p, to, first, tile, p.carries[blockIdx.x] + before);
    });
}
