// M = M * exp(g); delta = (v - M k) beta; M = M + delta k'; y = M q / sqrt(S): the gated delta rule, token after token.
//
// One update per token and one tree per sum, whatever the call's tokens, sequences and layout: a prompt equals single
// steps to the bit, in each form.
//
// Form `warp_tree`, the default. A row of M belongs to LANES lanes, lane l of them to its elements 4 (l + LANES m) .. + 3, which it
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
// Other forms, up to S = 256, to compare with. `shared_tree`: a block a row, a thread an element, each sum a tree over
// shared memory with a barrier per round. `unrolled_tree`: the same tree, to the bit, its last six rounds within each
// warp. Both exact, both with more instructions and barriers on the chain. `one_pass`: as warp_tree, but
// y = scale (sum of decayed q + delta (k q)), so that one exchange adds the lanes of both sums over the decayed state;
// in exchange k q is a third sum, off the chain. It reassociates, so it is for Numerics::Fast.
//
// Not here: the chunked form, which reassociates further.
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

// The products of two shares, added.
template <int QUADS>
__device__ __forceinline__ float share_product(const float4 (&a)[QUADS], const float4 (&b)[QUADS]) {
    float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int m = 0; m < QUADS; m++) {
        sums.x = fmaf(a[m].x, b[m].x, sums.x);
        sums.y = fmaf(a[m].y, b[m].y, sums.y);
        sums.z = fmaf(a[m].z, b[m].z, sums.z);
        sums.w = fmaf(a[m].w, b[m].w, sums.w);
    }
    return (sums.x + sums.y) + (sums.z + sums.w);
}

// The products of two shares, added over the lanes of a row.
template <int LANES, int QUADS>
__device__ __forceinline__ float row_product(const float4 (&a)[QUADS], const float4 (&b)[QUADS]) {
    float sum = share_product<QUADS>(a, b);
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
    return sum;
}

