// y[i] = a[i] op b[i mod shape of b].
//
// The walk of `unary`: 1024 elements a block, quads where rows are packed. An axis of b with one element has
// stride 0 and costs nothing; only other repetitions take remainders. Limited by memory: 8 to 12 bytes an element.
#include "../shared/quad.cuh"

struct BinaryParams {
    Tensor a, b, y;
    i64 elements;
    int function;
    int quads;
    int repeats;
};

__device__ __forceinline__ float combine(int function, float a, float b) {
    switch (function) {
        case 0: return a + b;
        case 1: return a - b;
        case 2: return a * b;
        default: return a / b;
    }
}

extern "C" __global__ void __launch_bounds__(ELEMENTWISE_THREADS) binary(BinaryParams p) {
    auto four = [&](const Spot& spot) {
        float4 a = load_quad_or_one(p.a, spot_in(p.a, spot));
        float4 b = load_quad_or_one(p.b, spot_in(p.b, spot));
        a.x = combine(p.function, a.x, b.x);
        a.y = combine(p.function, a.y, b.y);
        a.z = combine(p.function, a.z, b.z);
        a.w = combine(p.function, a.w, b.w);
        store_quad(spot_in(p.y, spot), p.y.dtype, a);
    };
    auto one = [&](const Spot& spot) {
        Spot from = p.repeats ? repeated(spot, p.b.ne) : spot;
        float a = load_float(spot_in(p.a, spot), p.a.dtype);
        float b = load_float(spot_in(p.b, from), p.b.dtype);
        store_float(spot_in(p.y, spot), p.y.dtype, combine(p.function, a, b));
    };
    each_element(p.elements, p.y.ne, p.quads, four, one);
}
