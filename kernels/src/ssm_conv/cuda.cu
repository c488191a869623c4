// y[c, t, b] = act(sum over j of sx[t + j, c, b] * w[j, c] + bias[c]).
//
// Every form adds the taps oldest first and the bias last, so that a token's bits do not depend on the call.
//
// Geometry. `walk`: a thread per channel goes along TOKENS tokens with the window in registers; neighbouring
// threads are neighbouring channels, which is how y lies and how sx lies when it is a transposed view of rows of
// tokens. `tile`: where time is packed instead, a block copies 32 channels of TOKENS_TILED tokens into shared
// memory along time and reads them across channels; each row of the copy has an odd length, so that the 32 lanes
// meet 32 banks. Width 4, which models use, keeps taps and window in registers; other widths read them per tap.
//
// Limited by memory: 8 bytes a token and channel, plus the k-1 columns that neighbouring tiles share.
//
// Forms considered: walking along packed time without the copy makes each warp touch 32 lines per load; it is
// kept for calls of few tokens, where those lines hold little else.
#include "../shared/common.cuh"
#include "../shared/math.cuh"

struct SsmConvParams {
    Tensor sx, w, bias;
    float* y;
    i64 tokens, channels, token_tiles, channel_tiles;
    i64 width;
    int stride, weight_stride;  // floats from channel to channel in shared memory
    int biased, silu;
};

constexpr int WALKERS = 128;
constexpr int TOKENS = 16;
constexpr int TILE_WARPS = 8;
constexpr int TOKENS_TILED = 64;

extern __shared__ float dynamic_shared[];

// Which channels, tokens and sequence a block has.
struct Piece {
    i64 channel, token, sequence;
};

__device__ __forceinline__ Piece piece_of_block(const SsmConvParams& p) {
    Piece piece;
    i64 outer = divide(blockIdx.x, p.channel_tiles, &piece.channel);
    piece.sequence = divide(outer, p.token_tiles, &piece.token);
    return piece;
}

__device__ __forceinline__ float finish(const SsmConvParams& p, float sum, float bias) {
    if (p.biased) sum += bias;
    return p.silu ? silu(sum) : sum;
}

__device__ __forceinline__ float bias_of(const SsmConvParams& p, i64 channel) {
    return p.biased ? *(const float*)(p.bias.data + channel * p.bias.nb[0]) : 0.0f;
}

// `count` tokens of one channel, four taps; X gives an input by its column.
template <class X>
__device__ __forceinline__ void four_taps(
    const SsmConvParams& p, const float* w, float bias, i64 count, float* y, X x
) {
    float x0 = x(0), x1 = x(1), x2 = x(2);
#pragma unroll 4
    for (i64 t = 0; t < count; t++) {
        float x3 = x(t + 3);
        float sum = fmaf(x3, w[3], fmaf(x2, w[2], fmaf(x1, w[1], fmaf(x0, w[0], 0.0f))));
        y[t * p.channels] = finish(p, sum, bias);
        x0 = x1, x1 = x2, x2 = x3;
    }
}

// As above with any number of taps; W gives a tap.
template <class X, class W>
__device__ __forceinline__ void any_taps(const SsmConvParams& p, float bias, i64 count, float* y, X x, W w) {
    for (i64 t = 0; t < count; t++) {
        float sum = 0.0f;
        for (i64 j = 0; j < p.width; j++) sum = fmaf(x(t + j), w(j), sum);
        y[t * p.channels] = finish(p, sum, bias);
    }
}

template <bool FOUR>
__device__ __forceinline__ void walk(const SsmConvParams& p) {
    Piece piece = piece_of_block(p);
    i64 channel = piece.channel * WALKERS + threadIdx.x;
    i64 token = piece.token * TOKENS;
    if (channel >= p.channels) return;
    i64 count = min(p.tokens - token, (i64)TOKENS);
    i64 x_stride = p.sx.nb[0], w_stride = p.w.nb[0];
    const char* from = p.sx.data + token * x_stride + channel * p.sx.nb[1] + piece.sequence * p.sx.nb[2];
    const char* taps = p.w.data + channel * p.w.nb[1];
    float* y = p.y + (piece.sequence * p.tokens + token) * p.channels + channel;
    auto x = [=](i64 column) { return __ldg((const float*)(from + column * x_stride)); };
    auto w = [=](i64 tap) { return __ldg((const float*)(taps + tap * w_stride)); };
    float bias = bias_of(p, channel);
    if constexpr (FOUR) {
        float four[4] = {w(0), w(1), w(2), w(3)};
        four_taps(p, four, bias, count, y, x);
    } else {
        any_taps(p, bias, count, y, x, w);
    }
}

extern "C" __global__ void __launch_bounds__(128) ssm_conv_walk_4(SsmConvParams p) { walk<true>(p); }
extern "C" __global__ void __launch_bounds__(128) ssm_conv_walk(SsmConvParams p) { walk<false>(p); }

template <bool FOUR>
__device__ __forceinline__ void tile(const SsmConvParams& p) {
    Piece piece = piece_of_block(p);
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    i64 first_channel = piece.channel * WARP, first_token = piece.token * TOKENS_TILED;
    int channels = (int)min(p.channels - first_channel, (i64)WARP);
    int tokens = (int)min(p.tokens - first_token, (i64)TOKENS_TILED);
    int width = (int)p.width;
    float* inputs = dynamic_shared;
    float* taps = dynamic_shared + WARP * p.stride;
    for (int c = warp; c < channels; c += TILE_WARPS) {
        const char* from = p.sx.data + first_token * p.sx.nb[0] + (first_channel + c) * p.sx.nb[1]
            + piece.sequence * p.sx.nb[2];
        const char* weights = p.w.data + (first_channel + c) * p.w.nb[1];
        for (int i = lane; i < tokens + width - 1; i += WARP)
            inputs[c * p.stride + i] = *(const float*)(from + i * p.sx.nb[0]);
        for (int j = lane; j < width; j += WARP)
            taps[c * p.weight_stride + j] = *(const float*)(weights + j * p.w.nb[0]);
    }
    __syncthreads();
    constexpr int EACH = TOKENS_TILED / TILE_WARPS;
    int start = warp * EACH, count = min(tokens - start, EACH);
    if (lane >= channels || count <= 0) return;
    i64 channel = first_channel + lane;
    const float* row = inputs + lane * p.stride + start;
    const float* weights = taps + lane * p.weight_stride;
    float* y = p.y + (piece.sequence * p.tokens + first_token + start) * p.channels + channel;
    auto x = [=](i64 column) { return row[(int)column]; };
    auto w = [=](i64 tap) { return weights[(int)tap]; };
    float bias = bias_of(p, channel);
    if constexpr (FOUR) {
        float four[4] = {w(0), w(1), w(2), w(3)};
        four_taps(p, four, bias, count, y, x);
    } else {
        any_taps(p, bias, count, y, x, w);
    }
}

extern "C" __global__ void __launch_bounds__(256) ssm_conv_tile_4(SsmConvParams p) { tile<true>(p); }
extern "C" __global__ void __launch_bounds__(256) ssm_conv_tile(SsmConvParams p) { tile<false>(p); }
