// CUDA's arithmetic: single functions of a device. Results are the host's, which differ in the last places.
#pragma once

// ---- Fast functions. Macros, because glibc declares __expf and others itself.
#define __expf(x) exp2f((x) * 1.4426950408889634f)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
inline float __fdividef(float a, float b) { return a / b; }
inline float fdividef(float a, float b) { return a / b; }
inline float __saturatef(float x) { return x > 0.f ? (x < 1.f ? x : 1.f) : 0.f; }

inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752f); }
inline double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752); }
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
inline double rsqrt(double x) { return 1. / sqrt(x); }

// ---- Rounding to nearest, which is what the host does anyhow.
inline float __frcp_rn(float x) { return 1.f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return 1.f / sqrtf(x); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline int __float2int_rn(float x) { return (int)rintf(x); }

// ---- Bits.
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int i = 0; i < 32; i++) reversed |= (x >> i & 1u) << (31 - i);
    return reversed;
}
inline int __float_as_int(float x) { return (int)emu::to_bits(x); }
inline unsigned __float_as_uint(float x) { return (unsigned)emu::to_bits(x); }
inline float __int_as_float(int x) { return emu::from_bits<float>((uint32_t)x); }
inline float __uint_as_float(unsigned x) { return emu::from_bits<float>(x); }
inline long long __double_as_longlong(double x) { return (long long)emu::to_bits(x); }
inline double __longlong_as_double(long long x) { return emu::from_bits<double>((uint64_t)x); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    uint64_t bytes = (uint64_t)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned select = selector >> 4 * i;
        uint8_t byte = (uint8_t)(bytes >> 8 * (select & 7));
        if (select & 8) byte = byte & 0x80 ? 0xff : 0;
        result |= (unsigned)byte << 8 * i;
    }
    return result;
}

// ---- Integers.
inline int __mul24(int a, int b) { return a * b; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
    return c;
}

#define EMU_BYTEWISE(NAME, BYTE)                                           \
    inline unsigned NAME(unsigned x, unsigned y) {                         \
        unsigned result = 0;                                               \
        for (int i = 0; i < 4; i++) {                                      \
            int a = (int8_t)(x >> 8 * i);                                  \
            int b = (int8_t)(y >> 8 * i);                                  \
            result |= (unsigned)(uint8_t)(BYTE) << 8 * i;                  \
        }                                                                  \
        return result;                                                     \
    }
EMU_BYTEWISE(__vadd4, a + b)
EMU_BYTEWISE(__vsub4, a - b)
EMU_BYTEWISE(__vcmpeq4, a == b ? 0xff : 0)
EMU_BYTEWISE(__vcmpne4, a != b ? 0xff : 0)
EMU_BYTEWISE(__vaddss4, a + b > 127 ? 127 : a + b < -128 ? -128 : a + b)
EMU_BYTEWISE(__vsubss4, a - b > 127 ? 127 : a - b < -128 ? -128 : a - b)
EMU_BYTEWISE(__vmaxs4, a > b ? a : b)

template <class A, class B>
constexpr auto min(A a, B b) {
    using C = std::common_type_t<A, B>;
    return (C)a < (C)b ? (C)a : (C)b;
}
template <class A, class B>
constexpr auto max(A a, B b) {
    using C = std::common_type_t<A, B>;
    return (C)a > (C)b ? (C)a : (C)b;
}

// ---- 16-bit floats, for kernels whose conversions are PTX.
inline float emu_half_to_float(unsigned short bits) {
    _Float16 value;
    memcpy(&value, &bits, 2);
    return (float)value;
}
inline unsigned short emu_float_to_half(float value) {
    _Float16 rounded = (_Float16)value;
    unsigned short bits;
    memcpy(&bits, &rounded, 2);
    return bits;
}

// ---- Loads and stores with cache hints, and the clock.
template <class T>
T __ldg(const T* place) {
    return *place;
}
template <class T>
T __ldcs(const T* place) {
    return *place;
}
template <class T>
void __stcs(T* place, T value) {
    *place = value;
}
inline long long clock64() { return (long long)__builtin_ia32_rdtsc(); }
