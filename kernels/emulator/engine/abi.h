// What a library of kernels gives to the program that loads it: its kernels, and a way to run one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

extern "C" {

// A kernel and what its parameters look like. Kernels form a list.
struct EmuKernel {
    const char* name;
    void (*call)(void** arguments);
    uint32_t parameter_count;
    const uint32_t* parameter_bytes;
    const EmuKernel* next;
};

struct EmuLaunch {
    const EmuKernel* kernel;
    void** arguments;  // one pointer per parameter
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t shared_bytes;  // dynamic
    uint32_t threads;       // of the host; 0 for one per core
    uint32_t seed;          // 0 for lanes, warps and blocks in order
    // Finds the allocation that holds an address: 1 and its bounds, or 0.
    int (*lookup)(uintptr_t address, uintptr_t* low, uintptr_t* high);
};

// All else in the library is hidden, so that calls inside it are direct and may be inlined.
#define EMU_EXPORTED __attribute__((visibility("default")))

EMU_EXPORTED const EmuKernel* emu_kernels(void);

// Runs a grid to its end: 0, or a CUresult and a text.
EMU_EXPORTED int emu_run(const EmuLaunch* launch, char* message, size_t message_bytes);

}  // extern "C"

namespace emu {

void add_kernel(EmuKernel* kernel);

// The sizes of a kernel's parameters and the function that unpacks them follow from the kernel's own type.
template <auto F>
struct Registered;

template <class... P, void (*F)(P...)>
struct Registered<F> {
    static constexpr uint32_t parameter_bytes[sizeof...(P) + 1] = {(uint32_t)sizeof(P)..., 0};

    template <size_t... I>
    __attribute__((no_sanitize("thread", "undefined"))) static void unpack(void** arguments,
                                                                           std::index_sequence<I...>) {
        F(*(std::remove_cv_t<std::remove_reference_t<P>>*)arguments[I]...);
    }

    __attribute__((no_sanitize("thread", "undefined"))) static void call(void** arguments) {
        unpack(arguments, std::index_sequence_for<P...>{});
    }

    EmuKernel kernel;

    explicit Registered(const char* name) : kernel{name, call, sizeof...(P), parameter_bytes, nullptr} {
        add_kernel(&kernel);
    }
};

}  // namespace emu

#define EMU_KERNEL(name) static emu::Registered<&name> emu_registered_##name(#name);
