// y[i] = x[i mod shape of x], axis by axis.
//
// Axes of one element repeat by a stride of 0; only other repetitions take remainders. Units of up to 16 bytes where
// rows are packed. Limited by memory: the bytes of y.
#include "../shared/move.cuh"

struct RepeatParams {
    Move move;
};

extern "C" __global__ void __launch_bounds__(MOVE_THREADS) repeat(RepeatParams p) {
    move_units(p.move, blockIdx.x, gridDim.x);
}
