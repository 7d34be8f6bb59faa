// Worker threads that run one job together. The caller sleeps while they work; idle, they sleep too.
// A team does not survive fork().
#pragma once

#include <atomic>
#include <cfenv>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "wake.h"

namespace tv {

// While one lives, rounding and denormals are as the standard has them, whatever this thread had set.
class StandardFloats {
public:
    StandardFloats() {
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~StandardFloats() { std::fesetenv(&saved_); }
    StandardFloats(const StandardFloats&) = delete;
    StandardFloats& operator=(const StandardFloats&) = delete;

private:
    std::fenv_t saved_;
};

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

    // For jobs: the items of a phase, 0 to `num_items`, as a worker goes through them. They are cut into as many shares
    // as there are workers. A worker takes its own share in order, then what others have left of theirs, so that it
    // mostly finds in its caches what it left there in the phase before. Of one share all take in order together.
    class Items {
    public:
        Items(Team& team, int worker, int64_t num_items, bool is_one_share = false)
            : team_(team), worker_(worker), num_items_(num_items), num_shares_(is_one_share ? 1 : team.num_threads()),
              phase_(team.passed_.value.load(std::memory_order_relaxed) % 2) {}
        // One that nobody has; `num_items` when there is none.
        int64_t next();

    private:
        Team& team_;
        const int worker_;
        const int64_t num_items_;
        const int num_shares_;
        const uint32_t phase_;
        int num_done_ = 0;  // shares of which nothing is left
    };

    // Ends a phase of a job, in which a worker has made Items once at most.
    void barrier(int worker);

private:
    // How many items of a worker's share are taken, in this phase and in the next, for which the worker clears it
    // while nobody looks at it.
    struct alignas(64) Taken {
        std::atomic<int64_t> items[2]{};
    };

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
    std::vector<Taken> taken_;  // one for each worker
    alignas(64) std::atomic<int> num_arrived_{0};
};

}  // namespace tv
