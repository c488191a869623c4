// y[i] = f(x[i]).
//
// 1024 elements a block. Packed rows move in quads of 16 bytes (8 for the 16-bit types), one per thread; other
// layouts element by element, a warp on neighbours. Axes that follow each other were merged before, so that a
// packed tensor is one row and needs no division. Limited by memory: 8 bytes an element.
#include "../shared/math.cuh"
#include "../shared/quad.cuh"

struct UnaryParams {
    Tensor x, y;
    i64 elements;
    int function;
    int quads;
};

__device__ __forceinline__ float apply(int function, float x) {
    switch (function) {
        case 0: return silu(x);
        case 1: return sigmoid(x);
        case 2: return softplus(x);
        case 3: return expf(x);
        case 4: return -x;
        case 5: return relu(x);
        case 6: return tanhf(x);
        default: return gelu(x);
    }
}

extern "C" __global__ void __launch_bounds__(ELEMENTWISE_THREADS) unary(UnaryParams p) {
    auto four = [&](const Spot& spot) {
        float4 v = load_quad_or_one(p.x, spot_in(p.x, spot));
        v.x = apply(p.function, v.x);
        v.y = apply(p.function, v.y);
        v.z = apply(p.function, v.z);
        v.w = apply(p.function, v.w);
        store_quad(spot_in(p.y, spot), p.y.dtype, v);
    };
    auto one = [&](const Spot& spot) {
        float value = load_float(spot_in(p.x, spot), p.x.dtype);
        store_float(spot_in(p.y, spot), p.y.dtype, apply(p.function, value));
    };
    each_element(p.elements, p.y.ne, p.quads, four, one);
}
