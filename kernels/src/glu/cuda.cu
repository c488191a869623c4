// y[i] = f(a[i]) * b[i].
//
// Both halves of a joined row arrive as two tensors into the same memory, so that there is one kernel. The walk of
// `unary`: 1024 elements a block, quads where rows are packed. Limited by memory: 12 bytes an element.
#include "../shared/math.cuh"
#include "../shared/quad.cuh"

struct GluParams {
    Tensor a, b, y;
    i64 elements;
    int function;
    int quads;
};

__device__ __forceinline__ float gated(int function, float a, float b) {
    switch (function) {
        case 0: return relu(a) * b;
        case 1: return gelu(a) * b;
        default: return silu(a) * b;
    }
}

extern "C" __global__ void __launch_bounds__(ELEMENTWISE_THREADS) glu(GluParams p) {
    auto four = [&](const Spot& spot) {
        float4 a = load_quad_or_one(p.a, spot_in(p.a, spot));
        float4 b = load_quad_or_one(p.b, spot_in(p.b, spot));
        a.x = gated(p.function, a.x, b.x);
        a.y = gated(p.function, a.y, b.y);
        a.z = gated(p.function, a.z, b.z);
        a.w = gated(p.function, a.w, b.w);
        store_quad(spot_in(p.y, spot), p.y.dtype, a);
    };
    auto one = [&](const Spot& spot) {
        float a = load_float(spot_in(p.a, spot), p.a.dtype);
        float b = load_float(spot_in(p.b, spot), p.b.dtype);
        store_float(spot_in(p.y, spot), p.y.dtype, gated(p.function, a, b));
    };
    each_element(p.elements, p.y.ne, p.quads, four, one);
}
