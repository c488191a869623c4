// y[i] = f(x[i]).
//
// One thread per element; packed tensors of one type walk memory in order, others are unravelled. Limited by
// memory: 8 bytes an element.
#include "../shared/common.cuh"

struct UnaryParams {
    Tensor x, y;
    i64 elements;
    int function;
    int packed;
};

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ __forceinline__ float apply(int function, float x) {
    switch (function) {
        case 0: return x * sigmoid(x);
        case 1: return sigmoid(x);
        case 2: return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
        case 3: return expf(x);
        case 4: return -x;
        case 5: return x < 0.0f ? 0.0f : x;
        case 6: return tanhf(x);
        default: return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    }
}

extern "C" __global__ void __launch_bounds__(256) unary(UnaryParams p) {
    i64 index = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= p.elements) return;
    i64 i0 = index;
    const char* from = p.x.data;
    char* to = p.y.data;
    if (!p.packed) {
        Row row = row_at(divide(index, p.x.ne[0], &i0), p.x.ne);
        from = row_start(p.x, row);
        to = row_start(p.y, row);
    }
    float value = load_float(from + i0 * p.x.nb[0], p.x.dtype);
    store_float(to + i0 * p.y.nb[0], p.y.dtype, apply(p.function, value));
}
