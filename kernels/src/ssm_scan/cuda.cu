// s = s * exp(dt' A) + B x dt', y = sum over n of s C: the selective scan, token after token.
//
// One update per token and one tree per y, whatever the call's tokens, sequences and layout: a prompt equals
// single steps to the bit. Element n of a state belongs to lane n mod LANES of its group of lanes, which adds its
// own products in order of n; then an xor tree adds the lanes.
//
// Geometry. `head` (one decay a head, Mamba-2): a warp has 1 or 4 rows p of a head, their states in registers
// through all tokens; 4 rows share B and C, and their trees share exchanges, where that leaves warps enough.
// `channel` (one decay a state, Mamba-1): a channel has 8 lanes up to 64 states, else a warp. `rows` takes what
// these do not: more than 256 states, or B and C whose rows are spread; a warp a row, the state in the result's
// memory. Each lane computes the time step and input of one token ahead, and the tokens then come by exchange:
// softplus costs a warp once per 32 tokens. B and C of the next token are loaded before this one's are used.
//
// Snapshots: a launch writes at most 8 states, so that it takes their addresses as parameters; more follow in
// further launches, which go on from the last state written.
//
// Limits: one token is bound by memory, two passes over the state. Long prompts of few sequences are bound by
// the latency of a token's chain, as there is one warp a row.
//
// Forms considered: dt' and decay in shared memory gain nothing over exchanges; the chunked form reassociates.
#include "../shared/ids.cuh"
#include "../shared/math.cuh"

constexpr int SNAPSHOTS = 8;
constexpr int WARPS = 4;
constexpr float LOG2_E = 1.44269504f;

struct SsmScanParams {
    Tensor s, x, dt, a, b, c, ids;
    float* y;
    float* snapshots[SNAPSHOTS];  // packed; the first after token `snapshot_first`
    i64 first, end;               // tokens of this launch
    i64 snapshot_first;
    i64 heads_per_group;
    i64 pool_rows;
    Fault* fault;
    int snapshot_count;
    int continued;                // s is what the launch before wrote: a row per sequence
    int lanes;                    // of a state in `rows`
};

// ---- Start rows.
__device__ __forceinline__ i64 id_of(const SsmScanParams& p, i64 sequence) {
    return *(const int*)(p.ids.data + sequence * p.ids.nb[0]);
}

// Whether all ids name rows. Each block looks for itself, so that none writes where one does not.
__device__ __forceinline__ bool ids_hold(const SsmScanParams& p) {
    __shared__ i64 first_of_warp[WARP];
    return ids_are_rows(p.ids, p.x.ne[3], p.pool_rows, p.fault, first_of_warp);
}

// ---- One row p of a head in one sequence.
struct Place {
    i64 row, head, sequence;
};

// The state that a sequence starts from; null for zeros.
__device__ __forceinline__ const char* start_of(const SsmScanParams& p, const Place& at) {
    i64 slot = p.continued ? at.sequence : id_of(p, at.sequence);
    if (slot < 0) return nullptr;
    return p.s.data + at.row * p.s.nb[1] + at.head * p.s.nb[2] + slot * p.s.nb[3];
}

__device__ __forceinline__ float start_element(const SsmScanParams& p, const char* start, i64 n) {
    return start == nullptr ? 0.0f : *(const float*)(start + n * p.s.nb[0]);
}

__device__ __forceinline__ i64 packed_row(const SsmScanParams& p, const Place& at) {
    return ((at.sequence * p.s.ne[2] + at.head) * p.s.ne[1] + at.row) * p.s.ne[0];
}

__device__ __forceinline__ float* y_at(const SsmScanParams& p, const Place& at, i64 token) {
    return p.y + ((at.sequence * p.x.ne[2] + token) * p.s.ne[2] + at.head) * p.s.ne[1] + at.row;
}

