// y[i] = x[i] * scale + bias, rounded once.
//
// The walk of `unary`: 1024 elements a block, quads where rows are packed. Limited by memory: 8 bytes an element.
#include "../shared/quad.cuh"

struct ScaleParams {
    Tensor x, y;
    i64 elements;
    float scale, bias;
    int quads;
};

extern "C" __global__ void __launch_bounds__(ELEMENTWISE_THREADS) scale(ScaleParams p) {
    auto four = [&](const Spot& spot) {
        float4 v = load_quad_or_one(p.x, spot_in(p.x, spot));
        v.x = fmaf(v.x, p.scale, p.bias);
        v.y = fmaf(v.y, p.scale, p.bias);
        v.z = fmaf(v.z, p.scale, p.bias);
        v.w = fmaf(v.w, p.scale, p.bias);
        store_quad(spot_in(p.y, spot), p.y.dtype, v);
    };
    auto one = [&](const Spot& spot) {
        float value = load_float(spot_in(p.x, spot), p.x.dtype);
        store_float(spot_in(p.y, spot), p.y.dtype, fmaf(value, p.scale, p.bias));
    };
    each_element(p.elements, p.y.ne, p.quads, four, one);
}
