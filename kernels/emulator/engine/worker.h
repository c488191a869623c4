// A host thread that runs blocks, one at a time.
#pragma once
#include "cuda_emu.h"
#include "fiber.h"

// In the engine's own code these are ordinary words.
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

// CUresults that the engine gives.
constexpr int ILLEGAL_ADDRESS = 700;
constexpr int DEVICE_ASSERT = 710;
constexpr int LAUNCH_FAILED = 719;

constexpr size_t DYNAMIC_SHARED_BYTES = 227 << 10;
constexpr int WARPS_MAX = emu::THREADS_MAX / 32;

// Every `extern __shared__` array.
extern "C" __thread unsigned char emu_dynamic_shared[DYNAMIC_SHARED_BYTES];

namespace emu {

// Ready threads, in the order in which they go on.
class ReadyQueue {
  public:
    void clear() { head_ = tail_ = 0; }
    bool empty() const { return head_ == tail_; }
    void push_back(int thread) { slots_[tail_++ % SLOTS] = (uint16_t)thread; }
    void push_front(int thread) { slots_[--head_ % SLOTS] = (uint16_t)thread; }
    int pop() { return slots_[head_++ % SLOTS]; }

  private:
    static constexpr uint32_t SLOTS = 4096;
    uint16_t slots_[SLOTS];
    uint32_t head_ = 0;
    uint32_t tail_ = 0;
};

// The block's barrier.
struct Barrier {
    int waiting;
    Site site;  // of the first to arrive; file is null when nobody waits
    bool mixed;  // threads arrived at different places
    Site other_site;
    int count_true;  // of the threads' predicates
    int count_true_released;
    int count_released;
    uint32_t epoch;  // barriers passed; never reset, so that it tells blocks apart too
};

struct Worker {
    const EmuLaunch* launch = nullptr;
    Block block;
    Thread threads[THREADS_MAX];
    int thread_count = 0;
    int done = 0;
    Barrier barrier;
    uint32_t arrived[WARPS_MAX];  // lanes that wait in a warp operation
    ReadyQueue ready;
    Fibers fibers;
    void* scheduler = nullptr;  // its stack pointer while a fiber runs
    int code = 0;               // what the block failed with
    char message[2048];
    char signal_stack[32 << 10];
    char failure_stack[64 << 10];  // on which a fault is reported

    Worker();
    ~Worker();
    int index_of(const Thread* thread) const { return (int)(thread - threads); }
    Thread* next_ready() { return ready.empty() ? nullptr : &threads[ready.pop()]; }
    void make_ready(Thread& thread, bool first);
    uint32_t block_number() const;
};

extern __thread Worker* worker;

// Runs one block to its end or to its first failure.
void run_block(Worker* own, uint32_t x, uint32_t y, uint32_t z);
// Gives the host thread to the next ready thread, until the current one is ready again.
void wait_turn();
// Ends the block: nothing on the fibers' stacks is unwound.
[[noreturn]] void fail(int code, const char* format, ...) __attribute__((format(printf, 2, 3)));
// Releases a barrier if the thread that has just ended was the last to be waited for.
void barrier_after_end();
// Says what a block's threads wait for when none can go on.
void report_divergence(Worker* own);
// Function, file and line of a return address.
const char* where(const void* return_address);

}  // namespace emu
