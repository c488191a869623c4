// Faults of the host's processor become errors of the kernel.
#pragma once
#include <cstddef>

namespace emu {

// Watches for faults from now on; those outside kernels go where they went before.
void install_fault_handlers();
// Handlers run on a stack of their own: the fiber's may be what overflowed.
void use_signal_stack(char* stack, size_t bytes);
void leave_signal_stack();

}  // namespace emu
