#include "gate.h"

#include <algorithm>
#include <chrono>

namespace tv {

static int64_t now_ns() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

constexpr double kNever_s = 9e9;  // 285 years: as nanoseconds it still fits

Gate::Gate(double until_s) : until_ns_(static_cast<int64_t>(std::clamp(until_s, 0.0, kNever_s) * 1e9)) {}

void Gate::wait(uint32_t num_pieces, bool is_counted) {
    uint32_t seen = arrived_.value.load(std::memory_order_acquire);
    if (seen >= num_pieces) return;
    const int64_t start = now_ns();
    // It sleeps at once: who brings the pieces has no cpu of its own, and spinning could keep it from running.
    while (seen < num_pieces) {
        if (!arrived_.sleep_past(seen, until_ns_)) fail();
        seen = arrived_.value.load(std::memory_order_acquire);
    }
    if (is_counted) stalled_ns_.fetch_add(now_ns() - start);
}

}  // namespace tv
