// Worker threads that run one job together. The caller sleeps while they work; idle, they sleep too.
// A team does not survive fork().
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "wake.h"

namespace tv {

class Team {
public:
    // What every worker runs, given its index. Must not throw.
    using Job = void (*)(Team& team, int worker, void* context);

    // One worker per entry, pinned to that cpu if there is one.
    // Throws std::invalid_argument: no entry, or a cpu this process may not run on.
    explicit Team(const std::vector<std::optional<int>>& cpus);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int num_threads() const { return static_cast<int>(workers_.size()); }

    // Runs the job on every worker and returns when all are done. Callers take turns.
    void run(Job job, void* context);

    // For jobs. The items 0, 1, 2, … of the phase, each handed out once; a phase ends at the barrier.
    int64_t next_item() { return next_item_.fetch_add(1, std::memory_order_relaxed); }
    void barrier();

private:
    void work(int worker);
    void stop();

    std::vector<std::thread> workers_;
    std::mutex turn_;
    Job job_ = nullptr;
    void* context_ = nullptr;
    bool is_stopping_ = false;
    int team_size_ = 0;
    int num_spins_ = 0;
    Signal started_;
    Signal finished_;
    Signal passed_;  // barriers
    alignas(64) std::atomic<int> num_arrived_{0};
    alignas(64) std::atomic<int64_t> next_item_{0};
};

}  // namespace tv
