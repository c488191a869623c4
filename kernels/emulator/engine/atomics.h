// Atomic operations on 4 and 8 bytes, by compare and exchange.
#pragma once

namespace emu {

template <class T, class New>
T atomic_update(T* place, New new_value) {
    using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    Bits* bits = (Bits*)place;
    Bits old = __atomic_load_n(bits, __ATOMIC_RELAXED);
    for (;;) {
        Bits updated = (Bits)to_bits<T>(new_value(from_bits<T>(old)));
        if (__atomic_compare_exchange_n(bits, &old, updated, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return from_bits<T>(old);
    }
}

}  // namespace emu

#define EMU_ATOMIC(NAME, NEW_VALUE)                                            \
    template <class T, class U>                                                \
    T NAME(T* place, U operand) {                                              \
        T value = (T)operand;                                                  \
        return emu::atomic_update(place, [value](T old) -> T { return NEW_VALUE; }); \
    }

EMU_ATOMIC(atomicAdd, old + value)
EMU_ATOMIC(atomicSub, old - value)
EMU_ATOMIC(atomicMax, old > value ? old : value)
EMU_ATOMIC(atomicMin, old < value ? old : value)
EMU_ATOMIC(atomicExch, ((void)old, value))
EMU_ATOMIC(atomicAnd, old & value)
EMU_ATOMIC(atomicOr, old | value)
EMU_ATOMIC(atomicXor, old ^ value)
EMU_ATOMIC(atomicInc, old >= value ? T(0) : old + 1)
EMU_ATOMIC(atomicDec, (old == 0 || old > value) ? value : old - 1)

template <class T>
T atomicCAS(T* place, T expected, T value) {
    __atomic_compare_exchange_n(place, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
