#include "io_guard.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

namespace tv {

// One in a list that only grows, since a signal's handler may be in it at any time; those of the past are used again.
struct Range {
    std::atomic<uintptr_t> begin{0}, end{0};  // equal: of no one
    std::atomic<uintptr_t> lost{0};
    Range* next = nullptr;
};

static std::atomic<Range*> first_range{nullptr};
static std::mutex guarding;
static struct sigaction handled_before;
static uintptr_t page_bytes;

// As many pages are given up at once as lie in one huge page: a file that lost a gigabyte is not faulted in page by page,
// and memory beyond, which may have become something else by now, is left alone.
static constexpr uintptr_t kGivenUp = 2 << 20;

static void on_bus_error(int, siginfo_t* info, void*) {
    const int error = errno;
    const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
    for (Range* range = first_range; range != nullptr; range = range->next) {
        const uintptr_t end = range->end;
        if (address < range->begin || address >= end) continue;
        const uintptr_t from = address / page_bytes * page_bytes, to = std::min(end, (from / kGivenUp + 1) * kGivenUp);
        void* zeros = mmap(reinterpret_cast<void*>(from), to - from, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (zeros == MAP_FAILED) break;
        uintptr_t none = 0;
        range->lost.compare_exchange_strong(none, address);
        errno = error;
        return;
    }
    sigaction(SIGBUS, &handled_before, nullptr);  // it is raised again, for whoever had it
    errno = error;
}

static void take_over() {
    page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction ours = {};
    ours.sa_sigaction = on_bus_error;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    struct sigaction now = {};
    sigaction(SIGBUS, nullptr, &now);
    if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_bus_error) return;
    handled_before = now;
    sigaction(SIGBUS, &ours, nullptr);
}

Guard::Guard(char* begin, char* end) {
    const std::lock_guard<std::mutex> lock(guarding);
    take_over();  // again, if somebody took it since
    range_ = first_range;
    while (range_ != nullptr && range_->begin != range_->end) range_ = range_->next;
    if (range_ == nullptr) {
        range_ = new Range;
        range_->next = first_range;
        first_range = range_;
    }
    range_->lost = 0;
    range_->end = reinterpret_cast<uintptr_t>(begin);  // still none: its begin is not above its end
    range_->begin = reinterpret_cast<uintptr_t>(begin);
    range_->end = reinterpret_cast<uintptr_t>(end);
}

Guard::~Guard() {
    const std::lock_guard<std::mutex> lock(guarding);
    range_->end = range_->begin.load();
}

const char* Guard::lost() const { return reinterpret_cast<const char*>(range_->lost.load()); }

}  // namespace tv
