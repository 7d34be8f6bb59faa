#include "io_mapping.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <system_error>
#include <unistd.h>

#include "io_facts.h"
#include "signals.h"

namespace tv {

static constexpr int64_t kUnit = 2 << 20;  // a huge page: what is moved at once

static std::mutex listing;
static std::set<const Mapping*> mappings;

static char* down(char* address, int64_t multiple) {
    return address - static_cast<int64_t>(reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(multiple));
}
static char* up(char* address, int64_t multiple) { return down(address + multiple - 1, multiple); }

Mapping::Mapping(std::vector<Extent> extents, std::vector<std::string> paths)
    : extents_(std::move(extents)), paths_(std::move(paths)), begin_(nullptr), end_(nullptr) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    for (const Extent& extent : extents_) {
        char* const from = down(extent.address, page);
        char* const to = up(extent.address + extent.num_bytes, page);
        // Written to it would be a copy, which reading into the page beside it may do.
        void* mapped = mmap(from, static_cast<size_t>(to - from), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, extent.file, extent.offset - (extent.address - from));
        if (mapped == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
        begin_ = begin_ == nullptr ? from : std::min(begin_, from);
        end_ = std::max(end_, to);
    }
    guard_ = std::make_unique<Guard>(begin_, end_);
    const std::lock_guard<std::mutex> lock(listing);
    mappings.insert(this);
}

Mapping::~Mapping() {
    stop();
    const std::lock_guard<std::mutex> lock(listing);
    mappings.erase(this);
}

void Mapping::take_in(std::vector<Checked> checked, std::optional<int> node) {
    checked_ = std::move(checked);
    node_ = node;
    hash_table().reset(state_);
    is_over_ = false;
    const SignalsBlocked blocked;
    worker_ = std::thread([this] {
        setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 19);
        work();
        const std::lock_guard<std::mutex> lock(ending_);
        is_over_ = true;
        ended_.notify_all();
    });
}

bool Mapping::wait(double seconds) {
    std::unique_lock<std::mutex> lock(ending_);
    return ended_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return is_over_; });
}

void Mapping::stop() {
    is_stopping_ = true;
    if (worker_.joinable()) worker_.join();
}

// A unit is copied beside and moved over what was mapped in one call, so that whoever reads meanwhile finds one or the
// other. All units come from one range of addresses, in order: what was moved becomes one mapping again.
void Mapping::work() {
    char* const first = down(begin_, kUnit);
    const int64_t num_bytes = up(end_, kUnit) - first;
    void* reserved = mmap(nullptr, static_cast<size_t>(num_bytes + kUnit), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) return;  // then the files go on standing in: slower, and right
    char* const copies = up(static_cast<char*>(reserved), kUnit);
    madvise(copies, static_cast<size_t>(num_bytes), MADV_HUGEPAGE);
    if (node_) prefer_node(copies, num_bytes, *node_);
    int64_t done = 0;
    while (done < num_bytes && !is_stopping_) {
        std::memcpy(copies + done, first + done, kUnit);
        if (guard_->lost() != nullptr || !compare(first + done, copies + done)) break;
        if (mremap(copies + done, kUnit, kUnit, MREMAP_MAYMOVE | MREMAP_FIXED, first + done) == MAP_FAILED) break;
        done += kUnit;
    }
    munmap(reserved, static_cast<size_t>(copies - static_cast<char*>(reserved)));
    munmap(copies + done, static_cast<size_t>(num_bytes - done + (static_cast<char*>(reserved) + kUnit - copies)));
}

// Adds a copied unit, the next, to the digests of what lies in it; false, and noted, where one is wrong.
bool Mapping::compare(const char* unit, const char* copy) {
    const HashTable& hashing = hash_table();
    while (next_checked_ < checked_.size()) {
        const Checked& each = checked_[next_checked_];
        const char* const end = each.address + each.num_bytes;
        const char* const from = std::max<const char*>(unit, each.address);
        const char* const to = std::min<const char*>(unit + kUnit, end);
        if (from < to) hashing.update(state_, copy + (from - unit), static_cast<size_t>(to - from));
        if (end > unit + kUnit) return true;
        const bool is_same = hashing.digest(state_) == each.xxh3;
        hashing.reset(state_);
        ++next_checked_;
        if (is_same) continue;
        changed_ = &each;
        return false;
    }
    return true;
}

std::optional<Damage> Mapping::damage() const {
    if (const char* lost = guard_->lost()) return damage_at(lost, true);
    if (const Checked* changed = changed_) return damage_at(changed->address, false);
    return std::nullopt;
}

Damage Mapping::damage_at(const char* address, bool is_cut) const {
    for (size_t i = 0; i < extents_.size(); ++i) {
        const Extent& extent = extents_[i];
        // Of what lies beside an extent on its pages, the nearest byte of it.
        if (address < extent.address + extent.num_bytes || i + 1 == extents_.size()) {
            return {paths_[i], extent.offset + std::max<int64_t>(0, address - extent.address), is_cut};
        }
    }
    return {};
}

std::optional<Damage> any_damage() {
    const std::lock_guard<std::mutex> lock(listing);
    for (const Mapping* mapping : mappings) {
        if (std::optional<Damage> damage = mapping->damage()) return damage;
    }
    return std::nullopt;
}

}  // namespace tv
