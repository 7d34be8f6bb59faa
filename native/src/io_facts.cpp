#include "io_facts.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <vector>

#ifndef __NR_cachestat
#define __NR_cachestat 451  // the same on every architecture
#endif

namespace tv {

struct CacheRange {
    uint64_t offset, num_bytes;
};
struct CacheStat {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;  // pages
};

static int64_t pages_of(int64_t offset, int64_t num_bytes) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    return (offset + num_bytes + page - 1) / page - offset / page;
}

// Since Linux 6.5. It goes from page to page, a twelfth of the time that mapping and hashing them takes: of a long range
// every sixteenth quarter of a MiB is asked about, since files come and go in runs.
static std::optional<double> by_cachestat(int file, int64_t offset, int64_t num_bytes) {
    constexpr int64_t kAsked = 256 << 10, kStride = 16 * kAsked;
    const int64_t asked = num_bytes > kStride ? kAsked : num_bytes;
    int64_t num_cached = 0, num_pages = 0;
    for (int64_t at = 0; at < num_bytes; at += kStride) {
        const int64_t count = asked < num_bytes - at ? asked : num_bytes - at;
        CacheRange range = {static_cast<uint64_t>(offset + at), static_cast<uint64_t>(count)};
        CacheStat found = {};
        if (syscall(__NR_cachestat, file, &range, &found, 0) != 0) return std::nullopt;
        num_cached += static_cast<int64_t>(found.cached);
        num_pages += pages_of(offset + at, count);
    }
    return static_cast<double>(num_cached) / static_cast<double>(num_pages);
}

// For a file that the caller neither owns nor may write, the kernel answers that every page is there (since 5.2).
static std::optional<double> by_mincore(int file, int64_t offset, int64_t num_bytes) {
    struct stat status;
    if (fstat(file, &status) != 0) return std::nullopt;
    const bool may_ask = status.st_uid == geteuid() || geteuid() == 0;
    const int64_t page = sysconf(_SC_PAGESIZE), start = offset / page * page;
    const size_t length = static_cast<size_t>(offset + num_bytes - start);
    void* mapped = may_ask ? mmap(nullptr, length, PROT_READ, MAP_SHARED, file, start) : MAP_FAILED;
    if (mapped == MAP_FAILED) return std::nullopt;
    std::vector<unsigned char> pages(static_cast<size_t>(pages_of(offset, num_bytes)));
    const int failed = mincore(mapped, length, pages.data());
    munmap(mapped, length);
    if (failed) return std::nullopt;
    int64_t num_cached = 0;
    for (const unsigned char each : pages) num_cached += each & 1;
    return static_cast<double>(num_cached) / static_cast<double>(pages.size());
}

// A byte here and there, given only if it costs no wait.
static std::optional<double> by_samples(int file, int64_t offset, int64_t num_bytes) {
    constexpr int kSamples = 32;
    int num_cached = 0;
    for (int i = 0; i < kSamples; ++i) {
        char byte;
        iovec vector = {&byte, 1};
        const ssize_t count = preadv2(file, &vector, 1, offset + (num_bytes - 1) * i / (kSamples - 1), RWF_NOWAIT);
        if (count < 0 && errno != EAGAIN) return std::nullopt;
        num_cached += count == 1;
    }
    return static_cast<double>(num_cached) / kSamples;
}

std::optional<Residency> residency(int file, int64_t offset, int64_t num_bytes) {
    if (const auto share = by_cachestat(file, offset, num_bytes)) return Residency{*share, "cachestat"};
    if (const auto share = by_mincore(file, offset, num_bytes)) return Residency{*share, "mincore"};
    if (const auto share = by_samples(file, offset, num_bytes)) return Residency{*share, "samples"};
    return std::nullopt;
}

int prefer_node(void* address, int64_t num_bytes, int node) {
    constexpr int kPreferred = 1;  // MPOL_PREFERRED of linux/mempolicy.h
    constexpr int kWordBits = 8 * sizeof(unsigned long);
    std::vector<unsigned long> nodes(static_cast<size_t>(node / kWordBits + 1));
    nodes.back() = 1ul << (node % kWordBits);
    const auto num_bits = static_cast<unsigned long>(nodes.size() * kWordBits + 1);
    return syscall(SYS_mbind, address, num_bytes, kPreferred, nodes.data(), num_bits, 0) == 0 ? 0 : errno;
}

}  // namespace tv
