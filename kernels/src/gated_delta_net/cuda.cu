// M = M * exp(g); delta = (v - M k) beta; M = M + delta k'; y = M q / sqrt(S): the gated delta rule, token after token.
//
// One update per token and one tree per sum, whatever the call's tokens, sequences and layout: a prompt equals single
// steps to the bit. A row of M belongs to LANES lanes, lane l of them to its elements 4 (l + LANES m) .. + 3, which it
// adds in order of m in four running sums; then an xor tree adds the lanes.
//
// Geometry. `rule` (S up to 256): a warp has 32 / LANES rows of a head, their states in registers through all tokens,
// at most four quads a lane: 4 lanes a row up to S = 16, 8 up to 128, 16 up to 256. Fewer lanes make fewer exchanges,
// and exchanges are the chain that bounds a long prompt: from the state to delta and back, once per token. y is off
// that chain. Keys, queries and gates of the next token are loaded before this one's are used. `rows` takes larger S;
// a warp a row, the state in the result's memory, two passes a token.
//
// Snapshots: as ssm_scan, eight a launch.
//
// Limits: one token is bound by memory, two passes over the state. Long prompts of few sequences are bound by the
// latency of the chain.
//
// Forms considered: y from the decayed state and delta times k q needs no second sum over the new state, but is
// another sum, and the second one is hidden. The chunked form reassociates.
#include "../shared/ids.cuh"
#include "../shared/row_quads.cuh"

constexpr int SNAPSHOTS = 8;
constexpr int WARPS = 4;
constexpr float LOG2_E = 1.44269504f;

struct GatedDeltaNetParams {
    Tensor state, q, k, v, g, beta, ids;
    float* y;
    float* snapshots[SNAPSHOTS];  // packed; the first after token `snapshot_first`
    i64 first, end;               // tokens of this launch
    i64 snapshot_first;
    i64 pool_rows;
    Fault* fault;
    float scale;
    int heads_per_key;            // neighbours that share a key head; 0 where key heads are tiled
    int snapshot_count;
    int continued;                // state is what the launch before wrote: a row per sequence
    int state_quads, q_quads, k_quads, g_quads;  // whether rows start at multiples of 16 bytes and are packed
};

// Whether all ids name rows. Each block looks for itself, so that none writes where one does not.
__device__ __forceinline__ bool ids_hold(const GatedDeltaNetParams& p) {
    __shared__ i64 first_of_warp[WARP];
    return ids_are_rows(p.ids, p.v.ne[3], p.pool_rows, p.fault, first_of_warp);
}

// ---- One row j of a head in one sequence.
struct Place {
    i64 row, head, sequence, key_head;
};

// The row with this number, counted in groups of `rows`, of which a head has `groups`.
__device__ __forceinline__ Place place_at(const GatedDeltaNetParams& p, i64 number, i64 groups) {
    Place at;
    i64 outer = divide(number, groups, &at.row);
    at.sequence = divide(outer, p.v.ne[1], &at.head);
    if (p.heads_per_key == 0) divide(at.head, p.k.ne[1], &at.key_head);
    else at.key_head = at.head / p.heads_per_key;
    return at;
}

// The state that a sequence starts from; null for zeros.
__device__ __forceinline__ const char* start_of(const GatedDeltaNetParams& p, const Place& at) {
    i64 slot = p.continued ? at.sequence : *(const int*)(p.ids.data + at.sequence * p.ids.nb[0]);
    if (slot < 0) return nullptr;
    return p.state.data + at.row * p.state.nb[1] + at.head * p.state.nb[2] + slot * p.state.nb[3];
}

__device__ __forceinline__ i64 packed_row(const GatedDeltaNetParams& p, const Place& at) {
    return ((at.sequence * p.v.ne[1] + at.head) * p.v.ne[0] + at.row) * p.v.ne[0];
}

