// CUDA's vector types, aligned as on a device.
#pragma once

#define EMU_VECTOR(T, NAME, ALIGNMENT_OF_4)                                             \
    struct __align__(sizeof(T)) NAME##1 {                                               \
        T x;                                                                            \
    };                                                                                  \
    struct __align__(2 * sizeof(T)) NAME##2 {                                           \
        T x, y;                                                                         \
    };                                                                                  \
    struct NAME##3 {                                                                    \
        T x, y, z;                                                                      \
    };                                                                                  \
    struct __align__(ALIGNMENT_OF_4) NAME##4 {                                          \
        T x, y, z, w;                                                                   \
    };                                                                                  \
    inline NAME##1 make_##NAME##1(T x) { return {x}; }                                  \
    inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                          \
    inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }                  \
    inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }

EMU_VECTOR(signed char, char, 4)
EMU_VECTOR(unsigned char, uchar, 4)
EMU_VECTOR(short, short, 8)
EMU_VECTOR(unsigned short, ushort, 8)
EMU_VECTOR(int, int, 16)
EMU_VECTOR(unsigned, uint, 16)
EMU_VECTOR(float, float, 16)
EMU_VECTOR(long long, longlong, 16)
EMU_VECTOR(unsigned long long, ulonglong, 16)
EMU_VECTOR(double, double, 16)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
