// y[i] = a[i mod shape of a] * softplus(alpha[i] + bias[i mod shape of bias]).
//
// The walk of `binary` with one operand more. Limited by memory: 8 bytes an element, since a and bias are small.
#include "../shared/math.cuh"
#include "../shared/quad.cuh"

struct DecayGateParams {
    Tensor alpha, a, bias, y;
    i64 elements;
    int quads;
    int repeats;
};

__device__ __forceinline__ float gate(float alpha, float a, float bias) { return a * softplus(alpha + bias); }

extern "C" __global__ void __launch_bounds__(ELEMENTWISE_THREADS) decay_gate(DecayGateParams p) {
    auto four = [&](const Spot& spot) {
        float4 alpha = load_quad(spot_in(p.alpha, spot), F32);
        float4 a = load_quad_or_one(p.a, spot_in(p.a, spot));
        float4 bias = load_quad_or_one(p.bias, spot_in(p.bias, spot));
        alpha.x = gate(alpha.x, a.x, bias.x);
        alpha.y = gate(alpha.y, a.y, bias.y);
        alpha.z = gate(alpha.z, a.z, bias.z);
        alpha.w = gate(alpha.w, a.w, bias.w);
        store_quad(spot_in(p.y, spot), F32, alpha);
    };
    auto one = [&](const Spot& spot) {
        Spot for_a = p.repeats ? repeated(spot, p.a.ne) : spot;
        Spot for_bias = p.repeats ? repeated(spot, p.bias.ne) : spot;
        float a = *(const float*)spot_in(p.a, for_a);
        float bias = *(const float*)spot_in(p.bias, for_bias);
        *(float*)spot_in(p.y, spot) = gate(*(const float*)spot_in(p.alpha, spot), a, bias);
    };
    each_element(p.elements, p.y.ne, p.quads, four, one);
}