__device__ __forceinline__ float* y_at(const GatedDeltaNetParams& p, const Place& at, i64 token) {
    return p.y + ((at.sequence * p.v.ne[2] + token) * p.v.ne[1] + at.head) * p.v.ne[0] + at.row;
}

__device__ __forceinline__ const char* token_row(const Tensor& t, i64 head, i64 token, i64 sequence) {
    return t.data + head * t.nb[1] + token * t.nb[2] + sequence * t.nb[3];
}

__device__ __forceinline__ float decay_of(float gate) { return exp2f(gate * LOG2_E); }

// ---- Snapshots.
__device__ __forceinline__ bool is_snapshot(const GatedDeltaNetParams& p, i64 token) {
    return token >= p.snapshot_first;
}

// The state result to write after a token. Chosen among constants: an index would put the addresses in memory.
__device__ __forceinline__ float* snapshot(const GatedDeltaNetParams& p, i64 token) {
    int index = (int)(token - p.snapshot_first);
    float* target = p.snapshots[0];
#pragma unroll
    for (int i = 1; i < SNAPSHOTS; i++) target = index == i ? p.snapshots[i] : target;
    return target;
}

// ---- A lane's share of a row: QUADS quads.
template <int LANES, int QUADS>
__device__ __forceinline__ void load_share(
    const char* row, i64 stride, int quads, int l, int size, float4 (&values)[QUADS]
) {
    if (quads) {
#pragma unroll
        for (int m = 0; m < QUADS; m++) values[m] = load_quad(F32Row{row}, 4 * (l + LANES * m), size, 0.0f);
    } else {
#pragma unroll
        for (int m = 0; m < QUADS; m++)
            values[m] = load_quad(StridedRow{row, stride, F32}, 4 * (l + LANES * m), size, 0.0f);
    }
}

template <int LANES, int QUADS>
__device__ __forceinline__ void store_share(float* row, int quads, int l, int size, const float4 (&values)[QUADS]) {
#pragma unroll
    for (int m = 0; m < QUADS; m++)
        store_quad((char*)row, F32, quads ? QUADS_F32 : BY_STRIDE, 4 * (l + LANES * m), size, values[m]);
}

// The products of two shares, added over the lanes of a row.
template <int LANES, int QUADS>
__device__ __forceinline__ float row_product(const float4 (&a)[QUADS], const float4 (&b)[QUADS]) {
    float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int m = 0; m < QUADS; m++) {
        sums.x = fmaf(a[m].x, b[m].x, sums.x);
        sums.y = fmaf(a[m].y, b[m].y, sums.y);
        sums.z = fmaf(a[m].z, b[m].z, sums.z);
        sums.w = fmaf(a[m].w, b[m].w, sums.w);
    }
    float sum = (sums.x + sums.y) + (sums.z + sums.w);
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
    return sum;
}

// What the rows of a head need of a token, and their own v.
template <int QUADS, bool VECTOR> struct Token {
    float4 key[QUADS], query[QUADS], gate[VECTOR ? QUADS : 1];
    float v, beta;
};

// Where the parts of the next token lie.
struct Cursor {
    const char *q, *k, *v, *g, *beta;
};

template <int LANES, int QUADS, bool VECTOR>
__device__ __forceinline__ void load_token(
    const GatedDeltaNetParams& p, const Cursor& at, int l, int size, Token<QUADS, VECTOR>& token
) {
    load_share<LANES, QUADS>(at.k, p.k.nb[0], p.k_quads, l, size, token.key);
    load_share<LANES, QUADS>(at.q, p.q.nb[0], p.q_quads, l, size, token.query);
    if constexpr (VECTOR) load_share<LANES, QUADS>(at.g, p.g.nb[0], p.g_quads, l, size, token.gate);
    else token.gate[0].x = *(const float*)at.g;
    token.v = *(const float*)at.v;
    token.beta = *(const float*)at.beta;
}

