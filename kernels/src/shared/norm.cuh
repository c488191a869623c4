// Normalising a row by the sum of its squares: what rms_norm, l2_norm and gated_norm have in common.
//
// A warp or a block holds a row in registers, `HELD` quads a thread, and reads what is longer a second time. Squares are
// added in f32 and, where that sum may have lost or overflowed some of them, once more in f64, as on the CPU.
// A thread writes only elements that it alone reads, after its last read of them: y may lie where an operand lies.
#pragma once
#include "../shared/row_quads.cuh"
#include "../shared/reduce.cuh"

constexpr int HELD_MAX = 4;

__device__ __forceinline__ void add_squares(float4& squares, float4 v) {
    squares.x = fmaf(v.x, v.x, squares.x);
    squares.y = fmaf(v.y, v.y, squares.y);
    squares.z = fmaf(v.z, v.z, squares.z);
    squares.w = fmaf(v.w, v.w, squares.w);
}

__device__ __forceinline__ double wide_squares(float4 v) {
    double x = v.x, y = v.y, z = v.z, w = v.w;
    return (x * x + y * y) + (z * z + w * w);
}

__device__ __forceinline__ float4 times(float4 a, float4 b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

__device__ __forceinline__ float4 scaled(float4 a, float b) {
    return make_float4(a.x * b, a.y * b, a.z * b, a.w * b);
}

// 1 / sqrt(m) for m >= 0 over the whole range of f64, to 2 ulp of f32: the exponent is halved apart, since f64 roots
// and quotients are subroutines that cost registers.
__device__ __forceinline__ float inverse_root(double m) {
    i64 bits = __double_as_longlong(m);
    int half_exponent = (int)((bits >> 52) - 1023) >> 1;
    if (!(m > 0.0) || bits >> 52 == 0x7ff) return rsqrtf((float)m);
    double from_1_to_4 = __longlong_as_double(bits - (i64)half_exponent * (2ll << 52));
    double power = __longlong_as_double((i64)(1023 - half_exponent) << 52);
    return (float)((double)rsqrtf((float)from_1_to_4) * power);
}

// From the sum of squares to the factor of a row; `NormScale` in Rust writes it.
struct NormScale {
    double share;           // of the sum of squares: 1 / length for a mean
    double eps;             // added to that
    double least;           // a sum below this one has the greatest factor
    float greatest_factor;
    __device__ __forceinline__ float operator()(double squares) const {
        return squares < least ? greatest_factor : inverse_root(squares * share + eps);
    }
};

// For a row of `length` elements: `rows.with(body)` calls body(load), where load(i) reads a quad of the operands from
// element i on, 0 from the row's end on (without a branch where the length is a multiple of 4, so that loads overlap);
// `rows.prepare(quad)` turns what was read into values to normalise, `.v`;
// `rows.store(i, quad, factor)` writes the normalised quad. Only reading depends on the form of rows, so that the
// rest is there once. A warp has no row longer than it holds.
template <int HELD, class Group, class Rows>
__device__ __forceinline__ void normalise(const Group& group, int length, const NormScale& scale, const Rows& rows) {
    constexpr bool LONG = !Group::ONE_WARP;
    int first = 4 * group.thread();
    int step = 4 * group.threads();
    auto read = [&](int i) {
        typename Rows::Quad quad;
        rows.with([&](auto load) { quad = load(i); });
        rows.prepare(quad);
        return quad;
    };
    float4 squares = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    typename Rows::Quad held[HELD];
    rows.with([&](auto load) {
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            int i = first + k * step;
            held[k] = {};
            if (i < length) held[k] = load(i);
        }
    });
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        rows.prepare(held[k]);
        add_squares(squares, held[k].v);
    }
    if (LONG) {
#pragma unroll 1
        for (int i = first + HELD * step; i < length; i += step) add_squares(squares, read(i).v);
    }
    float sum = group.reduce((squares.x + squares.y) + (squares.z + squares.w), 0.0f, Plus());
    double exact = sum;
    // Sums below lose squares that round to 0, sums above may have become infinite. Every thread has the same sum.
    if (!(sum >= 1e-28f && sum < 1e38f)) {
        exact = 0.0;
#pragma unroll
        for (int k = 0; k < HELD; k++) exact += wide_squares(held[k].v);
        if (LONG) {
#pragma unroll 1
            for (int i = first + HELD * step; i < length; i += step) exact += wide_squares(read(i).v);
        }
        exact = group.reduce(exact, 0.0, Plus());
    }
    float factor = scale(exact);
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int i = first + k * step;
        if (i < length) rows.store(i, held[k], factor);
    }
    if (LONG) {
#pragma unroll 1
        for (int i = first + HELD * step; i < length; i += step) rows.store(i, read(i), factor);
    }
}
