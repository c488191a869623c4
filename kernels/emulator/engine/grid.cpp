// Runs a grid: blocks handed out to host threads.
#include "checker.h"
#include "fault.h"
#include "pool.h"
#include "worker.h"
#include <atomic>
#include <cstdio>

namespace emu {

static EmuKernel* registered;

void add_kernel(EmuKernel* kernel) {
    kernel->next = registered;
    registered = kernel;
}

class Grid {
  public:
    explicit Grid(const EmuLaunch* launch)
        : launch_(launch), blocks_((uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2]) {}

    // Runs blocks until none is left or one has failed.
    void work() {
        worker->launch = launch_;
        while (!code_) {
            uint64_t turn = next_++;
            if (turn >= blocks_) return;
            // With a seed, the last block comes first.
            uint64_t block = launch_->seed ? blocks_ - 1 - turn : turn;
            const uint32_t* grid = launch_->grid;
            run_block(worker, (uint32_t)(block % grid[0]), (uint32_t)(block / grid[0] % grid[1]),
                      (uint32_t)(block / grid[0] / grid[1]));
            if (worker->code) keep_failure();
        }
    }

    int result(char* message, size_t message_bytes) const {
        if (code_) snprintf(message, message_bytes, "%s", message_);
        return code_;
    }

  private:
    void keep_failure() {
        std::lock_guard<std::mutex> lock(mutex_);
        if (code_) return;
        code_ = worker->code;
        memcpy(message_, worker->message, sizeof message_);
    }

    const EmuLaunch* launch_;
    uint64_t blocks_;
    std::atomic<uint64_t> next_{0};
    std::atomic<int> code_{0};
    std::mutex mutex_;
    char message_[sizeof Worker::message];
};

}  // namespace emu

extern "C" const EmuKernel* emu_kernels(void) { return emu::registered; }

extern "C" int emu_run(const EmuLaunch* launch, char* message, size_t message_bytes) {
    static std::mutex one_at_a_time;
    std::lock_guard<std::mutex> lock(one_at_a_time);
    static emu::Pool* pool = new emu::Pool;
    emu::install_fault_handlers();
    emu::checker_begin_launch();
    unsigned wanted = launch->threads ? launch->threads : pool->size();
    if (emu::CHECKED) wanted = 1;  // the checker has one memory of what was accessed
    emu::Grid grid(launch);
    pool->run([&](unsigned number) {
        if (number < wanted) grid.work();
    });
    return grid.result(message, message_bytes);
}