__device__ __forceinline__ const char* projection(const SsmScanParams& p, const Tensor& t, const Place& at) {
    return t.data + at.head / p.heads_per_group * t.nb[1] + at.sequence * t.nb[3];
}

__device__ __forceinline__ float time_step(const SsmScanParams& p, const Place& at, i64 token) {
    const char* dt = p.dt.data + at.head * p.dt.nb[0] + token * p.dt.nb[1] + at.sequence * p.dt.nb[2];
    return softplus(__ldg((const float*)dt));
}

__device__ __forceinline__ float input(const SsmScanParams& p, const Place& at, i64 token) {
    const char* x = p.x.data + at.row * p.x.nb[0] + at.head * p.x.nb[1];
    return __ldg((const float*)(x + token * p.x.nb[2] + at.sequence * p.x.nb[3]));
}

// log2 of the decay for a time step of 1.
__device__ __forceinline__ float rate(const SsmScanParams& p, i64 n, i64 head) {
    return *(const float*)(p.a.data + n * p.a.nb[0] + head * p.a.nb[1]) * LOG2_E;
}

// ---- Snapshots.
__device__ __forceinline__ bool is_snapshot(const SsmScanParams& p, i64 token) { return token >= p.snapshot_first; }

// The state result to write after a token. Chosen among constants: an index would put the addresses in memory.
__device__ __forceinline__ float* snapshot(const SsmScanParams& p, i64 token) {
    int index = (int)(token - p.snapshot_first);
    float* target = p.snapshots[0];
#pragma unroll
    for (int i = 1; i < SNAPSHOTS; i++) target = index == i ? p.snapshots[i] : target;
    return target;
}

// ---- One decay a head: ROWS rows a warp, element n = lane + 32 i.

// Adds over the warp; lane l is left with the sum of row l / (32 / ROWS).
template <int ROWS>
__device__ __forceinline__ float sum_of_rows(float* sums, int lane) {
    if constexpr (ROWS == 1) return warp_sum(sums[0]);
    static_assert(ROWS == 1 || ROWS == 4, "two exchanges of halves");
    bool upper = (lane & 16) != 0;
#pragma unroll
    for (int r = 0; r < ROWS / 2; r++) {
        float sent = upper ? sums[r] : sums[r + ROWS / 2];
        sums[r] = (upper ? sums[r + ROWS / 2] : sums[r]) + __shfl_xor_sync(ALL_LANES, sent, 16);
    }
    upper = (lane & 8) != 0;
    float sent = upper ? sums[0] : sums[ROWS / 4];
    float sum = (upper ? sums[ROWS / 4] : sums[0]) + __shfl_xor_sync(ALL_LANES, sent, 8);
#pragma unroll
    for (int offset = 4; offset > 0; offset >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
    return sum;
}

// Elements n = lane + LANES i of one token's projection; 0 past the last.
template <int COUNT, int LANES>
__device__ __forceinline__ void load_elements(const char* row, int lane, int states, float* values) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        values[i] = lane + LANES * i < states ? __ldg((const float*)row + lane + LANES * i) : 0.0f;
}

template <int COUNT, int ROWS>
__device__ __forceinline__ void store_rows(
    const SsmScanParams& p, const Place& at, i64 token, int lane, const float (*state)[COUNT]
) {
    int states = (int)p.s.ne[0];
    float* target = snapshot(p, token) + packed_row(p, at);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (at.row + r < p.s.ne[1] && lane + WARP * i < states)
                target[r * p.s.ne[0] + lane + WARP * i] = state[r][i];
    }
}

