// y[c, t, b] = act(sum over j of in[t + j, c, b] * w[j, c] + bias[c]), where `in` is the window that the sequence
// starts from and then x; and the windows after the last tokens.
//
// The taps are added as in ssm_conv, oldest first and the bias last, so that a token's bits depend neither on the
// call nor on which of the two ops computes it.
//
// Geometry: a thread per channel goes along TOKENS tokens; neighbouring threads are neighbouring channels, which
// is how x and y lie. Up to WIDTH_MAX taps and their window stay in registers, and the inputs of AHEAD tokens are
// loaded before the first of them is used. Wider convolutions read inputs and taps again for each token, which the
// caches serve. The block of the last tokens writes the windows: the newest from its registers, earlier ones,
// which only drafting asks for, from the inputs again. One launch does all of this; a call with more than STATES
// windows has one more for each further STATES.
//
// Limited by memory: 8 bytes a token and channel, the k-1 inputs that neighbouring tiles share, and for one token
// 8(k-1) + 4k bytes of window and taps, whose lines neighbouring channels share. There latency counts: the ids,
// then everything else at once.
//
// Forms considered: updating the pool in place would save the launch that stores the window in the pool, but the
// plan could then no longer tell a state's readers from its writer.
#include "../shared/ids.cuh"
#include "../shared/math.cuh"

constexpr int THREADS = 128;
constexpr int TOKENS = 16;
constexpr int AHEAD = 8;
constexpr int WIDTH_MAX = 8;
constexpr int STATES = 8;

struct SsmConvStepParams {
    Tensor s, x, w, bias, ids, y;
    Tensor states[STATES];
    i64 stored;  // how many of `states` there are
    i64 back;    // how many tokens before the last the first of them is
    i64 channel_tiles, token_tiles;
    Fault* fault;
    int biased, silu;
};

// What a thread has: a channel of a sequence, and tokens.
struct Piece {
    i64 channel, token, sequence, id;
};

// False where there is nothing to do: beyond the last channel, or where an id names no row. Each block looks at all
// ids itself, so that none writes where one does not.
__device__ __forceinline__ bool piece_of_thread(const SsmConvStepParams& p, Piece* piece, i64* first_of_warp) {
    if (!ids_are_rows(p.ids, p.x.ne[2], p.s.ne[3], p.fault, first_of_warp)) return false;
    i64 channel_tile, token_tile;
    i64 outer = divide(blockIdx.x, p.channel_tiles, &channel_tile);
    piece->sequence = divide(outer, p.token_tiles, &token_tile);
    piece->channel = channel_tile * THREADS + threadIdx.x;
    piece->token = token_tile * TOKENS;
    piece->id = id_at(p.ids, piece->sequence, 0, 0);
    return piece->channel < p.x.ne[0];
}

// The inputs of one channel: the window, then x.
struct Inputs {
    const char* window;  // null: zeros
    const char* x;
    i64 window_stride, x_stride, past;

    __device__ __forceinline__ float token(i64 token) const { return __ldg((const float*)(x + token * x_stride)); }

    __device__ __forceinline__ float at(i64 place) const {
        if (place >= past) return token(place - past);
        return window ? __ldg((const float*)(window + place * window_stride)) : 0.0f;
    }
};

__device__ __forceinline__ Inputs inputs_of(const SsmConvStepParams& p, const Piece& piece) {
    Inputs in;
    in.window = piece.id < 0 ? nullptr : p.s.data + piece.channel * p.s.nb[1] + piece.id * p.s.nb[3];
    in.x = p.x.data + piece.channel * p.x.nb[0] + piece.sequence * p.x.nb[2];
    in.window_stride = p.s.nb[0];
    in.x_stride = p.x.nb[1];
    in.past = p.s.ne[0];
    return in;
}

__device__ __forceinline__ float finish(const SsmConvStepParams& p, float sum, float bias) {
    if (p.biased) sum += bias;
    return p.silu ? silu(sum) : sum;
}

__device__ __forceinline__ char* column_of(const Tensor& state, const Piece& piece) {
    return state.data + piece.channel * state.nb[1] + piece.sequence * state.nb[3];
}

// Writes the window after `tokens` tokens.
__device__ __forceinline__ void copy_window(const Tensor& state, const Piece& piece, const Inputs& in, i64 tokens) {
    char* column = column_of(state, piece);
    for (i64 j = 0; j < in.past; j++) *(float*)(column + j * state.nb[0]) = in.at(tokens + j);
}

