#include "fiber.h"
#include <sys/mman.h>

// By the calling convention, a function preserves these six registers and the stack pointer: all there is to save.
asm(R"(
.text
.globl emu_switch
.type emu_switch,@function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emu_switch,.-emu_switch
.globl emu_fiber_entry
.type emu_fiber_entry,@function
emu_fiber_entry:
    xorl %ebp, %ebp
    call emu_fiber_main
    ud2
.size emu_fiber_entry,.-emu_fiber_entry
)");

namespace emu {

constexpr int SAVED_REGISTERS = 6;
constexpr size_t CACHE_LINE = 64;

Fibers::~Fibers() {
    if (arena_) munmap(arena_, ARENA_BYTES);
    for (Fiber* fiber : all_) delete fiber;
}

Fiber* Fibers::take() {
    Fiber* fiber;
    if (idle_.empty()) {
        fiber = make();
    } else {
        fiber = idle_.back();
        idle_.pop_back();
    }
    if (fiber->fresh) start_at_entry(fiber);
    return fiber;
}

void Fibers::all_idle(bool drop_frames) {
    idle_ = all_;
    if (!drop_frames) return;
    for (Fiber* fiber : all_) fiber->fresh = true;
}

Fiber* Fibers::make() {
    if (!arena_) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        arena_ = (char*)mmap(nullptr, ARENA_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
        for (int i = 0; i < THREADS_MAX; i++)
            mprotect(arena_ + i * (STACK_BYTES + GUARD_BYTES), GUARD_BYTES, PROT_NONE);
    }
    char* lowest = arena_ + all_.size() * (STACK_BYTES + GUARD_BYTES) + GUARD_BYTES;
    all_.push_back(new Fiber{nullptr, lowest, true});
    return all_.back();
}

void Fibers::start_at_entry(Fiber* fiber) {
    // Stacks at equal distances would all use the same few sets of the cache: each starts elsewhere in its page.
    size_t number = (size_t)(fiber->lowest - arena_) / (STACK_BYTES + GUARD_BYTES);
    size_t colour = number * 3 * CACHE_LINE % GUARD_BYTES;
    // Two words below the top, the entry finds the stack aligned as after a call.
    void** top = (void**)(fiber->lowest + STACK_BYTES - colour) - 2;
    *--top = (void*)emu_fiber_entry;
    for (int i = 0; i < SAVED_REGISTERS; i++) *--top = nullptr;
    fiber->stack_pointer = top;
    fiber->fresh = false;
}

}  // namespace emu
