// y = parts one after another along an axis.
//
// One launch moves two parts, the usual number: the first blocks the first, the rest the second. Units of up to 16
// bytes where rows are packed. Limited by memory: twice the bytes of y.
#include "../shared/move.cuh"

struct ConcatParams {
    Move first, second;
    i64 first_blocks;
};

extern "C" __global__ void __launch_bounds__(MOVE_THREADS) concat(ConcatParams p) {
    if (blockIdx.x < p.first_blocks) move_units(p.first, blockIdx.x, p.first_blocks);
    else move_units(p.second, blockIdx.x - p.first_blocks, gridDim.x - p.first_blocks);
}
