// Lets g++ compile a CUDA C++ kernel as it stands; force-included before it.
//
// A shared variable becomes a thread-local one, for one host thread runs one block at a time. The one
// `extern __shared__` array, `dynamic_shared`, is a symbol that the linker makes the engine's block of memory.
#pragma once
// Not <cmath>: <math.h> also puts the float overloads of sin() and the like into the global namespace.
#include <math.h>

#define CUDA_EMU 1
#define __CUDA_ARCH__ 900
#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

#include "abi.h"
#include "vectors.h"
#include "threads.h"
#include "atomics.h"
#include "arithmetic.h"
