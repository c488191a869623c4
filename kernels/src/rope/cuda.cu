// Pairs of the first n_rot elements of a row turn by position * freq_scale * freq_base^(-2i / n_rot).
//
// A thread turns a pair, or copies an element behind them. Angles are formed in f64: at a position of 100 000 an f32
// angle is off by 0.004. base^x is 2^(x log2 base), with the logarithm taken on the host; the angle is brought to
// [-pi/4, pi/4] by a quarter turn in two parts, and there short f32 polynomials are enough. The library's pow, sin and
// cos would do as well, but reduce through a table in local memory.
//
// Limits: some 60 operations in f64 for a pair, once for each head: bound by memory on devices that have half as many
// f64 units as f32 ones, by those units elsewhere. A thread for each pair of a token that goes through the heads would
// save most of them, and leave a step of one token to 32 threads.
#include "../shared/common.cuh"

struct RopeParams {
    Tensor x, positions, y;
    i64 rows;
    i64 units;           // of a row: pairs, then single elements
    double log2_base;
    double freq_scale;
    i64 n_rot;
    i64 sections[4];
    int mode;
    int unused;
};

constexpr int THREADS = 256;
enum Mode { NEOX = 0, NORMAL = 1, SECTIONS = 2, INTERLEAVED = 3, ONE_POSITION = 4 };

// 2^x for -1000 < x < 1000, within 2 ulp; the logarithm of an f32 lies inside.
__device__ __forceinline__ double exp2_double(double x) {
    double whole = rint(x);
    double r = (x - whole) * 0.693147180559945309417232;
    // Taylor's polynomial of e^r for |r| <= ln2 / 2.
    double p = 1.0 / 6227020800.0;
    p = fma(p, r, 1.0 / 479001600.0);
    p = fma(p, r, 1.0 / 39916800.0);
    p = fma(p, r, 1.0 / 3628800.0);
    p = fma(p, r, 1.0 / 362880.0);
    p = fma(p, r, 1.0 / 40320.0);
    p = fma(p, r, 1.0 / 5040.0);
    p = fma(p, r, 1.0 / 720.0);
    p = fma(p, r, 1.0 / 120.0);
    p = fma(p, r, 1.0 / 24.0);
    p = fma(p, r, 1.0 / 6.0);
    p = fma(p, r, 0.5);
    p = fma(p, r, 1.0);
    p = fma(p, r, 1.0);
    return p * __longlong_as_double(((i64)whole + 1023) << 52);
}

// Sine and cosine of an angle, within 2 ulp of f32 where |angle| < 2^31.
__device__ __forceinline__ void sine_and_cosine(double angle, float* sine, float* cosine) {
    double quarters = rint(angle * 0.636619772367581343);
    double r = fma(-quarters, 1.57079632679489656, angle);
    r = fma(-quarters, 6.12323399573676604e-17, r);
    float x = (float)r, s = x * x;
    // Coefficients of Cephes' sinf and cosf.
    float sin_x = fmaf(x * s, fmaf(s, fmaf(s, -1.9515295891e-4f, 8.3321608736e-3f), -1.6666654611e-1f), x);
    float cos_tail = fmaf(s, fmaf(s, 2.443315711809948e-5f, -1.388731625493765e-3f), 4.166664568298827e-2f);
    float cos_x = fmaf(s * s, cos_tail, fmaf(-0.5f, s, 1.0f));
    int quarter = (int)((i64)quarters & 3);
    float first = quarter & 1 ? cos_x : sin_x, second = quarter & 1 ? sin_x : cos_x;
    *sine = quarter & 2 ? -first : first;
    *cosine = quarter == 1 || quarter == 2 ? -second : second;
}

// The section whose position turns the pair.
__device__ __forceinline__ int section_of(const RopeParams& p, i64 pair) {
    i64 s0 = p.sections[0], s1 = p.sections[1], s2 = p.sections[2];
    i64 place, turn;
    divide(pair, s0 + s1 + s2 + p.sections[3], &place);
    if (p.mode == SECTIONS) return place < s0 ? 0 : place < s0 + s1 ? 1 : place < s0 + s1 + s2 ? 2 : 3;
    divide(place, 3, &turn);
    return place < 3 * (turn == 0 ? s0 : turn == 1 ? s1 : s2) ? (int)turn : 3;
}

__device__ __forceinline__ int position_of(const RopeParams& p, i64 pair, i64 t, i64 b) {
    const char* at = p.positions.data + t * p.positions.nb[0];
    if (p.mode == NEOX || p.mode == NORMAL) return *(const int*)(at + b * p.positions.nb[1]);
    at += b * p.positions.nb[2];
    if (p.mode != ONE_POSITION) at += section_of(p, pair) * p.positions.nb[1];
    return *(const int*)at;
}

extern "C" __global__ void __launch_bounds__(THREADS) rope(RopeParams p) {
    i64 unit;
    i64 number = divide((i64)blockIdx.x * THREADS + threadIdx.x, p.units, &unit);
    if (number >= p.rows) return;
    Row row = row_at(number, p.x.ne);
    const char* from = row_start(p.x, row);
    float* to = (float*)row_start(p.y, row);
    i64 pairs = p.n_rot / 2, stride = p.x.nb[0];
    if (unit >= pairs) {
        i64 element = unit + pairs;
        to[element] = *(const float*)(from + element * stride);
        return;
    }
    i64 first = p.mode == NORMAL ? 2 * unit : unit;
    i64 second = p.mode == NORMAL ? first + 1 : unit + pairs;
    double frequency = p.freq_scale * exp2_double(-2.0 * (double)unit / (double)p.n_rot * p.log2_base);
    float sine, cosine;
    sine_and_cosine(position_of(p, unit, row.i2, row.i3) * frequency, &sine, &cosine);
    float u = *(const float*)(from + first * stride), v = *(const float*)(from + second * stride);
    to[first] = u * cosine - v * sine;
    to[second] = u * sine + v * cosine;
}
