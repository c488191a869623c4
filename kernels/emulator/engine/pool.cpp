#include "pool.h"
#include "worker.h"
#include <algorithm>

namespace emu {

Pool::Pool() : size_(std::max(1u, std::thread::hardware_concurrency())) {
    for (unsigned number = 0; number < size_; number++) std::thread([this, number] { loop(number); }).detach();
}

void Pool::loop(unsigned number) {
    worker = new Worker;
    for (uint64_t seen = 0;;) {
        std::unique_lock<std::mutex> lock(mutex_);
        begin_.wait(lock, [&] { return generation_ != seen; });
        seen = generation_;
        lock.unlock();
        (*job_)(number);
        lock.lock();
        if (--busy_ == 0) end_.notify_all();
    }
}

void Pool::run(const std::function<void(unsigned)>& job) {
    std::unique_lock<std::mutex> lock(mutex_);
    job_ = &job;
    generation_++;
    busy_ = size_;
    begin_.notify_all();
    end_.wait(lock, [&] { return busy_ == 0; });
}

}  // namespace emu
