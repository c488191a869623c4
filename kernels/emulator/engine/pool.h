// Host threads that run blocks. They live as long as the process.
#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace emu {

class Pool {
  public:
    Pool();
    unsigned size() const { return size_; }
    // Runs a job on every thread, each with its number, and waits for all.
    void run(const std::function<void(unsigned)>& job);

  private:
    void loop(unsigned number);

    std::mutex mutex_;
    std::condition_variable begin_;
    std::condition_variable end_;
    const std::function<void(unsigned)>* job_ = nullptr;
    uint64_t generation_ = 0;
    unsigned busy_ = 0;
    unsigned size_;
};

}  // namespace emu
