#include "fault.h"
#include "worker.h"
#include <csignal>
#include <cstdio>
#include <dlfcn.h>
#include <mutex>
#include <ucontext.h>

namespace emu {

const char* where(const void* return_address) {
    // A message names at most two places.
    static thread_local char texts[2][256];
    static thread_local int turn;
    char* text = texts[turn++ % 2];
    Dl_info library;
    if (!dladdr(return_address, &library)) return "an unknown place";
    char command[512];
    uintptr_t offset = (uintptr_t)return_address - 1 - (uintptr_t)library.dli_fbase;
    snprintf(command, sizeof command, "addr2line -sCfpe '%s' 0x%lx 2>/dev/null", library.dli_fname,
             (unsigned long)offset);
    FILE* output = popen(command, "r");
    if (!output || !fgets(text, sizeof texts[0], output)) strcpy(text, "an unknown place (no addr2line)");
    if (output) pclose(output);
    text[strcspn(text, "\n")] = 0;
    return text;
}

static constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
static struct sigaction previous[sizeof SIGNALS / sizeof *SIGNALS];

struct Fault {
    int signal;
    uintptr_t address;
    void* return_address;  // one past the instruction, as `where` expects
};
static __thread Fault fault;

// Continues here instead of at the instruction that faulted.
static void report_fault() {
    const char* place = where(fault.return_address);
    if (fault.signal == SIGILL)
        fail(LAUNCH_FAILED, "undefined behaviour (index, alignment, shift or overflow) at %s", place);
    if (fault.signal == SIGFPE) fail(LAUNCH_FAILED, "arithmetic exception (division by zero?) at %s", place);
    fail(ILLEGAL_ADDRESS, "illegal memory access, address 0x%lx, at %s", (unsigned long)fault.address, place);
}

// A fault outside kernels is for whoever watched before.
static void pass_on(int signal, siginfo_t* info, void* context) {
    for (size_t i = 0; i < sizeof SIGNALS / sizeof *SIGNALS; i++) {
        if (SIGNALS[i] != signal) continue;
        if (previous[i].sa_flags & SA_SIGINFO) previous[i].sa_sigaction(signal, info, context);
        else sigaction(signal, &previous[i], nullptr);  // the instruction runs again, and faults there
    }
}

static void on_fault(int signal, siginfo_t* info, void* context) {
    if (!current_thread) return pass_on(signal, info, context);
    greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
    fault = {signal, (uintptr_t)info->si_addr, (void*)(registers[REG_RIP] + 1)};
    // Eight bytes below a multiple of 16, as after a call.
    uintptr_t top = (uintptr_t)(worker->failure_stack + sizeof worker->failure_stack) & ~(uintptr_t)15;
    registers[REG_RSP] = (greg_t)(top - 8);
    registers[REG_RIP] = (greg_t)report_fault;
}

void install_fault_handlers() {
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction action {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        for (size_t i = 0; i < sizeof SIGNALS / sizeof *SIGNALS; i++)
            sigaction(SIGNALS[i], &action, &previous[i]);
    });
}

void use_signal_stack(char* stack, size_t bytes) {
    stack_t signal_stack{};
    signal_stack.ss_sp = stack;
    signal_stack.ss_size = bytes;
    sigaltstack(&signal_stack, nullptr);
}

void leave_signal_stack() {
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
}

}  // namespace emu
