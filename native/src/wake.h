// How threads wait for each other: in the kernel, after spinning for a while where that pays.
#pragma once

#include <atomic>
#include <cstdint>

namespace tv {

// About 30 µs: longer than the gaps between instructions of a step, shorter than a person or a power meter notices.
constexpr int kSpins = 1000;

// A word that threads wait on until it changes.
struct alignas(64) Signal {
    std::atomic<uint32_t> value{0};
    std::atomic<uint32_t> num_sleeping{0};

    void advance();           // add one
    void raise(uint32_t bit);  // set a bit
    void wait_past(uint32_t seen, int num_spins);
    // Sleeps at once; false when it has not changed by `until_ns` of the monotonic clock.
    bool sleep_past(uint32_t seen, int64_t until_ns);

private:
    void wake();
};

}  // namespace tv