template <int QUADS, bool VECTOR>
__device__ __forceinline__ void decay(float4 (&state)[QUADS], const Token<QUADS, VECTOR>& token) {
    float one = VECTOR ? 0.0f : decay_of(token.gate[0].x);
#pragma unroll
    for (int m = 0; m < QUADS; m++) {
        const float4& gate = token.gate[VECTOR ? m : 0];
        state[m].x *= VECTOR ? decay_of(gate.x) : one;
        state[m].y *= VECTOR ? decay_of(gate.y) : one;
        state[m].z *= VECTOR ? decay_of(gate.z) : one;
        state[m].w *= VECTOR ? decay_of(gate.w) : one;
    }
}

template <int QUADS>
__device__ __forceinline__ void write(float4 (&state)[QUADS], const float4 (&key)[QUADS], float delta) {
#pragma unroll
    for (int m = 0; m < QUADS; m++) {
        state[m].x = fmaf(key[m].x, delta, state[m].x);
        state[m].y = fmaf(key[m].y, delta, state[m].y);
        state[m].z = fmaf(key[m].z, delta, state[m].z);
        state[m].w = fmaf(key[m].w, delta, state[m].w);
    }
}

template <int LANES, int QUADS, bool VECTOR> __device__ __forceinline__ void rule(const GatedDeltaNetParams& p) {
    if (!ids_hold(p)) return;
    constexpr int ROWS = WARP / LANES;
    int l = threadIdx.x % LANES;
    int size = (int)p.v.ne[0];
    i64 groups = (size + ROWS - 1) / ROWS;
    i64 number = (i64)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (number >= groups * p.v.ne[1] * p.v.ne[3]) return;
    Place at = place_at(p, number, groups);
    at.row = at.row * ROWS + threadIdx.x % WARP / LANES;
    // Lanes without a row take part in the exchanges of their warp with the last one's, and write nothing.
    bool valid = at.row < size;
    at.row = min(at.row, (i64)size - 1);

    float4 state[QUADS] = {};
    const char* start = start_of(p, at);
    if (start != nullptr) load_share<LANES, QUADS>(start, p.state.nb[0], p.state_quads, l, size, state);
    bool store_quads = size % 4 == 0;
    if (p.first == p.end) {
        if (valid) store_share<LANES, QUADS>(snapshot(p, p.snapshot_first) + packed_row(p, at), store_quads, l, size, state);
        return;
    }

    Cursor cursor;
    cursor.q = token_row(p.q, at.key_head, p.first, at.sequence);
    cursor.k = token_row(p.k, at.key_head, p.first, at.sequence);
    cursor.v = token_row(p.v, at.head, p.first, at.sequence) + at.row * p.v.nb[0];
    cursor.g = token_row(p.g, at.head, p.first, at.sequence);
    cursor.beta = token_row(p.beta, at.head, p.first, at.sequence);
    float* y = y_at(p, at, p.first);
    i64 y_step = p.v.ne[1] * size;
    bool writes_y = valid && l == 0;
    Token<QUADS, VECTOR> token;
    load_token<LANES, QUADS, VECTOR>(p, cursor, l, size, token);
    for (i64 number = p.first; number < p.end; number++) {
        bool more = number + 1 < p.end;
        cursor.q += more ? p.q.nb[2] : 0;
        cursor.k += more ? p.k.nb[2] : 0;
        cursor.v += more ? p.v.nb[2] : 0;
        cursor.g += more ? p.g.nb[2] : 0;
        cursor.beta += more ? p.beta.nb[2] : 0;
        Token<QUADS, VECTOR> next;
        load_token<LANES, QUADS, VECTOR>(p, cursor, l, size, next);
        decay<QUADS, VECTOR>(state, token);
        // The same for all lanes of a warp. A strength of 0 writes nothing, whatever key and value hold.
        if (token.beta != 0.0f) {
            float prediction = row_product<LANES, QUADS>(state, token.key);
            write<QUADS>(state, token.key, (token.v - prediction) * token.beta);
        }
        float sum = row_product<LANES, QUADS>(state, token.query);
        if (writes_y) *y = sum * p.scale;
        y += y_step;
        if (valid && is_snapshot(p, number))
            store_share<LANES, QUADS>(snapshot(p, number) + packed_row(p, at), store_quads, l, size, state);
        token = next;
    }
}

