// What threads do together. The last to arrive does the work for all and goes on without a switch.
#include "worker.h"
#include <algorithm>
#include <cstdio>

namespace emu {

// ---- The block's barrier.

static bool same(Site a, Site b) {
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

// CUDA lets threads of a block meet at different barriers and counts those that returned as arrived. Both are
// nearly always mistakes, and neither is portable.
static void check_barrier(const Worker* own) {
    const Barrier& barrier = own->barrier;
    if (barrier.mixed)
        fail(LAUNCH_FAILED,
             "__syncthreads: threads of one block met at different barriers (one is %s:%d, another %s:%d)",
             barrier.site.file, barrier.site.line, barrier.other_site.file, barrier.other_site.line);
    if (own->done)
        fail(LAUNCH_FAILED, "__syncthreads at %s:%d: %d of %d threads had already returned", barrier.site.file,
             barrier.site.line, own->done, own->thread_count);
}

static void release_barrier(Worker* own, const Thread* last) {
    Barrier& barrier = own->barrier;
    barrier.count_true_released = barrier.count_true;
    barrier.count_released = barrier.waiting;
    barrier.epoch++;
    for (int i = 0; i < own->thread_count; i++) {
        Thread& thread = own->threads[i];
        if (thread.state == State::AtBarrier && &thread != last) own->make_ready(thread, false);
    }
    barrier.waiting = 0;
    barrier.site = {};
    barrier.mixed = false;
}

static void arrive(int predicate, Site site) {
    Worker* own = worker;
    Thread* thread = current_thread;
    Barrier& barrier = own->barrier;
    thread->site = site;
    if (!barrier.site.file) {
        barrier.site = site;
        barrier.count_true = 0;
    } else if (!same(barrier.site, site)) {
        barrier.mixed = true;
        barrier.other_site = site;
    }
    barrier.count_true += predicate != 0;
    barrier.waiting++;
    if (barrier.waiting + own->done == own->thread_count) {
        check_barrier(own);
        release_barrier(own, thread);
        return;
    }
    thread->state = State::AtBarrier;
    wait_turn();
}

void barrier(Site site) { arrive(0, site); }

int barrier_combine(Combine how, int predicate, Site site) {
    arrive(predicate, site);
    const Barrier& barrier = worker->barrier;
    switch (how) {
        case Combine::Or: return barrier.count_true_released > 0;
        case Combine::And: return barrier.count_true_released == barrier.count_released;
        default: return barrier.count_true_released;
    }
}

void barrier_after_end() {
    Worker* own = worker;
    if (!own->barrier.waiting || own->barrier.waiting + own->done != own->thread_count) return;
    check_barrier(own);
    release_barrier(own, nullptr);
}

// ---- Warp operations.

// Lanes of a mask, lowest first.
template <class Visit>
static void for_lanes(uint32_t mask, Visit visit) {
    for (; mask; mask &= mask - 1) visit(__builtin_ctz(mask));
}

static uint64_t smaller(uint64_t a, uint64_t b, bool is_signed) {
    bool less = is_signed ? (int64_t)a < (int64_t)b : (uint32_t)a < (uint32_t)b;
    return less ? a : b;
}

static uint64_t combine(WarpOp op, uint64_t all, uint64_t one, bool is_signed) {
    switch (op) {
        case WarpOp::Any:
        case WarpOp::ReduceOr: return all | one;
        case WarpOp::All:
        case WarpOp::ReduceAnd: return all & one;
        case WarpOp::ReduceXor: return all ^ one;
        case WarpOp::ReduceAdd: return all + one;
        case WarpOp::ReduceMin: return smaller(all, one, is_signed);
        default: return smaller(all, one, is_signed) == all ? one : all;
    }
}

// The same result for all lanes.
static void finish_reduction(Thread* lanes, uint32_t mask, WarpOp op) {
    const WarpRequest& first = lanes[__builtin_ctz(mask)].request;
    uint64_t all = first.value;
    for_lanes(mask & (mask - 1), [&](int lane) {
        all = combine(op, all, lanes[lane].request.value, first.argument);
    });
    for_lanes(mask, [&](int lane) { lanes[lane].request.result = all; });
}

static void finish_ballot(Thread* lanes, uint32_t mask) {
    uint64_t votes = 0;
    for_lanes(mask, [&](int lane) { votes |= lanes[lane].request.value << lane; });
    for_lanes(mask, [&](int lane) { lanes[lane].request.result = votes; });
}

static void finish_match(Thread* lanes, uint32_t mask) {
    for_lanes(mask, [&](int lane) {
        uint64_t equal = 0;
        for_lanes(mask, [&](int other) {
            if (lanes[other].request.value == lanes[lane].request.value) equal |= 1u << other;
        });
        lanes[lane].request.result = equal;
    });
}

// The lane that a shuffle reads; the lane itself where that would leave its part of the warp.
static int source_lane(WarpOp op, int lane, const WarpRequest& request) {
    int base = lane & ~(request.width - 1);
    int end = base + request.width;
    int source;
    switch (op) {
        case WarpOp::Shuffle: return base | (request.argument & (request.width - 1));
        case WarpOp::ShuffleUp: source = lane - request.argument; break;
        case WarpOp::ShuffleDown: source = lane + request.argument; break;
        default: source = lane ^ request.argument; break;
    }
    return source >= base && source < end ? source : lane;
}

static void finish_shuffle(Thread* lanes, uint32_t mask, WarpOp op) {
    for_lanes(mask, [&](int lane) {
        Thread& thread = lanes[lane];
        int source = source_lane(op, lane, thread.request);
        if (!(mask >> source & 1)) {
            current_thread = &thread;
            fail(LAUNCH_FAILED, "warp shuffle at %s:%d reads lane %d, which is not in the mask 0x%08x",
                 thread.site.file, thread.site.line, source, mask);
        }
        thread.request.result = lanes[source].request.value;
    });
}

static void finish(Thread* lanes, uint32_t mask, WarpOp op) {
    switch (op) {
        case WarpOp::Sync: for_lanes(mask, [&](int lane) { lanes[lane].warp_syncs++; }); break;
        case WarpOp::Shuffle:
        case WarpOp::ShuffleUp:
        case WarpOp::ShuffleDown:
        case WarpOp::ShuffleXor: finish_shuffle(lanes, mask, op); break;
        case WarpOp::Ballot: finish_ballot(lanes, mask); break;
        case WarpOp::MatchAny: finish_match(lanes, mask); break;
        default: finish_reduction(lanes, mask, op); break;
    }
}

// Whether all lanes of the mask wait in this operation with this mask.
static bool all_agree(const Thread* lanes, uint32_t mask, WarpOp op) {
    bool agree = true;
    for_lanes(mask, [&](int lane) {
        const WarpRequest& request = lanes[lane].request;
        agree &= request.mask == mask && request.op == op;
    });
    return agree;
}

uint64_t warp_operation(WarpRequest request, Site site) {
    Worker* own = worker;
    Thread* thread = current_thread;
    Thread* lanes = &own->threads[thread->warp * 32];
    uint32_t mask = request.mask;
    thread->request = request;
    thread->site = site;
    if (!(mask >> thread->lane & 1))
        fail(LAUNCH_FAILED, "warp operation at %s:%d: the calling lane %d is not in the mask 0x%08x", site.file,
             site.line, thread->lane, mask);
    uint32_t& arrived = own->arrived[thread->warp];
    arrived |= 1u << thread->lane;
    if ((arrived & mask) == mask && all_agree(lanes, mask, request.op)) {
        finish(lanes, mask, request.op);
        arrived &= ~mask;
        // To the front, lowest lane first: the warp goes on together.
        for (int lane = 31; lane >= 0; lane--)
            if (mask >> lane & 1 && lane != thread->lane) own->make_ready(lanes[lane], true);
        return thread->request.result;
    }
    thread->state = State::InWarp;
    wait_turn();
    return thread->request.result;
}

uint32_t active_lanes() {
    const Worker* own = worker;
    uint32_t mask = 0;
    for (int lane = 0; lane < 32; lane++) {
        int thread = current_thread->warp * 32 + lane;
        if (thread < own->thread_count && own->threads[thread].state != State::Done) mask |= 1u << lane;
    }
    return mask;
}

// ---- Divergence.

static const char* name_of(WarpOp op) {
    static const char* const names[] = {"__syncwarp",     "__shfl_sync",   "__shfl_up_sync",
                                        "__shfl_down_sync", "__shfl_xor_sync", "__ballot_sync",
                                        "__any_sync",     "__all_sync",    "__match_any_sync"};
    return op <= WarpOp::MatchAny ? names[(int)op] : "__reduce_sync";
}

static bool wait_alike(const Thread& a, const Thread& b) {
    return a.state == b.state && a.site.file == b.site.file && a.site.line == b.site.line &&
           (a.state != State::InWarp || a.request.mask == b.request.mask);
}

void report_divergence(Worker* own) {
    own->code = LAUNCH_FAILED;
    char* text = own->message;
    size_t room = sizeof own->message;
    auto append = [&](int length) {
        size_t used = std::min((size_t)length, room - 1);
        text += used;
        room -= used;
    };
    uint3 at = own->block.index;
    append(snprintf(text, room,
                    "kernel %s block (%u,%u,%u): divergence, no thread can go on: %d of %d returned",
                    own->launch->kernel->name, at.x, at.y, at.z, own->done, own->thread_count));
    const Thread* previous = nullptr;
    for (int i = 0; i < own->thread_count; i++) {
        const Thread& thread = own->threads[i];
        if (thread.state == State::Done || (previous && wait_alike(thread, *previous))) continue;
        previous = &thread;
        int alike = 0;
        for (int j = i; j < own->thread_count; j++) alike += wait_alike(own->threads[j], thread);
        if (thread.state == State::AtBarrier)
            append(snprintf(text, room, "; %d wait in __syncthreads at %s:%d", alike, thread.site.file,
                            thread.site.line));
        else
            append(snprintf(text, room, "; %d wait in %s(mask 0x%08x) at %s:%d", alike,
                            name_of(thread.request.op), thread.request.mask, thread.site.file,
                            thread.site.line));
    }
}

}  // namespace emu
