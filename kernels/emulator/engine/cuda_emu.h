// cuda_emu.h - lets g++ compile a CUDA C++ kernel file for the emulator. Force-include it (-include cuda_emu.h).
// No rewriting of the kernel source: __shared__ is thread_local (one OS thread runs one block at a time), and
// `extern __shared__ T name[]` becomes an extern TLS array that build_kernels.py aliases to emu_dyn_smem.
#pragma once
#include <cassert>
#include <math.h>   // not <cmath>: the C++ <math.h> also puts the float overloads of sin() & co. into the global namespace
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>

#define CUDA_EMU 1
#if __has_include(<vector_types.h>) && __has_include(<cuda_fp16.h>) && __has_include(<nv/target>)  // NVIDIA's headers (-I): half, bfloat16
#define EMU_NV_VECTOR_TYPES 1
#include <vector_types.h>
#include <vector_functions.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#if __has_include(<cuda_fp8.h>)
#include <cuda_fp8.h>
#endif
#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __managed__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __align__
inline __half __hfma(__half a, __half b, __half c) { return __float2half(fmaf(__half2float(a), __half2float(b), __half2float(c))); }  // device-only in NVIDIA's headers
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return __halves2half2(__hfma(__low2half(a), __low2half(b), __low2half(c)), __hfma(__high2half(a), __high2half(b), __high2half(c))); }
#endif
#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __shared__ thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define EMU_SITE const char* file = __builtin_FILE(), int line = __builtin_LINE()

#define __CUDA_ARCH__ 900   // after NVIDIA's headers, which would take it as leave to use PTX
// ---- vector types
#define EMU_VEC(T, N, A)                                                                                     \
    struct __align__(sizeof(T) * 1) N##1 { T x; };                                                           \
    struct __align__(2 * sizeof(T)) N##2 { T x, y; };                                                        \
    struct N##3 { T x, y, z; };                                                                              \
    struct __align__(A) N##4 { T x, y, z, w; };                                                              \
    inline N##1 make_##N##1(T x) { return {x}; }                                                             \
    inline N##2 make_##N##2(T x, T y) { return {x, y}; }                                                     \
    inline N##3 make_##N##3(T x, T y, T z) { return {x, y, z}; }                                             \
    inline N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#ifndef EMU_NV_VECTOR_TYPES
EMU_VEC(signed char, char, 4) EMU_VEC(unsigned char, uchar, 4) EMU_VEC(short, short, 8) EMU_VEC(unsigned short, ushort, 8)
EMU_VEC(int, int, 16) EMU_VEC(unsigned, uint, 16) EMU_VEC(float, float, 16) EMU_VEC(long long, longlong, 16)
EMU_VEC(unsigned long long, ulonglong, 16) EMU_VEC(double, double, 16)
struct dim3 { unsigned x, y, z; constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {} };
#endif

// ---- ABI between the kernels' .so (this header + emu_engine.cpp) and the emulated driver
extern "C" {
struct EmuKernel { const char* name; void (*call)(void**); uint32_t nparams; const uint32_t* sizes; const EmuKernel* next; };
struct EmuLaunch {
    const EmuKernel* kernel; void** args; uint32_t grid[3], block[3], dyn_smem;
    uint32_t threads, sched;                                    // OS threads (0 = all cores), 0 = in order, else seed
    int (*lookup)(uintptr_t addr, uintptr_t* lo, uintptr_t* hi);  // device allocation that holds addr
};
const EmuKernel* emu_kernels(void);
int emu_run(const EmuLaunch*, char* err, size_t errlen);        // 0 or a CUresult
}

namespace emu {
enum Op : uint8_t { SYNCWARP = 1, SHFL_IDX, SHFL_UP, SHFL_DOWN, SHFL_XOR, BALLOT, ANY, ALL, MATCH_ANY, RED_ADD, RED_MIN, RED_MAX, RED_AND, RED_OR, RED_XOR };
struct Fiber;
struct Thread {
    uint3 tid; uint16_t lane, warp; Fiber* fiber;
    uint8_t state, op; uint32_t mask; int arg, width; uint64_t val, res; const char* file; int line;  // what it waits for
    uint32_t wep;                                                                                      // __syncwarp count
};
struct Block { uint3 bid; dim3 bdim, gdim; };
#define EMU_TLS extern __thread
EMU_TLS Thread* cur;
EMU_TLS Block* blk;
void barrier(const char* file, int line);
int barrier_red(int how, int pred, const char* file, int line);
uint64_t collective(Op op, uint32_t mask, uint64_t v, int arg, int width, const char* file, int line);
uint32_t active();
[[noreturn]] void trap(const char* what, const char* file, int line);
void add_kernel(EmuKernel*);

// kernel argument sizes and the call thunk are deduced from the kernel's own type
template <auto F> struct K;
template <class... A, void (*F)(A...)> struct K<F> {
    static constexpr uint32_t sizes[sizeof...(A) + 1] = {(uint32_t)sizeof(A)..., 0};
    template <size_t... I> __attribute__((no_sanitize("thread", "undefined"))) static void go(void** p, std::index_sequence<I...>) { F(*(std::remove_cv_t<std::remove_reference_t<A>>*)p[I]...); }
    __attribute__((no_sanitize("thread", "undefined"))) static void call(void** p) { go(p, std::index_sequence_for<A...>{}); }
    struct Reg { EmuKernel k; Reg(const char* n) : k{n, call, sizeof...(A), sizes, nullptr} { add_kernel(&k); } };
};
#define EMU_KERNEL(name, ...) static emu::K<__VA_ARGS__>::Reg emu_reg_##name(#name);

template <class T> uint64_t bits(T v) { static_assert(sizeof(T) <= 8); uint64_t u = 0; memcpy(&u, &v, sizeof v); return u; }
template <class T> T unbits(uint64_t u) { T v; memcpy(&v, &u, sizeof v); return v; }
}  // namespace emu