template <int COUNT, int ROWS>
__device__ __forceinline__ void head(const SsmScanParams& p) {
    if (!ids_hold(p)) return;
    int lane = threadIdx.x % WARP;
    int states = (int)p.s.ne[0];
    i64 head_dim = p.s.ne[1], groups = (head_dim + ROWS - 1) / ROWS;
    Place at;
    i64 index = (i64)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (index >= groups * p.s.ne[2] * p.x.ne[3]) return;
    i64 outer = divide(index, groups, &at.row);
    at.sequence = divide(outer, p.s.ne[2], &at.head);
    at.row *= ROWS;
    bool last_is_full = lane + WARP * (COUNT - 1) < states;

    float state[ROWS][COUNT];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        Place row = at;
        row.row = min(at.row + r, head_dim - 1);
        const char* start = start_of(p, row);
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            state[r][i] = lane + WARP * i < states ? start_element(p, start, lane + WARP * i) : 0.0f;
    }
    if (p.first == p.end) {
        store_rows<COUNT, ROWS>(p, at, p.snapshot_first, lane, state);
        return;
    }

    float decay_rate = rate(p, 0, at.head);
    const char* b_at = projection(p, p.b, at) + p.first * p.b.nb[2];
    const char* c_at = projection(p, p.c, at) + p.first * p.c.nb[2];
    float b[COUNT], c[COUNT];
    load_elements<COUNT, WARP>(b_at, lane, states, b);
    load_elements<COUNT, WARP>(c_at, lane, states, c);
    constexpr int LANES_PER_ROW = WARP / ROWS;
    i64 y_row = at.row + lane / LANES_PER_ROW;
    bool writes_y = lane % LANES_PER_ROW == 0 && y_row < head_dim;
    Place y_place = at;
    y_place.row = y_row;
    float* y = y_at(p, y_place, p.first);
    i64 y_step = p.s.ne[2] * head_dim;

    for (i64 ahead = p.first; ahead < p.end; ahead += WARP) {
        int count = (int)min(p.end - ahead, (i64)WARP);
        // Of token ahead + lane.
        float steps = 0.0f, decays = 1.0f, inputs[ROWS] = {};
        if (lane < count) {
            steps = time_step(p, at, ahead + lane);
            decays = exp2f(steps * decay_rate);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                Place row = at;
                row.row = min(at.row + r, head_dim - 1);
                inputs[r] = input(p, row, ahead + lane) * steps;
            }
        }
        for (int j = 0; j < count; j++) {
            bool more = ahead + j + 1 < p.end;
            b_at += more ? p.b.nb[2] : 0;
            c_at += more ? p.c.nb[2] : 0;
            float next_b[COUNT], next_c[COUNT];
            load_elements<COUNT, WARP>(b_at, lane, states, next_b);
            load_elements<COUNT, WARP>(c_at, lane, states, next_c);
            float step = __shfl_sync(ALL_LANES, steps, j);
            float decay = __shfl_sync(ALL_LANES, decays, j);
            float sums[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float x = __shfl_sync(ALL_LANES, inputs[r], j);
                sums[r] = 0.0f;
#pragma unroll
                for (int i = 0; i < COUNT; i++) {
                    // A step of 0 leaves the state alone, whatever x is; so do elements past the last.
                    bool moves = step != 0.0f && (i < COUNT - 1 || last_is_full);
                    float moved = fmaf(state[r][i], decay, b[i] * x);
                    state[r][i] = moves ? moved : state[r][i];
                    sums[r] = fmaf(state[r][i], c[i], sums[r]);
                }
            }
            float sum = sum_of_rows<ROWS>(sums, lane);
            if (writes_y) *y = sum;
            y += y_step;
            if (is_snapshot(p, ahead + j)) store_rows<COUNT, ROWS>(p, at, ahead + j, lane, state);
#pragma unroll
            for (int i = 0; i < COUNT; i++) b[i] = next_b[i], c[i] = next_c[i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(128) ssm_scan_head_1(SsmScanParams p) { head<1, 1>(p); }
extern "C" __global__ void __launch_bounds__(128) ssm_scan_head_2(SsmScanParams p) { head<2, 1>(p); }
extern "C" __global__ void __launch_bounds__(128) ssm_scan_head_3(SsmScanParams p) { head<3, 1>(p); }
extern "C" __global__ void __launch_bounds__(128) ssm_scan_head_4(SsmScanParams p) { head<4, 1>(p); }
extern "C" __global__ void __launch_bounds__(128) ssm_scan_head_5(SsmScanParams p) { head<5, 1>(p); }
extern "C" __global__ void __launch_bounds__(128) ssm_scan_head_6(SsmScanParams p) { head<6, 1>(p); }
extern "C" __global__ void __launch_bounds__(128) ssm_scan_head_7(SsmScanParams p) { head<7, 1>(p); }
extern "C" __global__ void __launch_bounds__(128) ssm_scan_head_8(SsmScanParams p) { head<8, 1>(p); }
extern "C" __global__ void __launch_bounds__(128) ssm_scan_head_1x4(SsmScanParams p) { head<1, 4>(p); }
extern "C" __global__ void __launch_bounds__(128) ssm_scan_head_2x4(SsmScanParams p) { head<2, 4>(p); }
extern "C" __global__ void __launch_bounds__(128) ssm_scan_head_4x4(SsmScanParams p) { head<4, 4>(p); }

// ---- One decay a state: LANES lanes a channel, element n = l + LANES i for lane l of them.
template <int COUNT, int LANES>
__device__ __forceinline__ void store_channel(
    const SsmScanParams& p, const Place& at, i64 token, int l, const float* state
) {
    int states = (int)p.s.ne[0];
    float* target = snapshot(p, token) + packed_row(p, at);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (l + LANES * i < states) target[l + LANES * i] = state[i];
}

template <int COUNT, int LANES>
__device__ __forceinline__ void channel(const SsmScanParams& p) {
    if (!ids_hold(p)) return;
    int l = threadIdx.x % LANES;
    int states = (int)p.s.ne[0];
    i64 channels = p.s.ne[2] * p.x.ne[3];
    if (channels == 0) return;
    i64 index = ((i64)blockIdx.x * (WARPS * WARP) + threadIdx.x) / LANES;
    // Lanes without a channel take part in the exchanges of their warp with the last one's, and write nothing.
    bool valid = index < channels;
    Place at;
    at.row = 0;
    at.sequence = divide(min(index, channels - 1), p.s.ne[2], &at.head);

    float state[COUNT], rates[COUNT];
    const char* start = start_of(p, at);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        bool there = l + LANES * i < states;
        state[i] = there ? start_element(p, start, l + LANES * i) : 0.0f;
        rates[i] = there ? rate(p, l + LANES * i, at.head) : 0.0f;
    }
    if (p.first == p.end) {
        if (valid) store_channel<COUNT, LANES>(p, at, p.snapshot_first, l, state);
        return;
    }

    const char* b_at = projection(p, p.b, at) + p.first * p.b.nb[2];
    const char* c_at = projection(p, p.c, at) + p.first * p.c.nb[2];
    float b[COUNT], c[COUNT];
    load_elements<COUNT, LANES>(b_at, l, states, b);
    load_elements<COUNT, LANES>(c_at, l, states, c);
    for (i64 ahead = p.first; ahead < p.end; ahead += LANES) {
        int count = (int)min(p.end - ahead, (i64)LANES);
        // Of token ahead + l.
        float steps = 0.0f, inputs = 0.0f, y = 0.0f;
        if (l < count) {
            steps = time_step(p, at, ahead + l);
            inputs = input(p, at, ahead + l) * steps;
        }
        for (int j = 0; j < count; j++) {
            bool more = ahead + j + 1 < p.end;
            b_at += more ? p.b.nb[2] : 0;
            c_at += more ? p.c.nb[2] : 0;
            float next_b[COUNT], next_c[COUNT];
            load_elements<COUNT, LANES>(b_at, l, states, next_b);
            load_elements<COUNT, LANES>(c_at, l, states, next_c);
            float step = __shfl_sync(ALL_LANES, steps, j, LANES);
            float x = __shfl_sync(ALL_LANES, inputs, j, LANES);
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                // A step of 0 leaves the state alone, whatever x is; so do elements past the last.
                bool moves = step != 0.0f && l + LANES * i < states;
                float moved = fmaf(state[i], exp2f(step * rates[i]), b[i] * x);
                state[i] = moves ? moved : state[i];
                sum = fmaf(state[i], c[i], sum);
            }
#pragma unroll
            for (int offset = LANES / 2; offset > 0; offset >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
            y = l == j ? sum : y;
            if (valid && is_snapshot(p, ahead + j)) store_channel<COUNT, LANES>(p, at, ahead + j, l, state);
#pragma unroll
            for (int i = 0; i < COUNT; i++) b[i] = next_b[i], c[i] = next_c[i];
        }
        if (valid && l < count) *y_at(p, at, ahead + l) = y;
    }
}

extern "C" __global__ void __launch_bounds__(128) ssm_scan_channel_1(SsmScanParams p) { channel<1, 8>(p); }
extern "C" __global__ void __launch_bounds__(128) ssm_scan_channel_2(SsmScanParams p) { channel<2, 8>(p); }
extern "C" __global__ void __launch_bounds__(128) ssm_scan_channel_4(SsmScanParams p) { channel<4, 8>(p); }
extern "C" __global__ void __launch_bounds__(128) ssm_scan_channel_8(SsmScanParams p) { channel<8, 8>(p); }
extern "C" __global__ void __launch_bounds__(128) ssm_scan_channel_4x32(SsmScanParams p) { channel<4, 32>(p); }
extern "C" __global__ void __launch_bounds__(128) ssm_scan_channel_8x32(SsmScanParams p) { channel<8, 32>(p); }

// ---- Any number of states and any strides, in the same order: a warp a row, the state in the last snapshot's
// memory, where each lane finds what it wrote itself.
extern "C" __global__ void __launch_bounds__(128) ssm_scan_rows(SsmScanParams p) {
    if (!ids_hold(p)) return;
    int lane = threadIdx.x % WARP;
    i64 states = p.s.ne[0];
    Place at;
    i64 index = (i64)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (index >= p.s.ne[1] * p.s.ne[2] * p.x.ne[3]) return;
    i64 outer = divide(index, p.s.ne[1], &at.row);
    at.sequence = divide(outer, p.s.ne[2], &at.head);
    i64 first_element = lane < p.lanes ? lane : states;
    bool per_state = p.a.ne[0] != 1;
    const char* start = start_of(p, at);
    float* state = snapshot(p, p.snapshot_first + p.snapshot_count - 1) + packed_row(p, at);
    for (i64 n = first_element; n < states; n += p.lanes) state[n] = start_element(p, start, n);

    const char* b_at = projection(p, p.b, at) + p.first * p.b.nb[2];
    const char* c_at = projection(p, p.c, at) + p.first * p.c.nb[2];
    for (i64 token = p.first; token < p.end; token++) {
        float step = time_step(p, at, token);
        float x = input(p, at, token) * step;
        float decay = per_state ? 0.0f : exp2f(step * rate(p, 0, at.head));
        float* copy = is_snapshot(p, token) ? snapshot(p, token) + packed_row(p, at) : state;
        float sum = 0.0f;
        for (i64 n = first_element; n < states; n += p.lanes) {
            float value = state[n];
            if (step != 0.0f) {
                if (per_state) decay = exp2f(step * rate(p, n, at.head));
                value = fmaf(value, decay, *(const float*)(b_at + n * p.b.nb[0]) * x);
                state[n] = value;
            }
            sum = fmaf(value, *(const float*)(c_at + n * p.c.nb[0]), sum);
            if (copy != state) copy[n] = value;
        }
        for (int offset = p.lanes / 2; offset > 0; offset >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
        if (lane == 0) *y_at(p, at, token) = sum;
        b_at += p.b.nb[2];
        c_at += p.c.nb[2];
    }
}
