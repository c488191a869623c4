// Runs a block: its threads as fibers, each until it waits.
#include "worker.h"
#include "checker.h"
#include "fault.h"
#include <cstdarg>
#include <cstdio>

extern "C" {
__attribute__((aligned(1024))) __thread unsigned char emu_dynamic_shared[DYNAMIC_SHARED_BYTES];
}

namespace emu {

__thread Thread* current_thread;
__thread Block* current_block;
__thread Worker* worker;

Worker::Worker() {
    memset(threads, 0, sizeof threads);
    barrier.epoch = 1;
    use_signal_stack(signal_stack, sizeof signal_stack);
}

Worker::~Worker() { leave_signal_stack(); }

void Worker::make_ready(Thread& thread, bool first) {
    thread.state = State::Ready;
    if (first) ready.push_front(index_of(&thread));
    else ready.push_back(index_of(&thread));
}

uint32_t Worker::block_number() const {
    return block.index.x + block.grid.x * (block.index.y + block.grid.y * block.index.z);
}

static inline void resume(Worker* own, Thread* thread) {
    if (!thread->fiber) thread->fiber = own->fibers.take();
    thread->state = State::Running;
    current_thread = thread;
}

// Leaves a fiber for the next ready thread, or for the scheduler when there is none.
static inline void leave(Fiber* fiber) {
    Worker* own = worker;
    Thread* next = own->next_ready();
    if (!next) {
        current_thread = nullptr;
        emu_switch(&fiber->stack_pointer, own->scheduler);
        return;
    }
    resume(own, next);
    emu_switch(&fiber->stack_pointer, next->fiber->stack_pointer);
}

void wait_turn() { leave(current_thread->fiber); }

void fail(int code, const char* format, ...) {
    Worker* own = worker;
    const Thread* thread = current_thread;
    if (!own->code) {
        own->code = code;
        uint3 at = own->block.index;
        int length = snprintf(own->message, sizeof own->message,
                              "kernel %s block (%u,%u,%u) thread (%u,%u,%u): ", own->launch->kernel->name, at.x,
                              at.y, at.z, thread->index.x, thread->index.y, thread->index.z);
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(own->message + length, sizeof own->message - length, format, arguments);
        va_end(arguments);
    }
    current_thread = nullptr;
    void* abandoned;
    emu_switch(&abandoned, own->scheduler);
    __builtin_unreachable();
}

void trap(const char* what, Site site) { fail(DEVICE_ASSERT, "%s at %s:%d", what, site.file, site.line); }

// A fiber's life: threads one after the other.
extern "C" void emu_fiber_main() {
    for (;;) {
        Worker* own = worker;
        own->launch->kernel->call(own->launch->arguments);
        Thread* ended = current_thread;
        Fiber* fiber = ended->fiber;
        ended->state = State::Done;
        own->done++;
        barrier_after_end();
        Thread* next = own->next_ready();
        if (next && !next->fiber) {
            // A thread that has not begun takes this stack over without a switch.
            next->fiber = fiber;
            resume(own, next);
            continue;
        }
        if (next) own->ready.push_front(own->index_of(next));
        own->fibers.give_back(fiber);
        leave(fiber);
    }
}

static uint32_t next_random(uint32_t& state) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

// Makes all threads ready: in order, or with a seed in another order of warps and of the lanes in each.
static void queue_threads(Worker* own) {
    int warps = (own->thread_count + 31) / 32;
    int order[WARPS_MAX];
    for (int warp = 0; warp < warps; warp++) order[warp] = warp;
    uint32_t flip = 0;
    if (own->launch->seed) {
        uint3 at = own->block.index;
        uint32_t random = own->launch->seed * 2654435761u + at.x * 97 + at.y * 89 + at.z * 83 + 1;
        random += random == 0;
        for (int last = warps - 1; last > 0; last--)
            std::swap(order[last], order[next_random(random) % (uint32_t)(last + 1)]);
        flip = next_random(random) & 31;
    }
    own->ready.clear();
    for (int warp = 0; warp < warps; warp++)
        for (uint32_t lane = 0; lane < 32; lane++) {
            int thread = order[warp] * 32 + (int)(lane ^ flip);
            if (thread < own->thread_count) own->ready.push_back(thread);
        }
}

static void begin_block(Worker* own, uint3 index) {
    const EmuLaunch* launch = own->launch;
    const uint32_t* size = launch->block;
    own->block.index = index;
    own->block.threads = dim3(size[0], size[1], size[2]);
    own->block.grid = dim3(launch->grid[0], launch->grid[1], launch->grid[2]);
    own->thread_count = (int)(size[0] * size[1] * size[2]);
    own->done = 0;
    own->barrier = Barrier{0, {}, false, {}, 0, 0, 0, own->barrier.epoch + 1};
    int count = 0;
    for (uint32_t z = 0; z < size[2]; z++)
        for (uint32_t y = 0; y < size[1]; y++)
            for (uint32_t x = 0; x < size[0]; x++, count++) {
                uint16_t lane = count % 32, warp = count / 32;
                own->threads[count] = Thread{{x, y, z}, lane, warp, State::Ready, nullptr, {}, {}, 0};
            }
    memset(own->arrived, 0, sizeof own->arrived);
    // NaNs, so that reads of what nobody wrote show.
    memset(emu_dynamic_shared, 0xff, launch->shared_bytes);
    own->fibers.all_idle(false);
    current_block = &own->block;
    checker_begin_block();
}

void run_block(Worker* own, uint32_t x, uint32_t y, uint32_t z) {
    own->code = 0;
    begin_block(own, {x, y, z});
    queue_threads(own);
    while (own->done < own->thread_count && !own->code) {
        Thread* next = own->next_ready();
        if (!next) break;
        resume(own, next);
        emu_switch(&own->scheduler, next->fiber->stack_pointer);
    }
    if (!own->code && own->done < own->thread_count) report_divergence(own);
    current_thread = nullptr;
    current_block = nullptr;
    if (own->code) own->fibers.all_idle(true);
}

}  // namespace emu
