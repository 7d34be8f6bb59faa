#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <set>
#include <stdexcept>
#include <string>

#include "signals.h"

namespace tv {

static cpu_set_t allowed_cpus() {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof allowed, &allowed);
    return allowed;
}

Team::Team(const std::vector<std::optional<int>>& cpus) : team_size_(static_cast<int>(cpus.size())), taken_(cpus.size()) {
    if (cpus.empty()) throw std::invalid_argument("Team: no cpus given, it takes one entry per thread");
    const cpu_set_t allowed = allowed_cpus();
    std::set<int> pinned;
    bool is_crowded = team_size_ > CPU_COUNT(&allowed);
    for (const std::optional<int>& cpu : cpus) {
        if (!cpu) continue;
        if (*cpu < 0 || *cpu >= CPU_SETSIZE || !CPU_ISSET(*cpu, &allowed)) {
            throw std::invalid_argument("Team: cpu " + std::to_string(*cpu) +
                                        " is not one this process may run on (see taskset -p)");
        }
        is_crowded |= !pinned.insert(*cpu).second;
    }
    // Where threads share a cpu, one that spins keeps from running the one it waits for.
    num_spins_ = is_crowded ? 0 : kSpins;

    const SignalsBlocked blocked;
    try {
        for (int i = 0; i < team_size_; ++i) {
            workers_.emplace_back([this, i] { work(i); });
            if (!cpus[i]) continue;
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(*cpus[i], &one);
            pthread_setaffinity_np(workers_.back().native_handle(), sizeof one, &one);
        }
    } catch (...) {
        stop();
        throw;
    }
}

Team::~Team() { stop(); }

void Team::stop() {
    is_stopping_ = true;
    started_.advance();
    for (std::thread& worker : workers_) worker.join();
}

void Team::run(Job job, void* context) {
    const std::lock_guard<std::mutex> turn(turn_);
    job_ = job;
    context_ = context;
    const uint32_t finished = finished_.value.load();
    started_.advance();
    finished_.wait_past(finished, 0);
}

void Team::work(int worker) {
    const StandardFloats floats;  // what the thread that made us had set is ours too
    for (uint32_t num_jobs = 0;; ++num_jobs) {
        started_.wait_past(num_jobs, num_spins_);
        if (is_stopping_) return;
        job_(*this, worker, context_);
        barrier(worker);
        if (worker == 0) finished_.advance();
    }
}

int64_t Team::Items::next() {
    for (; num_done_ < num_shares_; ++num_done_) {
        const int share = (worker_ + num_done_) % num_shares_;
        const int64_t begin = num_items_ * share / num_shares_, end = num_items_ * (share + 1) / num_shares_;
        const int64_t item = begin + team_.taken_[share].items[phase_].fetch_add(1, std::memory_order_relaxed);
        if (item < end) return item;
    }
    return num_items_;
}

void Team::barrier(int worker) {
    const uint32_t seen = passed_.value.load(std::memory_order_relaxed);
    taken_[worker].items[(seen + 1) % 2].store(0, std::memory_order_relaxed);
    if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < team_size_) {
        passed_.wait_past(seen, num_spins_);
        return;
    }
    num_arrived_.store(0, std::memory_order_relaxed);
    passed_.advance();
}

}  // namespace tv
