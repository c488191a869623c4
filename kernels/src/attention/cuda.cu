// y = sum over positions j of softmax(scale * q.k[j]) * v[j], positions 0 to the query's own.
//
// A block of 128 threads takes a query (of one head and token) through blocks of 128 positions: each warp forms the
// scores of every fourth position, one after another, its lanes across the row; thread j then holds the score of
// position j, and all meet for the maximum and the total; at last each thread sums its elements of the values,
// position after position. The block's maximum, total and sums are folded into running ones, block after block.
//
// attention_*         one block of threads goes through all positions of a query
// attention_*_pieces  one for each query and block of positions; what each finds goes to scratch, and attention_join
//                     folds it. The operations and their order are those of the first form, so that the bits are.
// Where there are few queries (a step of one token) the first form leaves a device idle.
//
// Limits: keys and values are read once for each query, from L2 where heads or tokens share them; for prompts that is
// some hundred times the traffic that tiles of queries in shared memory would have. A step is bound by memory.
//
// Forms considered: a thread for each position in the scores reads 128 rows at once, a cache line each. Matrix units
// round the operands.
#include "../shared/math.cuh"
#include "../shared/reduce.cuh"

struct AttentionParams {
    Tensor q, k, v, slots, past, y;
    float* scratch;      // of each query and block of positions: largest, total, sums
    Fault* fault;
    i64 pieces;
    i64 room;            // past is below
    i64 heads_per_group;
    float scale;
    int unused;
};

constexpr int THREADS = 128;
constexpr int WARPS = THREADS / WARP;

extern __shared__ float dynamic_shared[];  // the query's row, then the sums

// What is known of a query after some positions.
struct State { float largest, total; };

// Factors of what was known and of what comes. A largest of -inf counts as 0: nothing was there to weigh.
struct Fold { float keep, take; };

__device__ __forceinline__ float base_of(float largest) { return largest == negative_infinity() ? 0.0f : largest; }

__device__ __forceinline__ Fold fold(State* state, State piece) {
    float largest = fmaxf(state->largest, piece.largest), base = base_of(largest);
    Fold factors{expf(state->largest - base), expf(piece.largest - base)};
    state->total = fmaf(state->total, factors.keep, piece.total * factors.take);
    state->largest = largest;
    return factors;
}

__device__ __forceinline__ float folded(float sum, float piece, Fold factors) {
    return fmaf(sum, factors.keep, piece * factors.take);
}

struct Query {
    i64 head, token, sequence;
    i64 cache, end;      // positions up to `end` are seen; 0 when the sequence has no cache
};

__device__ __forceinline__ int int_at(const Tensor& t, i64 i) { return *(const int*)(t.data + i * t.nb[0]); }

__device__ __forceinline__ bool slot_is_right(const AttentionParams& p, i64 slot) {
    return slot >= 0 && slot < p.k.ne[3];
}

__device__ __forceinline__ bool past_is_right(const AttentionParams& p, i64 past) { return past >= 0 && past < p.room; }

__device__ __forceinline__ Query query_at(const AttentionParams& p, i64 number) {
    Query at;
    Row row = row_at(number, p.y.ne);
    at.head = row.i1, at.token = row.i2, at.sequence = row.i3;
    i64 past = int_at(p.past, at.sequence);
    at.cache = int_at(p.slots, at.sequence);
    at.end = slot_is_right(p, at.cache) && past_is_right(p, past) ? past + at.token + 1 : 0;
    return at;
}

// Raises a fault for the first sequence whose slot or past is wrong, the slot first: the one that the reference names.
__device__ __forceinline__ void check_sequences(const AttentionParams& p, i64* first_of_warp) {
    i64 count = p.q.ne[3], first = count;
    for (i64 b = threadIdx.x; b < count; b += THREADS) {
        if (slot_is_right(p, int_at(p.slots, b)) && past_is_right(p, int_at(p.past, b))) continue;
        first = b;
        break;
    }
    auto lesser = [](i64 a, i64 b) { return a < b ? a : b; };
    first = block_reduce(first, count, first_of_warp, lesser);
    if (first == count || threadIdx.x != 0) return;
    bool slot = !slot_is_right(p, int_at(p.slots, first));
    raise(p.fault, int_at(slot ? p.slots : p.past, first), first, 0, 0, slot ? 0u : 1u);
}

// The score of this thread's position: those of the warp's positions are left in `scores` first.
template <int TYPE>
__device__ __forceinline__ float score_of_thread(
    const AttentionParams& p, const char* keys, int count, float* scores) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int length = (int)p.k.ne[0];
    i64 stride = p.k.nb[0];
#pragma unroll 2
    for (int j = warp; j < count; j += WARPS) {
        const char* key = keys + j * p.k.nb[2];
        float sum = 0.0f;
#pragma unroll 4
        for (int d = lane; d < length; d += WARP) sum = fmaf(dynamic_shared[d], load_float(key + d * stride, TYPE), sum);
        sum = warp_sum(sum);
        if (lane == 0) scores[j] = sum * p.scale;
    }
    __syncthreads();
    return threadIdx.x < count ? scores[threadIdx.x] : negative_infinity();
}

