// What a step waits at for pieces that another thread brings: it goes on once enough have come, or none will.
#pragma once

#include <atomic>
#include <cstdint>

#include "wake.h"

namespace tv {

class Gate {
public:
    // Nobody waits past `until_s` of the monotonic clock: then it has failed.
    explicit Gate(double until_s);

    void advance() { arrived_.advance(); }    // one more piece has come
    void fail() { arrived_.raise(kFailed); }  // no more will: whoever waits goes on

    // Waits for so many pieces; `is_counted`: what that takes is added to `stalled_s`.
    void wait(uint32_t num_pieces, bool is_counted);

    bool has_failed() const { return arrived_.value.load() & kFailed; }
    uint32_t num_pieces() const { return arrived_.value.load() & ~kFailed; }
    double stalled_s() const { return static_cast<double>(stalled_ns_.load()) * 1e-9; }

private:
    static constexpr uint32_t kFailed = 1u << 31;  // more than any number of pieces

    const int64_t until_ns_;
    Signal arrived_;
    std::atomic<int64_t> stalled_ns_{0};
};

}  // namespace tv
