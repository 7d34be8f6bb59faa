// A reading: ranges of files on their way into memory, read by workers of its own and hashed where they land.
// It neither opens files nor owns memory.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "io_hash.h"

namespace tv {

// A range of a file, and where it goes. Both ends may be rounded outwards to whole blocks when it is read, so up to a
// block before and after the destination must be memory that may be written; address ≡ offset (modulo the block).
struct Extent {
    int file;  // a descriptor, with O_DIRECT if the block is larger than 1
    int64_t offset;
    int64_t num_bytes;
    char* address;
};

// Bytes whose digest is wanted: within one extent, in order, none overlapping.
struct Span {
    int64_t extent;
    int64_t begin;  // from the start of the extent
    int64_t num_bytes;
};

struct ReadFailure {
    int64_t extent;
    int64_t offset;  // in the file
    int error;       // an errno; 0: the file ended there
};

struct ReadOptions {
    int64_t block = 1;  // what offsets, sizes and addresses must be multiples of; 1: through the page cache
    int64_t piece_bytes = 4 << 20;  // of one read; a multiple of the block
    int num_workers = 1;
    int depth = 0;  // reads in flight in each worker's io_uring; 0: no ring, one blocking read
    bool is_mapped = false;  // the files stand where they would be read to, and their pages are only asked for
};

// When an extent was read, in seconds from the start of the reading; which worker began it.
struct ExtentTimes {
    double begin = 0;
    double end = 0;
    int worker = 0;
};

class Ring;

class Reading {
public:
    // Starts reading. Throws std::invalid_argument for what the caller could have known, std::system_error when a ring
    // or a thread cannot be had.
    Reading(std::vector<Extent> extents, std::vector<Span> spans, const ReadOptions& options);
    ~Reading();  // cancels
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

    // Whether it is over, after at most so many seconds.
    bool wait(double seconds);
    // No further read begins; returns when none is in flight, so that the memory may go.
    void cancel();

    // When it is over:
    std::optional<ReadFailure> failure() const { return failure_; }
    const std::vector<uint64_t>& digests() const { return digests_; }  // one for each span
    const std::vector<ExtentTimes>& times() const { return times_; }
    // At any time:
    int64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }
    double hash_seconds() const { return static_cast<double>(hash_ns_.load(std::memory_order_relaxed)) * 1e-9; }

private:
    friend class Ring;

    // An extent in progress: pieces are read in any order, hashed in theirs by whoever finds the next one there.
    struct Progress {
        int64_t first_block = 0;  // offset of the first piece
        int64_t num_pieces = 0;
        std::atomic<int64_t> next_piece{0};
        std::mutex turn;
        std::vector<bool> arrived;
        int64_t num_hashed = 0;
        bool is_hashing = false;
        size_t next_span = 0;  // of `spans_`
        size_t end_span = 0;
        HashState state;
    };

    struct Piece {
        int64_t extent;
        int64_t number;
        int file;
        int64_t offset;
        char* address;
        int64_t wanted;  // bytes asked for
        int64_t needed;  // bytes without which the extent is not whole
    };

    void check() const;
    void work(int worker);
    bool claim(int worker, int64_t& extent, Piece& piece);
    bool complete(const Piece& piece, int64_t got);
    bool ask_for(const Piece& piece);
    void arrived(const Piece& piece);
    void hash(int64_t extent, const Piece& piece);
    Piece piece_of(int64_t extent, int64_t number) const;
    void fail(const Piece& piece, int64_t got, int error);
    double seconds_since_start() const;

    const std::vector<Extent> extents_;
    const std::vector<Span> spans_;
    const ReadOptions options_;
    const int64_t started_ns_;
    std::deque<Progress> progress_;
    std::vector<uint64_t> digests_;
    std::vector<ExtentTimes> times_;
    std::vector<std::unique_ptr<Ring>> rings_;
    std::vector<std::thread> workers_;
    std::atomic<int64_t> next_extent_{0};
    std::atomic<int64_t> bytes_read_{0};
    std::atomic<int64_t> hash_ns_{0};
    std::atomic<bool> is_stopping_{false};
    std::mutex ending_;
    std::condition_variable ended_;
    int num_working_ = 0;
    std::optional<ReadFailure> failure_;
};

}  // namespace tv