// Element e of the values of a block, weighed by `shares`.
template <int TYPE>
__device__ __forceinline__ float weighed(const AttentionParams& p, const char* at, int count, const float* shares) {
    i64 stride = p.v.nb[2];
    float sum = 0.0f;
#pragma unroll 8
    for (int j = 0; j < count; j++) sum = fmaf(shares[j], load_float(at + j * stride, TYPE), sum);
    return sum;
}

// Calls found(e, sum) for this thread's elements of one block of positions, and returns its maximum and total.
// `fold_in` gets those first.
template <int TYPE, class FoldIn, class Found>
__device__ __forceinline__ void piece(
    const AttentionParams& p, const Query& at, i64 first, float* scores, float* partial, FoldIn fold_in, Found found) {
    i64 group = at.head / p.heads_per_group;
    int count = (int)min(at.end - first, (i64)THREADS);
    const char* keys = p.k.data + group * p.k.nb[1] + first * p.k.nb[2] + at.cache * p.k.nb[3];
    float score = score_of_thread<TYPE>(p, keys, count, scores);
    State state;
    state.largest = block_reduce(score, negative_infinity(), partial, [](float a, float b) { return fmaxf(a, b); });
    float share = threadIdx.x < count ? expf(score - base_of(state.largest)) : 0.0f;
    state.total = block_reduce(share, 0.0f, partial, Plus());
    scores[threadIdx.x] = share;
    __syncthreads();
    fold_in(state);
    const char* values = p.v.data + group * p.v.nb[1] + first * p.v.nb[2] + at.cache * p.v.nb[3];
    for (int e = threadIdx.x; e < (int)p.v.ne[0]; e += THREADS)
        found(e, weighed<TYPE>(p, values + e * p.v.nb[0], count, scores));
    __syncthreads();
}

__device__ __forceinline__ void load_query(const AttentionParams& p, const Query& at) {
    Row row{at.head, at.token, at.sequence};
    const char* from = row_start(p.q, row);
    for (int d = threadIdx.x; d < (int)p.q.ne[0]; d += THREADS) dynamic_shared[d] = *(const float*)(from + d * p.q.nb[0]);
    __syncthreads();
}

template <int TYPE>
__device__ __forceinline__ void attend(const AttentionParams& p) {
    __shared__ float scores[THREADS];
    __shared__ i64 partial[WARPS_MAX];
    if (blockIdx.x == 0) check_sequences(p, partial);
    Query at = query_at(p, blockIdx.x);
    if (at.end == 0) return;
    load_query(p, at);
    float* sums = dynamic_shared + p.q.ne[0];
    for (int e = threadIdx.x; e < (int)p.v.ne[0]; e += THREADS) sums[e] = 0.0f;
    State state{negative_infinity(), 0.0f};
    for (i64 first = 0; first < at.end; first += THREADS) {
        Fold factors;
        piece<TYPE>(
            p, at, first, scores, (float*)partial, [&](State piece) { factors = fold(&state, piece); },
            [&](int e, float sum) { sums[e] = folded(sums[e], sum, factors); });
    }
    float* to = (float*)p.y.data + blockIdx.x * p.y.ne[0];
    for (int e = threadIdx.x; e < (int)p.v.ne[0]; e += THREADS) to[e] = sums[e] / state.total;
}

template <int TYPE>
__device__ __forceinline__ void attend_piece(const AttentionParams& p) {
    __shared__ float scores[THREADS];
    __shared__ i64 partial[WARPS_MAX];
    if (blockIdx.x == 0) check_sequences(p, partial);
    i64 number;
    Query at = query_at(p, divide(blockIdx.x, p.pieces, &number));
    if (number * THREADS >= at.end) return;
    load_query(p, at);
    float* to = p.scratch + blockIdx.x * (p.v.ne[0] + 2);
    piece<TYPE>(
        p, at, number * THREADS, scores, (float*)partial,
        [&](State piece) {
            if (threadIdx.x == 0) to[0] = piece.largest, to[1] = piece.total;
        },
        [&](int e, float sum) { to[2 + e] = sum; });
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_f32(AttentionParams p) { attend<F32>(p); }
extern "C" __global__ void __launch_bounds__(THREADS) attention_f16(AttentionParams p) { attend<F16>(p); }
extern "C" __global__ void __launch_bounds__(THREADS) attention_f32_pieces(AttentionParams p) { attend_piece<F32>(p); }
extern "C" __global__ void __launch_bounds__(THREADS) attention_f16_pieces(AttentionParams p) { attend_piece<F16>(p); }

extern "C" __global__ void __launch_bounds__(THREADS) attention_join(AttentionParams p) {
    Query at = query_at(p, blockIdx.x);
    if (at.end == 0) return;
    i64 size = p.v.ne[0] + 2;
    const float* pieces = p.scratch + (i64)blockIdx.x * p.pieces * size;
    float* to = (float*)p.y.data + blockIdx.x * p.y.ne[0];
    for (i64 e = threadIdx.x; e < p.v.ne[0]; e += THREADS) {
        State state{negative_infinity(), 0.0f};
        float sum = 0.0f;
        for (i64 first = 0; first < at.end; first += THREADS) {
            const float* piece = pieces + first / THREADS * size;
            Fold factors = fold(&state, State{piece[0], piece[1]});
            sum = folded(sum, piece[2 + e], factors);
        }
        to[e] = sum / state.total;
    }
}
