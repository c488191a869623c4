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
#include "../shared/row_quads.cuh"
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

__device__ __forceinline__ void scan_tile(const CumsumParams& p, const char* from, i64 first, Tile& tile) {
    int lane = threadIdx.x % WARP;
    with_row(p.x_form, p.x, from, [&](auto row) {
        if (first + WARP_TILE <= p.x.ne[0]) {
            // No branch between the loads, so that they overlap.
#pragma unroll
            for (int k = 0; k < QUADS; k++) tile.quads[k] = row.four(first + 4 * (k * WARP + lane));
            return;
        }
#pragma unroll
        for (int k = 0; k < QUADS; k++)
            tile.quads[k] = load_quad(row, first + 4 * (k * WARP + lane), p.x.ne[0], 0.0f);
    });
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
    u32 number = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (number >= p.rows) return;
    Row row = row_in_grid(number, p.x.ne);
    const char* from = row_start(p.x, row);
    char* to = row_start(p.y, row);
    double carry = 0.0;
    for (i64 first = 0; first < p.x.ne[0]; first += WARP_TILE) {
        Tile tile;
        scan_tile(p, from, first, tile);
        store_tile(p, to, first, tile, carry);
        carry += tile.sum;
    }
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
    Row row = row_in_grid(blockIdx.x, p.x.ne);
    const char* from = row_start(p.x, row);
    char* to = row_start(p.y, row);
    i64 offset = threadIdx.x / WARP * WARP_TILE;
    double carry = 0.0, all;
    for (i64 piece = 0; piece < p.x.ne[0]; piece += PIECE) {
        Tile tile;
        scan_tile(p, from, piece + offset, tile);
        double before = before_warp(tile.sum, sums, &all);
        store_tile(p, to, piece + offset, tile, carry + before);
        carry += all;
    }
}

// Where a block's piece is when there is a block for every piece, and where this warp's share of it begins.
struct Piece {
    Row row;
    i64 first;
};

__device__ __forceinline__ Piece piece_of_block(const CumsumParams& p) {
    u32 number = blockIdx.x / (u32)p.pieces;
    i64 piece = blockIdx.x - number * p.pieces;
    return {row_in_grid(number, p.x.ne), piece * PIECE + threadIdx.x / WARP * WARP_TILE};
}

// A block for every piece: its sum.
extern "C" __global__ void __launch_bounds__(256) cumsum_pieces(CumsumParams p) {
    __shared__ double sums[WARPS];
    Piece piece = piece_of_block(p);
    Tile tile;
    scan_tile(p, row_start(p.x, piece.row), piece.first, tile);
    double all;
    before_warp(tile.sum, sums, &all);
    if (threadIdx.x == 0) p.carries[blockIdx.x] = all;
}

// A thread for every row: the sums before its pieces.
extern "C" __global__ void __launch_bounds__(32) cumsum_carries(CumsumParams p) {
    u32 row = blockIdx.x * blockDim.x + threadIdx.x;
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
    Piece piece = piece_of_block(p);
    Tile tile;
    scan_tile(p, row_start(p.x, piece.row), piece.first, tile);
    double all;
    double before = before_warp(tile.sum, sums, &all);
    store_tile(p, row_start(p.y, piece.row), piece.first, tile, p.carries[blockIdx.x] + before);
}