// Adds a and b over the lanes of a row in one exchange: after the first round the lower lanes go on with a, the upper
// ones with b, and at the end each half gets the other's sum.
template <int LANES> __device__ __forceinline__ void add_both(float& a, float& b) {
    bool upper = threadIdx.x & LANES / 2;
    float own = upper ? b : a, other = upper ? a : b;
    own += __shfl_xor_sync(ALL_LANES, other, LANES / 2);
#pragma unroll
    for (int offset = LANES / 4; offset > 0; offset >>= 1) own += __shfl_xor_sync(ALL_LANES, own, offset);
    other = __shfl_xor_sync(ALL_LANES, own, LANES / 2);
    a = upper ? other : own;
    b = upper ? own : other;
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

// One token of a row, in two sums one after the other; y before its scale. A strength of 0, which is the same for all
// lanes of a warp, writes nothing, whatever key and value hold.
template <int LANES, int QUADS, bool VECTOR>
__device__ __forceinline__ float step(float4 (&state)[QUADS], const Token<QUADS, VECTOR>& token) {
    decay<QUADS, VECTOR>(state, token);
    if (token.beta != 0.0f) {
        float prediction = row_product<LANES, QUADS>(state, token.key);
        write<QUADS>(state, token.key, (token.v - prediction) * token.beta);
    }
    return row_product<LANES, QUADS>(state, token.query);
}

// As `step`, with both sums over the decayed state.
template <int LANES, int QUADS, bool VECTOR>
__device__ __forceinline__ float step_one_pass(float4 (&state)[QUADS], const Token<QUADS, VECTOR>& token) {
    float key_query = row_product<LANES, QUADS>(token.key, token.query);
    decay<QUADS, VECTOR>(state, token);
    float prediction = share_product<QUADS>(state, token.key);
    float sum = share_product<QUADS>(state, token.query);
    add_both<LANES>(prediction, sum);
    if (token.beta != 0.0f) {
        float delta = (token.v - prediction) * token.beta;
        write<QUADS>(state, token.key, delta);
        sum = fmaf(delta, key_query, sum);
    }
    return sum;
}

template <int LANES, int QUADS, bool VECTOR, bool ONE_PASS = false>
__device__ __forceinline__ void rule(const GatedDeltaNetParams& p) {
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
        float sum = ONE_PASS ? step_one_pass<LANES, QUADS, VECTOR>(state, token)
                             : step<LANES, QUADS, VECTOR>(state, token);
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

extern "C" __global__ void __launch_bounds__(128) gated_delta_net_16_one_pass(GatedDeltaNetParams p) {
    rule<4, 1, false, true>(p);
}
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_64_one_pass(GatedDeltaNetParams p) {
    rule<8, 2, false, true>(p);
}
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_128_one_pass(GatedDeltaNetParams p) {
    rule<8, 4, false, true>(p);
}
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_256_one_pass(GatedDeltaNetParams p) {
    rule<16, 4, false, true>(p);
}
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_16_vector_one_pass(GatedDeltaNetParams p) {
    rule<4, 1, true, true>(p);
}
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_64_vector_one_pass(GatedDeltaNetParams p) {
    rule<8, 2, true, true>(p);
}
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_128_vector_one_pass(GatedDeltaNetParams p) {
    rule<8, 4, true, true>(p);
}
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_256_vector_one_pass(GatedDeltaNetParams p) {
    rule<16, 4, true, true>(p);
}

// ---- A block a row, a thread an element.
// The sum of all threads' values, in every thread, or in those of the first warp alone. `places` has THREADS places and
// may be used again once the block has met after this. Always the same tree: element t and t + offset, the offset
// halving. With SHUFFLED, the rounds from offset 32 on are done by each warp for itself.
template <int THREADS, bool SHUFFLED, bool EVERYWHERE>
__device__ __forceinline__ float tree_sum(float value, float* places) {
    constexpr int LAST = SHUFFLED ? WARP : 0;
    int t = threadIdx.x;
    places[t] = value;
#pragma unroll
    for (int offset = THREADS / 2; offset > LAST; offset >>= 1) {
        __syncthreads();
        if (t < offset) places[t] += places[t + offset];
    }
    // The first thread has written the sum itself.
    if (SHUFFLED || EVERYWHERE) __syncthreads();
    if constexpr (SHUFFLED) {
        if (!EVERYWHERE && t >= WARP) return 0.0f;
        return warp_sum(places[t % WARP] + places[t % WARP + WARP]);
    }
    return EVERYWHERE || t == 0 ? places[0] : 0.0f;
}

// What an element needs of a token.
struct Element {
    float key, query, gate, v, beta;
};

__device__ __forceinline__ Element load_element(const Cursor& at, bool inside) {
    Element element{};
    if (inside) {
        element.key = *(const float*)at.k;
        element.query = *(const float*)at.q;
        element.gate = *(const float*)at.g;
    }
    element.v = *(const float*)at.v;
    element.beta = *(const float*)at.beta;
    return element;
}

template <int THREADS, bool SHUFFLED> __device__ __forceinline__ void tree_rule(const GatedDeltaNetParams& p) {
    // Two, so that a tree may begin while a slow thread ends the one before.
    __shared__ float for_prediction[THREADS], for_y[THREADS];
    if (!ids_hold(p)) return;
    i64 size = p.v.ne[0], i = threadIdx.x;
    if (blockIdx.x >= size * p.v.ne[1] * p.v.ne[3]) return;
    Place at = place_at(p, blockIdx.x, size);
    bool inside = i < size;
    const char* start = start_of(p, at);
    float state = inside && start != nullptr ? *(const float*)(start + i * p.state.nb[0]) : 0.0f;
    i64 place = packed_row(p, at) + i;
    if (p.first == p.end) {
        if (inside) snapshot(p, p.snapshot_first)[place] = state;
        return;
    }
    Cursor cursor;
    cursor.q = token_row(p.q, at.key_head, p.first, at.sequence) + i * p.q.nb[0];
    cursor.k = token_row(p.k, at.key_head, p.first, at.sequence) + i * p.k.nb[0];
    cursor.v = token_row(p.v, at.head, p.first, at.sequence) + at.row * p.v.nb[0];
    cursor.g = token_row(p.g, at.head, p.first, at.sequence) + (p.g.ne[0] == 1 ? 0 : i * p.g.nb[0]);
    cursor.beta = token_row(p.beta, at.head, p.first, at.sequence);
    float* y = y_at(p, at, p.first);
    i64 y_step = p.v.ne[1] * size;
    Element token = load_element(cursor, inside);
    for (i64 number = p.first; number < p.end; number++) {
        bool more = number + 1 < p.end;
        cursor.q += more ? p.q.nb[2] : 0;
        cursor.k += more ? p.k.nb[2] : 0;
        cursor.v += more ? p.v.nb[2] : 0;
        cursor.g += more ? p.g.nb[2] : 0;
        cursor.beta += more ? p.beta.nb[2] : 0;
        Element next = load_element(cursor, inside);
        state *= decay_of(token.gate);
        float prediction = tree_sum<THREADS, SHUFFLED, true>(state * token.key, for_prediction);
        float delta = (token.v - prediction) * token.beta;
        if (token.beta != 0.0f) state = fmaf(token.key, delta, state);
        float sum = tree_sum<THREADS, SHUFFLED, false>(state * token.query, for_y);
        if (i == 0) *y = sum * p.scale;
        y += y_step;
        if (inside && is_snapshot(p, number)) snapshot(p, number)[place] = state;
        token = next;
    }
}

extern "C" __global__ void __launch_bounds__(64) gated_delta_net_64_shared_tree(GatedDeltaNetParams p) {
    tree_rule<64, false>(p);
}
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_128_shared_tree(GatedDeltaNetParams p) {
    tree_rule<128, false>(p);
}
extern "C" __global__ void __launch_bounds__(256) gated_delta_net_256_shared_tree(GatedDeltaNetParams p) {
    tree_rule<256, false>(p);
}
extern "C" __global__ void __launch_bounds__(64) gated_delta_net_64_unrolled_tree(GatedDeltaNetParams p) {
    tree_rule<64, true>(p);
}
extern "C" __global__ void __launch_bounds__(128) gated_delta_net_128_unrolled_tree(GatedDeltaNetParams p) {
    tree_rule<128, true>(p);
}
extern "C" __global__ void __launch_bounds__(256) gated_delta_net_256_unrolled_tree(GatedDeltaNetParams p) {
    tree_rule<256, true>(p);
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
