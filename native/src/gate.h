// What a step waits at for pieces that another thread brings: it goes on once enough have come, or none will.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "kernels.h"
#include "wake.h"

namespace tv {

class Gate {
public:
    // Nobody waits past `until_s` of the monotonic clock: then it has failed. A piece is what one of `slots` has of one
    // stream; they are the slots of a sequence from its `first` on. All pieces of a stream come before those of the next.
    explicit Gate(double until_s, int64_t first = 0, std::vector<int32_t> slots = {});

    void advance() { arrived_.advance(); }    // one more piece has come
    void fail() { arrived_.raise(kFailed); }  // no more will: whoever waits goes on

    // Waits for so many pieces; false when it has failed.
    bool wait(uint32_t num_pieces);

    // For the kernels of a step; of a gate that has slots.
    Coming coming() { return {this, first_, static_cast<int64_t>(slots_.size()), slots_.front()}; }

    bool has_failed() const { return arrived_.value.load() & kFailed; }
    uint32_t num_pieces() const { return arrived_.value.load(std::memory_order_acquire) & ~kFailed; }
    int64_t num_slots() const { return static_cast<int64_t>(slots_.size()); }
    int num_waiting() const;   // threads, now
    double stalled_s() const;  // that at least one thread waited, until the last of them went on

private:
    static constexpr uint32_t kFailed = 1u << 31;  // more than any number of pieces

    const int64_t until_ns_;
    const int64_t first_;
    const std::vector<int32_t> slots_;
    Signal arrived_;
    mutable std::mutex waiting_;  // over what follows; nobody sleeps with it
    int num_waiting_ = 0;
    int64_t since_ns_ = 0;
    int64_t stalled_ns_ = 0;
};

}  // namespace tv
