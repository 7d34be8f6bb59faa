#include "gate.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace tv {

static int64_t now_ns() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

constexpr double kNever_s = 9e9;  // 285 years: as nanoseconds it still fits

Gate::Gate(double until_s, int64_t first, std::vector<int32_t> slots)
    : until_ns_(static_cast<int64_t>(std::clamp(until_s, 0.0, kNever_s) * 1e9)), first_(first),
      slots_(std::move(slots)) {}

bool Gate::wait(uint32_t num_pieces) {
    uint32_t seen = arrived_.value.load(std::memory_order_acquire);
    if (seen >= num_pieces) return !(seen & kFailed);
    {
        const std::lock_guard<std::mutex> lock(waiting_);
        if (num_waiting_++ == 0) since_ns_ = now_ns();
    }
    // It sleeps at once: who brings the pieces has no cpu of its own, and spinning could keep it from running.
    while (seen < num_pieces) {
        if (!arrived_.sleep_past(seen, until_ns_)) fail();
        seen = arrived_.value.load(std::memory_order_acquire);
    }
    const std::lock_guard<std::mutex> lock(waiting_);
    if (--num_waiting_ == 0) stalled_ns_ += now_ns() - since_ns_;
    return !(seen & kFailed);
}

int Gate::num_waiting() const {
    const std::lock_guard<std::mutex> lock(waiting_);
    return num_waiting_;
}

double Gate::stalled_s() const {
    const std::lock_guard<std::mutex> lock(waiting_);
    return static_cast<double>(stalled_ns_) * 1e-9;
}

int64_t num_here(const Coming& coming, int64_t stream) {
    const int64_t num_pieces = coming.gate->num_pieces();
    return std::clamp<int64_t>(num_pieces - stream * coming.num_slots, 0, coming.num_slots);
}

bool wait_for(const Coming& coming, int64_t stream, int64_t num_slots) {
    if (num_slots == 0) return !coming.gate->has_failed();
    return coming.gate->wait(static_cast<uint32_t>(stream * coming.num_slots + num_slots));
}

}  // namespace tv