// `count` tokens with taps and window in registers; the last tile's window is the state.
template <int WIDTH>
__device__ __forceinline__ void narrow(
    const SsmConvStepParams& p, const Piece& piece, const Inputs& in, const char* w, float bias, char* y, int count) {
    constexpr int PAST = WIDTH - 1;
    float taps[WIDTH], window[WIDTH];
#pragma unroll
    for (int j = 0; j < WIDTH; j++) taps[j] = __ldg((const float*)(w + j * p.w.nb[0]));
#pragma unroll
    for (int j = 0; j < PAST; j++) window[j] = in.at(piece.token + j);
    for (int t = 0; t < count; t += AHEAD) {
        float coming[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) coming[u] = t + u < count ? in.token(piece.token + t + u) : 0.0f;
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            if (t + u >= count) continue;
            window[PAST] = coming[u];
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < WIDTH; j++) sum = fmaf(window[j], taps[j], sum);
            *(float*)(y + (t + u) * p.y.nb[1]) = finish(p, sum, bias);
#pragma unroll
            for (int j = 0; j < PAST; j++) window[j] = window[j + 1];
        }
    }
    if (piece.token + count < p.x.ne[1]) return;
    char* column = column_of(p.states[0], piece);
#pragma unroll
    for (int j = 0; j < PAST; j++) *(float*)(column + j * p.states[0].nb[0]) = window[j];
}

__device__ __forceinline__ void wide(
    const SsmConvStepParams& p, const Piece& piece, const Inputs& in, const char* w, float bias, char* y, int count) {
    for (int t = 0; t < count; t++) {
        float sum = 0.0f;
        for (i64 j = 0; j < p.w.ne[0]; j++)
            sum = fmaf(in.at(piece.token + t + j), __ldg((const float*)(w + j * p.w.nb[0])), sum);
        *(float*)(y + t * p.y.nb[1]) = finish(p, sum, bias);
    }
    if (piece.token + count < p.x.ne[1]) return;
    copy_window(p.states[0], piece, in, p.x.ne[1]);
}

extern "C" __global__ void __launch_bounds__(128) ssm_conv_step(SsmConvStepParams p) {
    __shared__ i64 first_of_warp[WARP];
    Piece piece;
    if (!piece_of_thread(p, &piece, first_of_warp)) return;
    i64 tokens = p.x.ne[1];
    int count = (int)min(tokens - piece.token, (i64)TOKENS);
    Inputs in = inputs_of(p, piece);
    const char* w = p.w.data + piece.channel * p.w.nb[1];
    float bias = p.biased ? __ldg((const float*)(p.bias.data + piece.channel * p.bias.nb[0])) : 0.0f;
    char* y = p.y.data + piece.channel * p.y.nb[0] + piece.token * p.y.nb[1] + piece.sequence * p.y.nb[2];
    switch (p.w.ne[0]) {
        case 1: narrow<1>(p, piece, in, w, bias, y, count); break;
        case 2: narrow<2>(p, piece, in, w, bias, y, count); break;
        case 3: narrow<3>(p, piece, in, w, bias, y, count); break;
        case 4: narrow<4>(p, piece, in, w, bias, y, count); break;
        case 5: narrow<5>(p, piece, in, w, bias, y, count); break;
        case 6: narrow<6>(p, piece, in, w, bias, y, count); break;
        case 7: narrow<7>(p, piece, in, w, bias, y, count); break;
        case WIDTH_MAX: narrow<WIDTH_MAX>(p, piece, in, w, bias, y, count); break;
        default: wide(p, piece, in, w, bias, y, count);
    }
    if (piece.token + count < tokens) return;
#pragma unroll
    for (int i = 1; i < STATES; i++)
        if (i < p.stored) copy_window(p.states[i], piece, in, tokens - i);
}

extern "C" __global__ void __launch_bounds__(128) ssm_conv_step_windows(SsmConvStepParams p) {
    __shared__ i64 first_of_warp[WARP];
    Piece piece;
    if (!piece_of_thread(p, &piece, first_of_warp)) return;
    Inputs in = inputs_of(p, piece);
#pragma unroll
    for (int i = 0; i < STATES; i++)
        if (i < p.stored) copy_window(p.states[i], piece, in, p.x.ne[1] - p.back - i);
}
