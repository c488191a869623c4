// Fibers: stacks that one host thread switches between.
#pragma once
#include <cstddef>
#include <vector>

namespace emu {

constexpr size_t STACK_BYTES = 128 << 10;
constexpr size_t GUARD_BYTES = 4096;
constexpr int THREADS_MAX = 1024;
constexpr size_t ARENA_BYTES = THREADS_MAX * (STACK_BYTES + GUARD_BYTES);

struct Fiber {
    void* stack_pointer;
    char* lowest;
    bool fresh;  // to be started at its entry
};

// The fibers of one host thread. Their stacks are one mapping, each above a guard page.
class Fibers {
  public:
    Fibers() = default;
    Fibers(const Fibers&) = delete;
    ~Fibers();

    // A fiber that nobody uses.
    Fiber* take();
    void give_back(Fiber* fiber) { idle_.push_back(fiber); }
    // Between blocks every fiber is idle. After a failure their frames are dropped where they stand.
    void all_idle(bool drop_frames);
    bool on_a_stack(uintptr_t address) const { return address - (uintptr_t)arena_ < ARENA_BYTES; }

  private:
    Fiber* make();
    void start_at_entry(Fiber* fiber);

    char* arena_ = nullptr;
    std::vector<Fiber*> all_;
    std::vector<Fiber*> idle_;
};

}  // namespace emu

extern "C" {
// Saves the running context and continues another.
void emu_switch(void** save_stack_pointer, void* load_stack_pointer);
// Where a fresh fiber begins; calls emu_fiber_main.
void emu_fiber_entry();
void emu_fiber_main();
}
