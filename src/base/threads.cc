#include "base/threads.h"

#include <algorithm>

namespace draftprobe {

namespace {
// A worker looks for new work this many times before it sleeps. Decode issues hundreds of loops per cycle, a few
// microseconds apart; waking a sleeping thread costs more than the loop.
constexpr int kSpins = 4000;

inline void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}
}  // namespace

ThreadPool::ThreadPool(int threads, std::function<void()> on_start) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, on_start] { worker_loop(on_start); });
}

ThreadPool::~ThreadPool() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
        ++generation_;
    }
    work_ready_.notify_all();
    for (auto& worker : workers_) worker.join();
}

void ThreadPool::drain(const std::function<void(std::size_t)>& body, std::size_t count) {
    for (std::size_t i = next_.fetch_add(1); i < count; i = next_.fetch_add(1)) body(i);
}

void ThreadPool::parallel_for(std::size_t count, const std::function<void(std::size_t)>& body) {
    if (count == 0) return;
    if (workers_.empty() || count == 1) {
        for (std::size_t i = 0; i < count; ++i) body(i);
        return;
    }
    {
        std::lock_guard<std::mutex> lock(mutex_);
        body_ = &body;
        count_ = count;
        next_.store(0);
        active_ = static_cast<int>(workers_.size());
        ++generation_;
    }
    work_ready_.notify_all();
    drain(body, count);
    std::unique_lock<std::mutex> lock(mutex_);
    work_done_.wait(lock, [this] { return active_ == 0; });
    body_ = nullptr;
}

void ThreadPool::worker_loop(const std::function<void()>& on_start) {
    if (on_start) on_start();
    std::uint64_t seen = 0;
    for (;;) {
        for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spin) pause_cpu();
        const std::function<void(std::size_t)>* body = nullptr;
        std::size_t count = 0;
        {
            std::unique_lock<std::mutex> lock(mutex_);
            work_ready_.wait(lock, [this, seen] { return generation_.load() != seen; });
            seen = generation_.load();
            if (stopping_) return;
            body = body_;
            count = count_;
        }
        drain(*body, count);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            if (--active_ == 0) work_done_.notify_one();
        }
    }
}

}  // namespace draftprobe