#define threadIdx (emu::cur->tid)
#define blockIdx (emu::blk->bid)
#define blockDim (emu::blk->bdim)
#define gridDim (emu::blk->gdim)
constexpr int warpSize = 32;

#ifdef EMU_NV_VECTOR_TYPES  // half and bfloat16 mathematics, device-only in NVIDIA's headers
#define EMU_HMATH(n, f) inline __half n(__half x) { return __float2half(f(__half2float(x))); } inline __nv_bfloat16 n(__nv_bfloat16 x) { return __float2bfloat16(f(__bfloat162float(x))); }
inline float emu_rcp(float x) { return 1.f / x; }
inline float emu_rsqrt(float x) { return 1.f / sqrtf(x); }
EMU_HMATH(hexp, expf) EMU_HMATH(hexp2, exp2f) EMU_HMATH(hlog, logf) EMU_HMATH(hlog2, log2f) EMU_HMATH(hsqrt, sqrtf) EMU_HMATH(hrsqrt, emu_rsqrt) EMU_HMATH(hrcp, emu_rcp)
EMU_HMATH(hsin, sinf) EMU_HMATH(hcos, cosf) EMU_HMATH(hceil, ceilf) EMU_HMATH(hfloor, floorf) EMU_HMATH(hrint, rintf) EMU_HMATH(htrunc, truncf) EMU_HMATH(htanh, tanhf)
#endif
// ---- synchronisation and warp intrinsics
inline void __syncthreads(EMU_SITE) { emu::barrier(file, line); }
inline int __syncthreads_or(int p, EMU_SITE) { return emu::barrier_red(0, p, file, line); }
inline int __syncthreads_and(int p, EMU_SITE) { return emu::barrier_red(1, p, file, line); }
inline int __syncthreads_count(int p, EMU_SITE) { return emu::barrier_red(2, p, file, line); }
inline void __syncwarp(unsigned m = ~0u, EMU_SITE) { emu::collective(emu::SYNCWARP, m, 0, 0, 32, file, line); }
#define EMU_SHFL(name, OP, AT)                                                                               \
    template <class T> inline T name(unsigned m, T v, AT a, int width = 32, EMU_SITE) {                      \
        return emu::unbits<T>(emu::collective(emu::OP, m, emu::bits(v), (int)a, width, file, line));         \
    }
