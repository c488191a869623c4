// Scalar functions of one meaning everywhere: those of ops/src/math.rs in f32, with the same values at the ends.
// expf, log1pf and tanhf are the accurate ones (1 to 2 ulp); nothing here needs a fast form, because the kernels
// that call it wait for memory.
#pragma once

__device__ __forceinline__ float negative_infinity() { return __uint_as_float(0xff800000u); }

// 1 / (1 + e^-x), through e^-|x|: nothing overflows, and the left tail keeps its relative accuracy.
__device__ __forceinline__ float sigmoid(float x) {
    float e = expf(-fabsf(x));
    return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

// x * sigmoid(x); 0 at -inf, where the product would be NaN.
__device__ __forceinline__ float silu(float x) { return x == negative_infinity() ? 0.0f : x * sigmoid(x); }

// max(x, 0) + log1p(e^-|x|). fmaxf drops a NaN, the second term brings it back.
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// max(x, 0); NaN stays NaN.
__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

// x/2 * (1 + tanh(t)), t = sqrt(2/pi) (x + 0.044715 x^3); 0 at -inf. (1 + tanh t)/2 = sigmoid(2t) keeps the tail.
__device__ __forceinline__ float gelu(float x) {
    float twice_t = 1.5957691216057308f * (x + 0.044715f * x * x * x);
    return x == negative_infinity() ? 0.0f : x * sigmoid(twice_t);
}
