// A fixed pool of worker threads for data-parallel loops. Which thread runs which index never matters to results:
// every index writes its own outputs and no sum crosses indices.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace draftprobe {

class ThreadPool {
public:
    // `threads` counts the calling thread; 1 means no workers. `on_start` runs once on every worker before any work
    // (numerics uses it to set the floating-point environment).
    explicit ThreadPool(int threads, std::function<void()> on_start = {});
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls body(i) for every i in [0, count), on the caller and the workers, and returns when all are done.
    // The body must not call parallel_for on the same pool. One caller at a time.
    void parallel_for(std::size_t count, const std::function<void(std::size_t)>& body);

private:
    void worker_loop(const std::function<void()>& on_start);
    void drain(const std::function<void(std::size_t)>& body, std::size_t count);

    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable work_ready_;
    std::condition_variable work_done_;
    const std::function<void(std::size_t)>* body_ = nullptr;
    std::size_t count_ = 0;
    std::atomic<std::size_t> next_{0};
    std::atomic<std::uint64_t> generation_{0};
    int active_ = 0;
    bool stopping_ = false;
};

}  // namespace draftprobe
