// Who a thread is, and what threads do together: barriers and warp operations.
#pragma once
#include <cstring>

namespace emu {

// Where in a kernel's source a call stands.
struct Site {
    const char* file;
    int line;
};
#define EMU_SITE emu::Site site = {__builtin_FILE(), __builtin_LINE()}

enum class WarpOp : uint8_t {
    Sync,
    Shuffle,
    ShuffleUp,
    ShuffleDown,
    ShuffleXor,
    Ballot,
    Any,
    All,
    MatchAny,
    ReduceAdd,
    ReduceMin,
    ReduceMax,
    ReduceAnd,
    ReduceOr,
    ReduceXor,
};

enum class Combine { Or, And, Count };

enum class State : uint8_t { Ready, Running, AtBarrier, InWarp, Done };

struct Fiber;

// What a thread brings to a warp operation and gets from it.
struct WarpRequest {
    WarpOp op;
    uint32_t mask;
    int argument;
    int width;
    uint64_t value;
    uint64_t result;
};

struct Thread {
    uint3 index;
    uint16_t lane;
    uint16_t warp;
    State state;
    Fiber* fiber;
    WarpRequest request;
    Site site;            // where it waits
    uint32_t warp_syncs;  // __syncwarp calls so far
};

struct Block {
    uint3 index;
    dim3 threads;
    dim3 grid;
};

extern __thread Thread* current_thread;
extern __thread Block* current_block;

void barrier(Site site);
int barrier_combine(Combine how, int predicate, Site site);
uint64_t warp_operation(WarpRequest request, Site site);
uint32_t active_lanes();
[[noreturn]] void trap(const char* what, Site site);

template <class T>
uint64_t to_bits(T value) {
    static_assert(sizeof(T) <= 8, "warp operations move at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}

template <class T>
T from_bits(uint64_t bits) {
    T value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

template <class T>
T shuffle(WarpOp op, unsigned mask, T value, int argument, int width, Site site) {
    return from_bits<T>(warp_operation({op, mask, argument, width, to_bits(value), 0}, site));
}

inline uint64_t vote(WarpOp op, unsigned mask, int predicate, Site site) {
    return warp_operation({op, mask, 0, 32, (uint64_t)(predicate != 0), 0}, site);
}

template <class T>
T reduce(WarpOp op, unsigned mask, T value, Site site) {
    int is_signed = std::is_signed<T>::value;
    return (T)warp_operation({op, mask, is_signed, 32, (uint64_t)(int64_t)value, 0}, site);
}

}  // namespace emu

#define threadIdx (emu::current_thread->index)
#define blockIdx (emu::current_block->index)
#define blockDim (emu::current_block->threads)
#define gridDim (emu::current_block->grid)
constexpr int warpSize = 32;

inline void __syncthreads(EMU_SITE) { emu::barrier(site); }
inline int __syncthreads_or(int predicate, EMU_SITE) {
    return emu::barrier_combine(emu::Combine::Or, predicate, site);
}
inline int __syncthreads_and(int predicate, EMU_SITE) {
    return emu::barrier_combine(emu::Combine::And, predicate, site);
}
inline int __syncthreads_count(int predicate, EMU_SITE) {
    return emu::barrier_combine(emu::Combine::Count, predicate, site);
}

inline void __syncwarp(unsigned mask = ~0u, EMU_SITE) {
    emu::warp_operation({emu::WarpOp::Sync, mask, 0, 32, 0, 0}, site);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, EMU_SITE) {
    return emu::shuffle(emu::WarpOp::Shuffle, mask, value, lane, width, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32, EMU_SITE) {
    return emu::shuffle(emu::WarpOp::ShuffleUp, mask, value, (int)distance, width, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32, EMU_SITE) {
    return emu::shuffle(emu::WarpOp::ShuffleDown, mask, value, (int)distance, width, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, EMU_SITE) {
    return emu::shuffle(emu::WarpOp::ShuffleXor, mask, value, lanes, width, site);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, EMU_SITE) {
    return (unsigned)emu::vote(emu::WarpOp::Ballot, mask, predicate, site);
}
inline int __any_sync(unsigned mask, int predicate, EMU_SITE) {
    return (int)emu::vote(emu::WarpOp::Any, mask, predicate, site);
}
inline int __all_sync(unsigned mask, int predicate, EMU_SITE) {
    return (int)emu::vote(emu::WarpOp::All, mask, predicate, site);
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, EMU_SITE) {
    return (unsigned)emu::warp_operation({emu::WarpOp::MatchAny, mask, 0, 32, emu::to_bits(value), 0}, site);
}
template <class T>
T __reduce_add_sync(unsigned mask, T value, EMU_SITE) {
    return emu::reduce(emu::WarpOp::ReduceAdd, mask, value, site);
}
template <class T>
T __reduce_min_sync(unsigned mask, T value, EMU_SITE) {
    return emu::reduce(emu::WarpOp::ReduceMin, mask, value, site);
}
template <class T>
T __reduce_max_sync(unsigned mask, T value, EMU_SITE) {
    return emu::reduce(emu::WarpOp::ReduceMax, mask, value, site);
}
template <class T>
T __reduce_and_sync(unsigned mask, T value, EMU_SITE) {
    return emu::reduce(emu::WarpOp::ReduceAnd, mask, value, site);
}
template <class T>
T __reduce_or_sync(unsigned mask, T value, EMU_SITE) {
    return emu::reduce(emu::WarpOp::ReduceOr, mask, value, site);
}
template <class T>
T __reduce_xor_sync(unsigned mask, T value, EMU_SITE) {
    return emu::reduce(emu::WarpOp::ReduceXor, mask, value, site);
}
inline unsigned __activemask() { return emu::active_lanes(); }

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

inline void __trap(EMU_SITE) { emu::trap("__trap()", site); }
#undef assert
#define assert(condition) \
    ((condition) ? (void)0 : emu::trap("device assert: " #condition, {__FILE__, __LINE__}))
