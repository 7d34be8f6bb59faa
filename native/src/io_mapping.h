// A mapping: files that stand in for memory, where they would have been read to, until that memory has taken them in.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "io_guard.h"
#include "io_reading.h"

namespace tv {

// What became of a file under a mapping that is still there.
struct Damage {
    std::string path;
    int64_t offset;  // in the file, which ends at it or before
    bool is_cut;     // else changed, at the offset or after
};

// Bytes in memory and the XXH3-64 that they should have.
struct Checked {
    char* address;
    int64_t num_bytes;
    uint64_t xxh3;
};

class Mapping {
public:
    // Maps each extent at its address, from its page to its last; `paths` names their files. Offsets and addresses agree
    // modulo a page. The memory around is the caller's, in whole huge pages, and stays until this is gone. Throws
    // std::system_error.
    Mapping(std::vector<Extent> extents, std::vector<std::string> paths);
    ~Mapping();  // stops
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    // Begins to move what is mapped into memory of its own, in the same place, on huge pages where the kernel grants
    // them and from the NUMA node, while others read it. `checked`, by address, are compared on the way. By a thread of
    // the lowest priority: it takes what the steps leave. Once.
    void take_in(std::vector<Checked> checked, std::optional<int> node);
    // Whether nothing is mapped any more or never will be, after at most so many seconds.
    bool wait(double seconds);
    // What is mapped stays mapped.
    void stop();

    std::optional<Damage> damage() const;

private:
    void work();
    bool compare(const char* unit, const char* copy);
    Damage damage_at(const char* address, bool is_cut) const;

    const std::vector<Extent> extents_;
    const std::vector<std::string> paths_;
    char* begin_;  // of what is mapped, on huge pages
    char* end_;
    std::unique_ptr<Guard> guard_;
    std::vector<Checked> checked_;
    size_t next_checked_ = 0;
    HashState state_;
    std::optional<int> node_;
    std::thread worker_;
    std::atomic<bool> is_stopping_{false};
    std::atomic<const Checked*> changed_{nullptr};
    std::mutex ending_;
    std::condition_variable ended_;
    bool is_over_ = true;
};

// Of the mappings there are, the damage of one that has any.
std::optional<Damage> any_damage();

}  // namespace tv
