#include "wake.h"

#include <cerrno>
#include <climits>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tv {

static void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // `yield` is a no-op on most cores; isb takes about as long as x86's pause
#endif
}

// `until`: absolute, of the monotonic clock; null for as long as it takes.
static long futex_wait(std::atomic<uint32_t>& word, uint32_t seen, const timespec* until) {
    return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, seen, until,
                   nullptr, FUTEX_BITSET_MATCH_ANY);
}

void Signal::wake() {
    // A sleeper counts itself before the kernel compares the value: either we see it here, or it sees the new value.
    if (num_sleeping.load() == 0) return;
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value), FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, nullptr, nullptr,
            0);
}

void Signal::advance() {
    value.fetch_add(1);
    wake();
}

void Signal::raise(uint32_t bit) {
    value.fetch_or(bit);
    wake();
}

void Signal::wait_past(uint32_t seen, int num_spins) {
    for (int i = 0; i < num_spins; ++i) {
        if (value.load(std::memory_order_acquire) != seen) return;
        pause_cpu();
    }
    num_sleeping.fetch_add(1);
    while (value.load() == seen) futex_wait(value, seen, nullptr);
    num_sleeping.fetch_sub(1);
}

bool Signal::sleep_past(uint32_t seen, int64_t until_ns) {
    const timespec until = {static_cast<time_t>(until_ns / 1'000'000'000), static_cast<long>(until_ns % 1'000'000'000)};
    bool is_late = false;
    num_sleeping.fetch_add(1);
    while (value.load() == seen && !is_late) is_late = futex_wait(value, seen, &until) < 0 && errno == ETIMEDOUT;
    num_sleeping.fetch_sub(1);
    return value.load() != seen;
}

}  // namespace tv