EMU_SHFL(__shfl_sync, SHFL_IDX, int) EMU_SHFL(__shfl_up_sync, SHFL_UP, unsigned) EMU_SHFL(__shfl_down_sync, SHFL_DOWN, unsigned) EMU_SHFL(__shfl_xor_sync, SHFL_XOR, int)
inline unsigned __ballot_sync(unsigned m, int p, EMU_SITE) { return emu::collective(emu::BALLOT, m, !!p, 0, 32, file, line); }
inline int __any_sync(unsigned m, int p, EMU_SITE) { return emu::collective(emu::ANY, m, !!p, 0, 32, file, line); }
inline int __all_sync(unsigned m, int p, EMU_SITE) { return emu::collective(emu::ALL, m, !!p, 0, 32, file, line); }
template <class T> inline unsigned __match_any_sync(unsigned m, T v, EMU_SITE) { return emu::collective(emu::MATCH_ANY, m, emu::bits(v), 0, 32, file, line); }
#define EMU_RED(n, OP) template <class T> inline T __reduce_##n##_sync(unsigned m, T v, EMU_SITE) { return (T)emu::collective(emu::OP, m, (uint64_t)(int64_t)v, std::is_signed<T>::value, 32, file, line); }
EMU_RED(add, RED_ADD) EMU_RED(min, RED_MIN) EMU_RED(max, RED_MAX) EMU_RED(and, RED_AND) EMU_RED(or, RED_OR) EMU_RED(xor, RED_XOR)
inline unsigned __activemask() { return emu::active(); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
#define __trap() emu::trap("__trap()", __FILE__, __LINE__)
#undef assert
#define assert(c) ((c) ? (void)0 : emu::trap("device assert: " #c, __FILE__, __LINE__))

// ---- atomics
#define EMU_CAS(name, EXPR)                                                                                  \
    template <class T, class U> inline T name(T* p, U u) {                                                   \
        using I = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;                                    \
        I o = __atomic_load_n((I*)p, __ATOMIC_RELAXED), n;                                                   \
        do { T a = emu::unbits<T>(o), v = (T)u; n = (I)emu::bits<T>(EXPR); }                                 \
        while (!__atomic_compare_exchange_n((I*)p, &o, n, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));       \
        return emu::unbits<T>(o);                                                                            \
    }
EMU_CAS(atomicAdd, a + v) EMU_CAS(atomicSub, a - v) EMU_CAS(atomicMax, a > v ? a : v) EMU_CAS(atomicMin, a < v ? a : v)
EMU_CAS(atomicExch, v) EMU_CAS(atomicAnd, a & v) EMU_CAS(atomicOr, a | v) EMU_CAS(atomicXor, a ^ v)
EMU_CAS(atomicInc, a >= v ? T(0) : a + 1) EMU_CAS(atomicDec, (a == 0 || a > v) ? v : a - 1)
template <class T> inline T atomicCAS(T* p, T cmp, T v) { __atomic_compare_exchange_n(p, &cmp, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); return cmp; }

// ---- math (glibc declares __expf & co., hence macros)
#define __expf(x) exp2f((x) * 1.4426950408889634f)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752f); }
inline double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752); }
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
inline double rsqrt(double x) { return 1. / sqrt(x); }
inline float __frcp_rn(float x) { return 1.f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return 1.f / sqrtf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __saturatef(float x) { return x > 0.f ? (x < 1.f ? x : 1.f) : 0.f; }
inline float fdividef(float a, float b) { return a / b; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) { unsigned r = 0; for (int i = 0; i < 32; i++) r |= (x >> i & 1u) << (31 - i); return r; }
inline int __float_as_int(float f) { return (int)emu::bits(f); }
inline unsigned __float_as_uint(float f) { return (unsigned)emu::bits(f); }
inline float __int_as_float(int i) { return emu::unbits<float>((uint32_t)i); }
inline float __uint_as_float(unsigned i) { return emu::unbits<float>(i); }
inline long long __double_as_longlong(double d) { return (long long)emu::bits(d); }
inline double __longlong_as_double(long long i) { return emu::unbits<double>((uint64_t)i); }
inline int __float2int_rn(float x) { return (int)rintf(x); }
inline int __mul24(int a, int b) { return a * b; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }
inline int __dp4a(int a, int b, int c) { for (int i = 0; i < 4; i++) c += (int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i); return c; }
#define EMU_SIMD4(name, EXPR) inline unsigned name(unsigned x, unsigned y) { unsigned r = 0; for (int i = 0; i < 4; i++) { int a = (int8_t)(x >> 8 * i), b = (int8_t)(y >> 8 * i); (void)a; (void)b; r |= (unsigned)(uint8_t)(EXPR) << 8 * i; } return r; }
EMU_SIMD4(__vadd4, a + b) EMU_SIMD4(__vsub4, a - b) EMU_SIMD4(__vcmpeq4, a == b ? 0xff : 0) EMU_SIMD4(__vcmpne4, a != b ? 0xff : 0)
EMU_SIMD4(__vaddss4, a + b > 127 ? 127 : a + b < -128 ? -128 : a + b) EMU_SIMD4(__vsubss4, a - b > 127 ? 127 : a - b < -128 ? -128 : a - b) EMU_SIMD4(__vmaxs4, a > b ? a : b)
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) { uint64_t v = (uint64_t)y << 32 | x; unsigned r = 0; for (int i = 0; i < 4; i++) { unsigned k = s >> 4 * i; uint8_t b = (uint8_t)(v >> 8 * (k & 7)); r |= (unsigned)(k & 8 ? (b & 0x80 ? 0xff : 0) : b) << 8 * i; } return r; }
template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline void __stcs(T* p, T v) { *p = v; }
template <class A, class B> constexpr auto min(A a, B b) { using C = std::common_type_t<A, B>; return (C)a < (C)b ? (C)a : (C)b; }
template <class A, class B> constexpr auto max(A a, B b) { using C = std::common_type_t<A, B>; return (C)a > (C)b ? (C)a : (C)b; }
inline float emu_half_to_float(unsigned short bits) { _Float16 h; memcpy(&h, &bits, 2); return (float)h; }
inline unsigned short emu_float_to_half(float value) { _Float16 h = (_Float16)value; unsigned short bits; memcpy(&bits, &h, 2); return bits; }
inline long long clock64() { return (long long)__builtin_ia32_rdtsc(); }
