#include "io_ring.h"

#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <system_error>
#include <unistd.h>

// The same numbers on every architecture; C libraries older than the calls do not have them.
#ifndef __NR_io_uring_setup
#define __NR_io_uring_setup 425
#define __NR_io_uring_enter 426
#endif

namespace tv {

static uint32_t load_acquire(const uint32_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static void store_release(uint32_t* word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

template <class T>
static T* at(void* base, uint32_t offset) {
    return reinterpret_cast<T*>(static_cast<char*>(base) + offset);
}

Ring::Ring(int depth) {
    io_uring_params params = {};
    file_ = static_cast<int>(syscall(__NR_io_uring_setup, depth, &params));
    if (file_ < 0) throw std::system_error(errno, std::generic_category(), "io_uring_setup");
    // IORING_OP_READ came with the same kernel, 5.6, as this flag; one mapping for both rings is older.
    if (!(params.features & IORING_FEAT_RW_CUR_POS)) {
        close(file_);
        throw std::system_error(ENOSYS, std::generic_category(), "io_uring of a kernel before 5.6");
    }
    const size_t submitted_bytes = params.sq_off.array + params.sq_entries * sizeof(uint32_t);
    const size_t completed_bytes = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
    rings_bytes_ = submitted_bytes > completed_bytes ? submitted_bytes : completed_bytes;
    entries_bytes_ = params.sq_entries * sizeof(io_uring_sqe);
    constexpr int access = PROT_READ | PROT_WRITE;
    rings_ = mmap(nullptr, rings_bytes_, access, MAP_SHARED | MAP_POPULATE, file_, IORING_OFF_SQ_RING);
    void* entries = mmap(nullptr, entries_bytes_, access, MAP_SHARED | MAP_POPULATE, file_, IORING_OFF_SQES);
    if (rings_ == MAP_FAILED || entries == MAP_FAILED) {
        const int error = errno;
        if (rings_ != MAP_FAILED) munmap(rings_, rings_bytes_);
        if (entries != MAP_FAILED) munmap(entries, entries_bytes_);
        close(file_);
        throw std::system_error(error, std::generic_category(), "mmap of an io_uring");
    }
    entries_ = static_cast<io_uring_sqe*>(entries);
    submitted_tail_ = at<uint32_t>(rings_, params.sq_off.tail);
    submitted_mask_ = *at<uint32_t>(rings_, params.sq_off.ring_mask);
    submitted_ = at<uint32_t>(rings_, params.sq_off.array);
    completed_head_ = at<uint32_t>(rings_, params.cq_off.head);
    completed_tail_ = at<uint32_t>(rings_, params.cq_off.tail);
    completed_mask_ = *at<uint32_t>(rings_, params.cq_off.ring_mask);
    completed_ = at<io_uring_cqe>(rings_, params.cq_off.cqes);
}

Ring::~Ring() {
    munmap(entries_, entries_bytes_);
    munmap(rings_, rings_bytes_);
    close(file_);
}

int Ring::begin_read(int file, char* address, uint32_t num_bytes, int64_t offset, uint64_t tag) {
    const uint32_t tail = *submitted_tail_;  // only this thread writes it
    const uint32_t index = tail & submitted_mask_;
    io_uring_sqe& entry = entries_[index];
    std::memset(&entry, 0, sizeof entry);
    entry.opcode = IORING_OP_READ;
    entry.fd = file;
    entry.off = static_cast<uint64_t>(offset);
    entry.addr = reinterpret_cast<uint64_t>(address);
    entry.len = num_bytes;
    entry.user_data = tag;
    submitted_[index] = index;
    store_release(submitted_tail_, tail + 1);
    for (;;) {
        if (syscall(__NR_io_uring_enter, file_, 1, 0, 0, nullptr, 0) == 1) return 0;
        if (errno == EINTR) continue;
        const int error = errno;
        store_release(submitted_tail_, tail);
        return error;
    }
}

Ring::Result Ring::next() {
    const uint32_t head = *completed_head_;
    while (load_acquire(completed_tail_) == head) {
        // The reads are in the kernel's hands: an error here (EINTR) takes none of them back.
        syscall(__NR_io_uring_enter, file_, 0, 1, IORING_ENTER_GETEVENTS, nullptr, 0);
    }
    const io_uring_cqe& found = completed_[head & completed_mask_];
    const Result result = {found.user_data, found.res};
    store_release(completed_head_, head + 1);
    return result;
}

std::string ring_refusal() {
    try {
        const Ring ring(1);
        return "";
    } catch (const std::system_error& error) {
        return error.what();
    }
}

}  // namespace tv