extern "C" __global__ void __launch_bounds__(128) gated_delta_net_16(GatedDeltaNetParams p) { rule<4, 1, false>(p); }
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_32(GatedDeltaNetParams p) { rule<8, 1, false>(p); }
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_64(GatedDeltaNetParams p) { rule<8, 2, false>(p); }
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_96(GatedDeltaNetParams p) { rule<8, 3, false>(p); }
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_128(GatedDeltaNetParams p) { rule<8, 4, false>(p); }
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_192(GatedDeltaNetParams p) { rule<16, 3, false>(p); }
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_256(GatedDeltaNetParams p) { rule<16, 4, false>(p); }
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_16_vector(GatedDeltaNetParams p) {
    rule<4, 1, true>(p);
}
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_32_vector(GatedDeltaNetParams p) {
    rule<8, 1, true>(p);
}
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_64_vector(GatedDeltaNetParams p) {
    rule<8, 2, true>(p);
}
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_96_vector(GatedDeltaNetParams p) {
    rule<8, 3, true>(p);
}
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_128_vector(GatedDeltaNetParams p) {
    rule<8, 4, true>(p);
}
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_192_vector(GatedDeltaNetParams p) {
    rule<16, 3, true>(p);
}
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_256_vector(GatedDeltaNetParams p) {
    rule<16, 4, true>(p);
}

// ---- Any size: a warp a row, element i of lane i mod 32, the state in the last snapshot's memory, where each lane
// finds what it wrote itself.
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_rows(GatedDeltaNetParams p) {
    if (!ids_hold(p)) return;
    int lane = threadIdx.x % WARP;
    i64 size = p.v.ne[0];
    i64 number = (i64)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (number >= size * p.v.ne[1] * p.v.ne[3]) return;
    Place at = place_at(p, number, size);
    const char* start = start_of(p, at);
    float* state = snapshot(p, p.snapshot_first + p.snapshot_count - 1) + packed_row(p, at);
    for (i64 i = lane; i < size; i += WARP)
        state[i] = start == nullptr ? 0.0f : *(const float*)(start + i * p.state.nb[0]);

    // 0 where one gate serves all elements.
    i64 gate_step = p.g.ne[0] == 1 ? 0 : p.g.nb[0];
    for (i64 token = p.first; token < p.end; token++) {
        const char* q = token_row(p.q, at.key_head, token, at.sequence);
        const char* k = token_row(p.k, at.key_head, token, at.sequence);
        const char* g = token_row(p.g, at.head, token, at.sequence);
        float v = *(const float*)(token_row(p.v, at.head, token, at.sequence) + at.row * p.v.nb[0]);
        float beta = *(const float*)token_row(p.beta, at.head, token, at.sequence);
        float* copy = is_snapshot(p, token) ? snapshot(p, token) + packed_row(p, at) : state;
        float prediction = 0.0f;
#pragma unroll 1
        for (i64 i = lane; i < size; i += WARP) {
            float value = state[i] * decay_of(*(const float*)(g + i * gate_step));
            state[i] = value;
            prediction = fmaf(value, *(const float*)(k + i * p.k.nb[0]), prediction);
        }
        float delta = (v - warp_sum(prediction)) * beta;
        float sum = 0.0f;
#pragma unroll 1
        for (i64 i = lane; i < size; i += WARP) {
            float value = state[i];
            if (beta != 0.0f) value = fmaf(*(const float*)(k + i * p.k.nb[0]), delta, value);
            state[i] = value;
            if (copy != state) copy[i] = value;
            sum = fmaf(value, *(const float*)(q + i * p.q.nb[0]), sum);
        }
        sum = warp_sum(sum);
        if (lane == 0) *y_at(p, at, token) = sum * p.scale;
    }
}
