// Follows every access of a kernel. The kernels are compiled with -fsanitize=thread, which calls a function at
// each access; these are those functions, instead of the library that usually comes with the option.
//
// For each four bytes it keeps who wrote them last and two who read them, in this launch. Two accesses race when
// one is a write, they are by different threads and nothing orders them: blocks of a launch are never ordered,
// threads of a block by a barrier, threads of a warp by __syncwarp too.
#ifdef EMU_CHECK
#include "checker.h"
#include "worker.h"
#include <algorithm>
#include <link.h>
#include <memory>
#include <unordered_map>

namespace emu {

struct Access {
    uint32_t block;
    uint32_t barriers;    // that the block had passed
    uint32_t warp_syncs;  // that the thread had passed
    uint16_t thread;
    uint8_t bytes;  // of the four, as a mask; 0 for no access
    bool atomic;
    const void* place;
};

struct Cell {
    uint32_t launch;
    uint32_t block;      // for shared memory: counted over launches
    uint8_t initialised;  // bytes that were written
    Access write;
    Access reads[2];
};

enum class Space { Shared, Global };

struct Range {
    uintptr_t low = 0;
    uintptr_t high = 0;
    bool holds(uintptr_t address, size_t bytes) const { return address >= low && address + bytes <= high; }
};

constexpr size_t CELLS_OF_A_PAGE = 1024;
constexpr size_t PAGE_BYTES = 4 * CELLS_OF_A_PAGE;

// One thread runs blocks in check mode, so that none of this is shared.
static std::unordered_map<uintptr_t, std::unique_ptr<Cell[]>> global_cells;
static std::unique_ptr<Cell[]> shared_cells;
static Range library;      // code and constants of this library
static Range shared;       // its thread-local variables, as the worker sees them
static Range allocation;   // that the last access of global memory was in
static uint32_t launches;
static uint32_t blocks;

static int find_library(dl_phdr_info* info, size_t, void*) {
    Range loaded{~(uintptr_t)0, 0}, local;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr)& segment = info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + segment.p_vaddr;
        if (segment.p_type == PT_LOAD) {
            loaded.low = std::min(loaded.low, start);
            loaded.high = std::max(loaded.high, start + segment.p_memsz);
        } else if (segment.p_type == PT_TLS) {
            local.low = (uintptr_t)info->dlpi_tls_data;
            local.high = local.low + segment.p_memsz;
        }
    }
    if (!loaded.holds((uintptr_t)&find_library, 1)) return 0;
    library = loaded;
    shared = local;
    return 1;
}

void checker_begin_launch() {
    launches++;
    allocation = {};
}

void checker_begin_block() {
    blocks++;
    if (library.high) return;
    // Thread-local memory has an address once it is touched.
    emu_dynamic_shared[0] = 0xff;
    dl_iterate_phdr(find_library, nullptr);
    shared_cells.reset(new Cell[(shared.high - shared.low) / 4 + 2]());
}

static bool races(const Access& old, const Access& now) {
    if (!(old.bytes & now.bytes) || (old.atomic && now.atomic)) return false;
    if (old.block != now.block) return true;
    if (old.thread == now.thread || old.barriers != now.barriers) return false;
    return old.thread / 32 != now.thread / 32 || old.warp_syncs >= now.warp_syncs;
}

[[noreturn]] static void report_race(Space space, uintptr_t address, bool write, const Access& now,
                                     const Access& old, bool old_is_write) {
    fail(LAUNCH_FAILED, "data race in %s memory (0x%lx): %s at %s, and %s by thread %u of block %u at %s",
         space == Space::Shared ? "shared" : "global", (unsigned long)address, write ? "write" : "read",
         where(now.place), old_is_write ? "write" : "read", old.thread, old.block, where(old.place));
}

// Checks an access of four bytes or fewer and remembers it.
static void visit(Cell& cell, Space space, uintptr_t address, bool write, const Access& now) {
    bool stale = cell.launch != launches || (space == Space::Shared && cell.block != blocks);
    if (stale) cell = Cell{launches, blocks, 0, {}, {}};
    if (space == Space::Shared && !write && (cell.initialised & now.bytes) != now.bytes)
        fail(LAUNCH_FAILED, "read of uninitialised shared memory at %s", where(now.place));
    if (races(cell.write, now)) report_race(space, address, write, now, cell.write, true);
    if (write) {
        for (const Access& read : cell.reads)
            if (races(read, now)) report_race(space, address, write, now, read, false);
        cell.write = now;
        cell.initialised |= now.bytes;
        return;
    }
    const Access& first = cell.reads[0];
    bool replace = !first.bytes || (first.block == now.block && first.thread == now.thread) ||
                   first.barriers != now.barriers;
    cell.reads[replace ? 0 : 1] = now;
}

static Cell& cell_of(Space space, uintptr_t word) {
    if (space == Space::Shared) return shared_cells[(word - shared.low) / 4];
    std::unique_ptr<Cell[]>& page = global_cells[word / PAGE_BYTES];
    if (!page) page.reset(new Cell[CELLS_OF_A_PAGE]());
    return page[word % PAGE_BYTES / 4];
}

static void visit_words(Space space, uintptr_t address, size_t bytes, bool write, Access now) {
    for (uintptr_t word = address & ~(uintptr_t)3; word < address + bytes; word += 4) {
        now.bytes = 0;
        for (int i = 0; i < 4; i++)
            if (word + i >= address && word + i < address + bytes) now.bytes |= 1 << i;
        visit(cell_of(space, word), space, word, write, now);
    }
}

