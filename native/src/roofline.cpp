#include "roofline.h"

#include <chrono>
#include <cstring>
#include <new>
#include <stdexcept>
#include <sys/mman.h>

namespace tv {

using Clock = std::chrono::steady_clock;

static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

static void check_repeats(int repeats) {
    if (repeats < 1) throw std::invalid_argument("repeats is " + std::to_string(repeats) + ", it must be positive");
}

constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kChunk = 1 << 20;  // what a thread reads at a time

// Memory of our own, on huge pages where the host allows them, so that what is measured is reading and not page walks.
class Buffer {
public:
    explicit Buffer(int64_t num_bytes) : num_bytes_(num_bytes) {
        void* mapped = mmap(nullptr, num_bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) throw std::bad_alloc();
        mapped_ = static_cast<char*>(mapped);
        const int64_t past = reinterpret_cast<uintptr_t>(mapped) % kHugePage;
        address_ = mapped_ + (past == 0 ? 0 : kHugePage - past);
        madvise(address_, num_bytes, MADV_HUGEPAGE);
    }
    ~Buffer() { munmap(mapped_, num_bytes_ + kHugePage); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    char* address() const { return address_; }

private:
    int64_t num_bytes_;
    char* mapped_;
    char* address_;
};

struct Reading {
    char* address;
    int64_t num_bytes;
    const KernelTable* kernels;
    void (*touch)(const Reading&, char* address, int64_t num_bytes);
};

// The chunks of a buffer, each touched once.
static void touch_chunks(Team& team, int worker, void* context) {
    const Reading& reading = *static_cast<const Reading*>(context);
    const int64_t num_chunks = (reading.num_bytes + kChunk - 1) / kChunk;
    Team::Items chunks(team, worker, num_chunks);
    for (int64_t chunk = chunks.next(); chunk < num_chunks; chunk = chunks.next()) {
        const int64_t begin = chunk * kChunk;
        const int64_t left = reading.num_bytes - begin;
        reading.touch(reading, reading.address + begin, left < kChunk ? left : kChunk);
    }
}

std::vector<double> read_bandwidth(Team& team, int64_t num_bytes, int repeats) {
    check_repeats(repeats);
    if (num_bytes < kChunk) {
        throw std::invalid_argument("num_bytes is " + std::to_string(num_bytes) + ", it must be at least 1 MiB");
    }
    const Buffer buffer(num_bytes);
    // The workers write it first: pages that were never written are all one page of zeros.
    Reading reading = {buffer.address(), num_bytes, target_named("").kernels,
                       [](const Reading&, char* address, int64_t n) { std::memset(address, 1, n); }};
    team.run(touch_chunks, &reading);
    reading.touch = [](const Reading& self, char* address, int64_t n) { self.kernels->read_bytes(address, n); };
    std::vector<double> speeds;
    for (int i = 0; i < repeats; ++i) {
        const Clock::time_point start = Clock::now();
        team.run(touch_chunks, &reading);
        speeds.push_back(static_cast<double>(num_bytes) / seconds_since(start));
    }
    return speeds;
}

struct Multiplying {
    int64_t (*multiply)(int64_t num_rounds);
    int64_t num_rounds;
    std::atomic<int64_t> operations;
};

static void multiply(Team&, int, void* context) {
    Multiplying& multiplying = *static_cast<Multiplying*>(context);
    multiplying.operations += multiplying.multiply(multiplying.num_rounds);
}

std::vector<double> multiply_add_peak(Team& team, const Target& target, DType weights, int repeats) {
    check_repeats(repeats);
    const KernelTable& kernels = *target.kernels;
    std::vector<double> speeds;
    int64_t num_rounds = 1000;
    while (static_cast<int>(speeds.size()) < repeats) {
        const bool is_float = weights == DType::float32;
        Multiplying multiplying = {is_float ? kernels.multiply_add : kernels.multiply_pairs, num_rounds, {0}};
        const Clock::time_point start = Clock::now();
        team.run(multiply, &multiplying);
        const double seconds = seconds_since(start);
        // Long enough that starting the threads does not count; shorter tries only find how long that is.
        if (seconds < 0.02) {
            num_rounds *= 2;
            continue;
        }
        speeds.push_back(static_cast<double>(multiplying.operations) / seconds);
    }
    return speeds;
}

}  // namespace tv
