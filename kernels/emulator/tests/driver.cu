// Kernels with which the driver's tests move numbers about.
struct TestParams {
    const float* from;
    float* to;
    float value;
    int elements;
};

extern "C" __global__ void __launch_bounds__(64) test_fill(TestParams p) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < p.elements) p.to[index] = p.value;
}

extern "C" __global__ void __launch_bounds__(64) test_add(TestParams p) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < p.elements) p.to[index] = p.from[index] + p.value;
}

// Each block's elements backwards, through shared memory.
extern "C" __global__ void __launch_bounds__(64) test_reverse(TestParams p) {
    extern __shared__ unsigned char dynamic_shared[];
    float* shared = (float*)dynamic_shared;
    int start = blockIdx.x * blockDim.x;
    shared[threadIdx.x] = p.from[start + threadIdx.x];
    __syncthreads();
    p.to[start + threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(64) test_trap(TestParams p) { __trap(); }