static void check_dynamic_shared(uintptr_t address, size_t bytes, bool write, const void* place) {
    uintptr_t start = (uintptr_t)emu_dynamic_shared;
    uint32_t size = worker->launch->shared_bytes;
    if (address < start || address >= start + DYNAMIC_SHARED_BYTES || address + bytes <= start + size) return;
    fail(ILLEGAL_ADDRESS, "%s of %zu bytes at offset %lu of dynamic shared memory, which has %u bytes, at %s",
         write ? "write" : "read", bytes, (unsigned long)(address - start), size, where(place));
}

// Whether the address is in memory of the device; constants of the library are not, but may be accessed.
static bool check_global(uintptr_t address, size_t bytes, bool write, const void* place) {
    if (allocation.holds(address, bytes)) return true;
    Range found;
    const char* what = write ? "write" : "read";
    if (worker->launch->lookup(address, &found.low, &found.high)) {
        if (!found.holds(address, bytes))
            fail(ILLEGAL_ADDRESS, "%s of %zu bytes at 0x%lx runs %lu bytes past a %lu-byte allocation, at %s",
                 what, bytes, (unsigned long)address, (unsigned long)(address + bytes - found.high),
                 (unsigned long)(found.high - found.low), where(place));
        allocation = found;
        return true;
    }
    if (library.holds(address, bytes)) return false;
    fail(ILLEGAL_ADDRESS, "%s of %zu bytes at 0x%lx, which is in no allocation, at %s", what, bytes,
         (unsigned long)address, where(place));
}

// Local memory, and what the headers read for threadIdx and the like.
static bool is_private(uintptr_t address) {
    return worker->fibers.on_a_stack(address) || address - (uintptr_t)worker < sizeof *worker ||
           address == (uintptr_t)&current_thread || address == (uintptr_t)&current_block;
}

static void check_access(const void* pointer, size_t bytes, bool write, bool atomic, const void* place) {
    const Thread* thread = current_thread;
    uintptr_t address = (uintptr_t)pointer;
    if (!thread || is_private(address)) return;
    Access now{0, worker->barrier.epoch, thread->warp_syncs, (uint16_t)worker->index_of(thread), 0, atomic,
               place};
    if (shared.holds(address, 1)) {
        check_dynamic_shared(address, bytes, write, place);
        visit_words(Space::Shared, address, bytes, write, now);
        return;
    }
    if (!check_global(address, bytes, write, place)) return;
    now.block = worker->block_number();
    visit_words(Space::Global, address, bytes, write, now);
}

}  // namespace emu

#define PLACE __builtin_return_address(0)
#define PLAIN(NAME, BYTES, WRITE) \
    void __tsan_##NAME(void* p) { emu::check_access(p, BYTES, WRITE, false, PLACE); }
// A volatile access counts as atomic, as it is on a device.
#define VOLATILE(NAME, BYTES, WRITE) \
    void __tsan_##NAME(void* p) { emu::check_access(p, BYTES, WRITE, true, PLACE); }
#define ACCESSES(BYTES)                        \
    PLAIN(read##BYTES, BYTES, false)           \
    PLAIN(write##BYTES, BYTES, true)           \
    PLAIN(unaligned_read##BYTES, BYTES, false) \
    PLAIN(unaligned_write##BYTES, BYTES, true) \
    VOLATILE(volatile_read##BYTES, BYTES, false) \
    VOLATILE(volatile_write##BYTES, BYTES, true)
#define UPDATE(BITS, T, NAME)                                        \
    T __tsan_atomic##BITS##_##NAME(T* p, T value, int) {             \
        emu::check_access(p, sizeof(T), true, true, PLACE);          \
        return __atomic_##NAME(p, value, __ATOMIC_SEQ_CST);          \
    }
#define COMPARE_EXCHANGE(BITS, T, STRENGTH)                                                          \
    int __tsan_atomic##BITS##_compare_exchange_##STRENGTH(T* p, T* old, T value, int, int) {         \
        emu::check_access(p, sizeof(T), true, true, PLACE);                                          \
        return __atomic_compare_exchange_n(p, old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    }
#define ATOMICS(BITS, T)                                             \
    T __tsan_atomic##BITS##_load(const T* p, int) {                  \
        emu::check_access(p, sizeof(T), false, true, PLACE);         \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                 \
    }                                                                \
    void __tsan_atomic##BITS##_store(T* p, T value, int) {           \
        emu::check_access(p, sizeof(T), true, true, PLACE);          \
        __atomic_store_n(p, value, __ATOMIC_SEQ_CST);                \
    }                                                                \
    T __tsan_atomic##BITS##_exchange(T* p, T value, int) {           \
        emu::check_access(p, sizeof(T), true, true, PLACE);          \
        return __atomic_exchange_n(p, value, __ATOMIC_SEQ_CST);      \
    }                                                                \
    UPDATE(BITS, T, fetch_add)                                       \
    UPDATE(BITS, T, fetch_sub)                                       \
    UPDATE(BITS, T, fetch_and)                                       \
    UPDATE(BITS, T, fetch_or)                                        \
    UPDATE(BITS, T, fetch_xor)                                       \
    COMPARE_EXCHANGE(BITS, T, strong)                                \
    COMPARE_EXCHANGE(BITS, T, weak)

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_read_range(void* p, size_t bytes) { emu::check_access(p, bytes, false, false, PLACE); }
void __tsan_write_range(void* p, size_t bytes) { emu::check_access(p, bytes, true, false, PLACE); }
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
ATOMICS(8, unsigned char)
ATOMICS(16, unsigned short)
ATOMICS(32, unsigned)
ATOMICS(64, unsigned long)
}
#endif
