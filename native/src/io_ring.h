// An io_uring by its system calls alone, so that nothing has to be installed: reads in flight, and their results.
#pragma once

#include <cstdint>
#include <linux/io_uring.h>
#include <string>

namespace tv {

class Ring {
public:
    // Throws std::system_error where the kernel has none to give.
    explicit Ring(int depth);
    ~Ring();
    Ring(const Ring&) = delete;
    Ring& operator=(const Ring&) = delete;

    struct Result {
        uint64_t tag;
        int32_t value;  // bytes, or a negative errno
    };

    // At most `depth` may be in flight. Returns 0 or an errno, and then the read has not begun.
    int begin_read(int file, char* address, uint32_t num_bytes, int64_t offset, uint64_t tag);
    // The next result. Blocks while there is none.
    Result next();

private:
    int file_;
    void* rings_ = nullptr;
    size_t rings_bytes_ = 0;
    io_uring_sqe* entries_ = nullptr;
    size_t entries_bytes_ = 0;
    uint32_t* submitted_tail_ = nullptr;
    uint32_t submitted_mask_ = 0;
    uint32_t* submitted_ = nullptr;
    uint32_t* completed_head_ = nullptr;
    uint32_t* completed_tail_ = nullptr;
    uint32_t completed_mask_ = 0;
    io_uring_cqe* completed_ = nullptr;
};

// Why this process cannot have an io_uring that reads; empty if it can.
std::string ring_refusal();

}  // namespace tv
