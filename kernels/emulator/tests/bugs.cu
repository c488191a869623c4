// Deliberately wrong kernels: the checker must report each.
//
// `o` has 64 floats. Kernels that index past something take how far as `k`.

// Half of the warp never reaches the barrier but waits elsewhere.
extern "C" __global__ void bug_divergent_barrier(float* o) {
    if (threadIdx.x < 16) __syncthreads();
    else __syncwarp(0xffffffffu);
    o[threadIdx.x] = 1.f;
}

// Some threads return before the barrier.
extern "C" __global__ void bug_early_exit(float* o) {
    if (threadIdx.x >= 40) return;
    __syncthreads();
    o[threadIdx.x] = 1.f;
}

// Threads of one block meet at different barriers.
extern "C" __global__ void bug_two_barriers(float* o) {
    if (threadIdx.x & 1) {
        o[threadIdx.x] = 1.f;
        __syncthreads();
    } else {
        o[threadIdx.x] = 2.f;
        __syncthreads();
    }
}

// Lanes that the mask names do not take part.
extern "C" __global__ void bug_shuffle_mask(float* o) {
    float value = threadIdx.x;
    if (threadIdx.x < 8) value = __shfl_xor_sync(0xffffffffu, value, 1);
    o[threadIdx.x] = value;
}

// No barrier between write and read.
extern "C" __global__ void bug_race(float* o) {
    __shared__ float s[64];
    s[threadIdx.x] = threadIdx.x;
    o[threadIdx.x] = s[63 - threadIdx.x];
}

// Written while others still read.
extern "C" __global__ void bug_race_dynamic(float* o) {
    extern __shared__ float dynamic_shared[];
    dynamic_shared[threadIdx.x] = threadIdx.x;
    __syncthreads();
    float value = dynamic_shared[(threadIdx.x + 1) % blockDim.x];
    dynamic_shared[threadIdx.x] = value;
    __syncthreads();
    o[threadIdx.x] = dynamic_shared[threadIdx.x];
}

// Past the end of global memory.
extern "C" __global__ void bug_bounds_global(float* o, int k) { o[k + threadIdx.x] = 1.f; }

// Past the end of a shared array.
extern "C" __global__ void bug_bounds_shared(float* o, int k) {
    __shared__ float s[64];
    s[threadIdx.x + k] = 1.f;
    __syncthreads();
    o[threadIdx.x] = s[threadIdx.x];
}

// Past the end of dynamic shared memory.
extern "C" __global__ void bug_bounds_dynamic(float* o, int k) {
    extern __shared__ float dynamic_shared[];
    dynamic_shared[threadIdx.x + k] = 1.f;
    __syncthreads();
    o[threadIdx.x] = dynamic_shared[threadIdx.x];
}

// Shared memory that nobody wrote.
extern "C" __global__ void bug_uninitialised(float* o) {
    __shared__ float s[64];
    if (threadIdx.x == 0) s[0] = 1.f;
    __syncthreads();
    o[threadIdx.x] = s[threadIdx.x];
}

// A vector load from an address that is no multiple of its size.
extern "C" __global__ void bug_misaligned(float* o) {
    o[threadIdx.x] = reinterpret_cast<const float4*>(o + 1)[0].x;
}

// Two blocks write one place.
extern "C" __global__ void bug_race_global(float* o) { o[0] = threadIdx.x + blockIdx.x; }

// A null pointer.
extern "C" __global__ void bug_null(float* o) {
    o = nullptr;
    o[threadIdx.x] = 1.f;
}

// An index that does not fit its type.
extern "C" __global__ void bug_overflow(float* o, int k) { o[threadIdx.x] = k * 2147483; }
