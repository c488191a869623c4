// y = the elements of x in index order, in another layout, shape or type.
//
// cpy_move       equal types, any layouts: units of up to 16 bytes where rows are packed on both sides
// cpy_transpose  plain types of 2 and 4 bytes whose packed axes differ: tiles of 32 x 32 through shared memory, so
//                that both sides are read and written along their packed axis; a padding column keeps the 32
//                banks apart
// cpy_convert    other pairs of plain types, element by element; between float types in quads
// cpy_expand     q8_0 to f32
// cpy_quantize   f32 to q8_0, a warp per block
// All are limited by memory.
#include "../shared/move.cuh"
#include "../shared/q8_0.cuh"

struct CpyMoveParams {
    Move move;
};

extern "C" __global__ void __launch_bounds__(MOVE_THREADS) cpy_move(CpyMoveParams p) {
    move_units(p.move, blockIdx.x, gridDim.x);
}

// Both tensors have one shape; axis 1 of x and axis 0 of y are packed.
struct CpyTransposeParams {
    Tensor x, y;
    i64 tiles[2];
    int raw_bytes;  // of an element moved as it is; 0 between two types
    int unused;
};

constexpr int TILE = 32;
constexpr int TILE_THREADS = 256;
constexpr int TILE_STEP = TILE_THREADS / TILE;

__device__ __forceinline__ u32 load_cell(const char* at, int dtype, int raw_bytes) {
    if (raw_bytes == 2) return *(const u16*)at;
    return raw_bytes == 4 ? *(const u32*)at : __float_as_uint(load_float(at, dtype));
}

__device__ __forceinline__ void store_cell(char* at, int dtype, int raw_bytes, u32 cell) {
    if (raw_bytes == 2) *(u16*)at = (u16)cell;
    else if (raw_bytes == 4) *(u32*)at = cell;
    else store_float(at, dtype, __uint_as_float(cell));
}

extern "C" __global__ void __launch_bounds__(TILE_THREADS) cpy_transpose(CpyTransposeParams p) {
    __shared__ u32 tile[TILE][TILE + 1];
    i64 tile0, tile1, i2;
    i64 outer = divide(blockIdx.x, p.tiles[0], &tile0);
    outer = divide(outer, p.tiles[1], &tile1);
    i64 i3 = divide(outer, p.y.ne[2], &i2);
    int column = threadIdx.x % TILE, row = threadIdx.x / TILE;
    i64 first0 = tile0 * TILE, first1 = tile1 * TILE;
    const char* from = p.x.data + i2 * p.x.nb[2] + i3 * p.x.nb[3];
    char* to = p.y.data + i2 * p.y.nb[2] + i3 * p.y.nb[3];
#pragma unroll
    for (int r = 0; r < TILE; r += TILE_STEP) {
        i64 i0 = first0 + row + r, i1 = first1 + column;
        if (i0 < p.y.ne[0] && i1 < p.y.ne[1]) {
            const char* at = from + i0 * p.x.nb[0] + i1 * p.x.nb[1];
            tile[row + r][column] = load_cell(at, p.x.dtype, p.raw_bytes);
        }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < TILE; r += TILE_STEP) {
        i64 i0 = first0 + column, i1 = first1 + row + r;
        if (i0 < p.y.ne[0] && i1 < p.y.ne[1]) {
            char* at = to + i0 * p.y.nb[0] + i1 * p.y.nb[1];
            store_cell(at, p.y.dtype, p.raw_bytes, tile[column][row + r]);
        }
    }
}

struct CpyConvertParams {
    Tensor x, y;
    i64 elements;
    int conversion;
    int quads;
    int reshapes;
    int unused;
};

// Towards zero; beyond the range its nearest end; NaN becomes 0.
__device__ __forceinline__ int float_to_int(float value) {
    if (!(value == value)) return 0;
    if (value >= 2147483648.0f) return 0x7fffffff;
    return value <= -2147483648.0f ? (int)0x80000000u : (int)value;
}

__device__ __forceinline__ i64 float_to_long(float value) {
    if (!(value == value)) return 0;
    if (value >= 9223372036854775808.0f) return 0x7fffffffffffffffll;
    return value <= -9223372036854775808.0f ? (i64)0x8000000000000000ull : (i64)value;
}

__device__ __forceinline__ void convert(int conversion, const Tensor& y, char* to, const Tensor& x, const char* from) {
    if (conversion == 0) {
        store_float(to, y.dtype, load_float(from, x.dtype));
    } else if (conversion == 1) {
        i64 value = load_int(from, x.dtype);
        if (y.dtype == I32) *(int*)to = (int)value;
        else *(i64*)to = value;
    } else if (conversion == 2) {
        *(float*)to = (float)load_int(from, x.dtype);
    } else {
        float value = *(const float*)from;
        if (y.dtype == I32) *(int*)to = float_to_int(value);
        else *(i64*)to = float_to_long(value);
    }
}

extern "C" __global__ void __launch_bounds__(ELEMENTWISE_THREADS) cpy_convert(CpyConvertParams p) {
    auto four = [&](i64 index) {
        Spot spot = spot_at(index, p.y.ne);
        store_quad(spot_in(p.y, spot), p.y.dtype, load_quad_or_one(p.x, spot_in(p.x, spot)));
    };
    auto one = [&](i64 index) {
        Spot to = spot_at(index, p.y.ne);
        Spot from = p.reshapes ? spot_at(index, p.x.ne) : to;
        convert(p.conversion, p.y, spot_in(p.y, to), p.x, spot_in(p.x, from));
    };
    each_index(p.elements, p.quads, four, one);
}

// x counts blocks on axis 0.
struct CpyExpandParams {
    Tensor x, y;
    i64 elements;
    int quads;
    int unused;
};

extern "C" __global__ void __launch_bounds__(ELEMENTWISE_THREADS) cpy_expand(CpyExpandParams p) {
    auto block_of = [&](i64 index) { return spot_in(p.x, spot_at(index / Q8_0_BLOCK, p.x.ne)); };
    auto four = [&](i64 index) {
        char* to = spot_in(p.y, spot_at(index, p.y.ne));
        *(float4*)to = q8_0_quad(block_of(index), (int)(index % Q8_0_BLOCK));
    };
    auto one = [&](i64 index) {
        char* to = spot_in(p.y, spot_at(index, p.y.ne));
        *(float*)to = q8_0_value(block_of(index), (int)(index % Q8_0_BLOCK));
    };
    each_index(p.elements, p.quads, four, one);
}

// y counts blocks on axis 0.
struct CpyQuantizeParams {
    Tensor x, y;
    i64 blocks;
};

extern "C" __global__ void __launch_bounds__(ELEMENTWISE_THREADS) cpy_quantize(CpyQuantizeParams p) {
    i64 block = (i64)blockIdx.x * (ELEMENTWISE_THREADS / WARP) + threadIdx.x / WARP;
    if (block >= p.blocks) return;
    i64 index = block * Q8_0_BLOCK + threadIdx.x % WARP;
    float value = *(const float*)spot_in(p.x, spot_at(index, p.x.ne));
    store_q8_0(spot_in(p.y, spot_at(block, p.y.ne)), value);
}
