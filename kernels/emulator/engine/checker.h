// The memory and race checker, in libraries compiled for it.
#pragma once

namespace emu {

#ifdef EMU_CHECK
constexpr bool CHECKED = true;
void checker_begin_launch();
void checker_begin_block();
#else
constexpr bool CHECKED = false;
inline void checker_begin_launch() {}
inline void checker_begin_block() {}
#endif

}  // namespace emu
