#include "io_reading.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io_ring.h"
#include "signals.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // since Linux 5.14
#endif

namespace tv {

static int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

static int64_t round_down(int64_t value, int64_t multiple) { return value / multiple * multiple; }
static int64_t round_up(int64_t value, int64_t multiple) { return round_down(value + multiple - 1, multiple); }

Reading::Reading(std::vector<Extent> extents, std::vector<Span> spans, const ReadOptions& options)
    : extents_(std::move(extents)),
      spans_(std::move(spans)),
      options_(options),
      started_ns_(now_ns()),
      progress_(extents_.size()),
      digests_(spans_.size()),
      times_(extents_.size()) {
    check();
    size_t next_span = 0;
    for (size_t i = 0; i < extents_.size(); ++i) {
        const Extent& extent = extents_[i];
        Progress& progress = progress_[i];
        progress.first_block = round_down(extent.offset, options_.block);
        const int64_t num_bytes = extent.offset + extent.num_bytes - progress.first_block;
        progress.num_pieces = (num_bytes + options_.piece_bytes - 1) / options_.piece_bytes;
        progress.arrived.resize(static_cast<size_t>(progress.num_pieces));
        progress.next_span = next_span;
        while (next_span < spans_.size() && spans_[next_span].extent == static_cast<int64_t>(i)) ++next_span;
        progress.end_span = next_span;
        hash_table().reset(progress.state);
    }
    for (int i = 0; options_.depth > 0 && i < options_.num_workers; ++i) {
        rings_.push_back(std::make_unique<Ring>(options_.depth));
    }
    num_working_ = options_.num_workers;
    const SignalsBlocked blocked;
    try {
        for (int i = 0; i < options_.num_workers; ++i) workers_.emplace_back([this, i] { work(i); });
    } catch (...) {
        cancel();
        throw;
    }
}

Reading::~Reading() { cancel(); }

void Reading::check() const {
    if (options_.block < 1 || options_.piece_bytes < 1 || options_.piece_bytes % options_.block != 0 ||
        options_.piece_bytes > (1 << 30) || options_.num_workers < 1 || options_.depth < 0 ||
        (options_.is_mapped && (options_.depth > 0 || options_.block == 1))) {
        throw std::invalid_argument("Reading: block, piece_bytes, num_workers or depth cannot be");
    }
    for (const Extent& extent : extents_) {
        const int64_t address = reinterpret_cast<int64_t>(extent.address);
        if (extent.offset < 0 || extent.num_bytes < 1 || (address - extent.offset) % options_.block != 0) {
            throw std::invalid_argument("Reading: " + std::to_string(extent.num_bytes) + " bytes at " +
                                        std::to_string(extent.offset) + " do not lie in memory as in blocks of " +
                                        std::to_string(options_.block) + " of the file");
        }
    }
    int64_t extent = 0, end = 0;
    for (const Span& span : spans_) {
        if (span.extent > extent) end = 0;
        const bool is_known = span.extent >= extent && span.extent < static_cast<int64_t>(extents_.size());
        if (!is_known || span.begin < end || span.num_bytes < 0 ||
            span.begin + span.num_bytes > extents_[static_cast<size_t>(span.extent)].num_bytes) {
            throw std::invalid_argument("Reading: spans are not in order inside their extents");
        }
        extent = span.extent;
        end = span.begin + span.num_bytes;
    }
}

bool Reading::wait(double seconds) {
    std::unique_lock<std::mutex> lock(ending_);
    return ended_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return num_working_ == 0; });
}

void Reading::cancel() {
    is_stopping_ = true;
    for (std::thread& worker : workers_) {
        if (worker.joinable()) worker.join();
    }
}

double Reading::seconds_since_start() const { return static_cast<double>(now_ns() - started_ns_) * 1e-9; }

void Reading::work(int worker) {
    int64_t extent = -1;
    Piece piece;
    if (rings_.empty()) {
        while (!is_stopping_ && claim(worker, extent, piece)) {
            if (complete(piece, 0)) arrived(piece);
        }
    } else {
        Ring& ring = *rings_[static_cast<size_t>(worker)];
        std::vector<Piece> in_flight(static_cast<size_t>(options_.depth));
        std::vector<uint64_t> idle;
        for (uint64_t tag = 0; tag < in_flight.size(); ++tag) idle.push_back(tag);
        bool is_more = true;
        while (true) {
            while (!idle.empty() && is_more) {
                is_more = !is_stopping_ && claim(worker, extent, piece);
                if (!is_more) break;
                const uint64_t tag = idle.back();
                in_flight[tag] = piece;
                const int refused = ring.begin_read(piece.file, piece.address, static_cast<uint32_t>(piece.wanted),
                                                    piece.offset, tag);
                if (refused == 0) idle.pop_back();
                if (refused != 0 && complete(piece, 0)) arrived(piece);
            }
            if (idle.size() == in_flight.size()) break;
            const Ring::Result result = ring.next();
            idle.push_back(result.tag);
            const Piece& done = in_flight[result.tag];
            // Whatever was not read, for whatever reason, is asked for again in the plain way, and refused there.
            if (complete(done, result.value > 0 ? result.value : 0)) arrived(done);
        }
    }
    const std::lock_guard<std::mutex> lock(ending_);
    if (--num_working_ == 0) ended_.notify_all();
}

// The next piece of the extent at hand, of the next extent, or of the one with most left to do: a worker goes through
// an extent in order, so that what it hashes is warm, and near the end all help with what is left.
bool Reading::claim(int worker, int64_t& extent, Piece& piece) {
    for (;;) {
        if (extent >= 0) {
            Progress& progress = progress_[static_cast<size_t>(extent)];
            const int64_t number = progress.next_piece.fetch_add(1);
            if (number < progress.num_pieces) {
                if (number == 0) {
                    times_[static_cast<size_t>(extent)].begin = seconds_since_start();
                    times_[static_cast<size_t>(extent)].worker = worker;
                }
                piece = piece_of(extent, number);
                return true;
            }
        }
        extent = next_extent_.fetch_add(1);
        if (extent < static_cast<int64_t>(extents_.size())) continue;
        int64_t most = 0;
        for (size_t i = 0; i < progress_.size(); ++i) {
            const int64_t left = progress_[i].num_pieces - progress_[i].next_piece.load();
            if (left > most) {
                most = left;
                extent = static_cast<int64_t>(i);
            }
        }
        if (most == 0) return false;
    }
}

Reading::Piece Reading::piece_of(int64_t number_of_extent, int64_t number) const {
    const Extent& extent = extents_[static_cast<size_t>(number_of_extent)];
    const int64_t offset = progress_[static_cast<size_t>(number_of_extent)].first_block + number * options_.piece_bytes;
    const int64_t end = std::min(offset + options_.piece_bytes, extent.offset + extent.num_bytes);
    return {number_of_extent, number, extent.file, offset, extent.address + (offset - extent.offset),
            round_up(end - offset, options_.block), end - offset};
}

// Reads what is still missing of a piece after its first `got` bytes; false, and the failure noted, if that cannot be.
bool Reading::complete(const Piece& piece, int64_t got) {
    if (options_.is_mapped) return ask_for(piece);
    while (got < piece.needed) {
        // A direct read that ends inside a block has met the end of the file.
        const bool is_end = got % options_.block != 0;
        const ssize_t count = is_end ? 0 : pread(piece.file, piece.address + got, static_cast<size_t>(piece.wanted - got),
                                                 piece.offset + got);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) {
            fail(piece, got, count == 0 ? 0 : errno);
            return false;
        }
        got += count;
    }
    bytes_read_.fetch_add(piece.needed, std::memory_order_relaxed);
    return true;
}

// Has the pages of a piece mapped, from storage those that are not in the page cache; false, and the failure noted, if
// that cannot be, or the file ends before the piece does: what is past its end would read as zeros.
bool Reading::ask_for(const Piece& piece) {
    int error = 0;
    do {
        error = madvise(piece.address, static_cast<size_t>(piece.wanted), MADV_POPULATE_READ) == 0 ? 0 : errno;
    } while (error == EINTR || error == EAGAIN);
    struct stat status;
    if (fstat(piece.file, &status) != 0) {
        fail(piece, 0, errno);
    } else if (status.st_size < piece.offset + piece.needed) {
        fail(piece, status.st_size - piece.offset, 0);
    } else if (error != 0) {
        fail(piece, 0, error == EFAULT ? EIO : error);  // EFAULT: whoever reads it would get SIGBUS
    } else {
        bytes_read_.fetch_add(piece.needed, std::memory_order_relaxed);
        return true;
    }
    return false;
}

void Reading::fail(const Piece& piece, int64_t got, int error) {
    const std::lock_guard<std::mutex> lock(ending_);
    if (!failure_) failure_ = {piece.extent, piece.offset + got, error};
    is_stopping_ = true;
}

void Reading::arrived(const Piece& piece) {
    Progress& progress = progress_[static_cast<size_t>(piece.extent)];
    std::unique_lock<std::mutex> lock(progress.turn);
    progress.arrived[static_cast<size_t>(piece.number)] = true;
    if (progress.is_hashing) return;  // whoever hashes will find this piece
    progress.is_hashing = true;
    while (progress.num_hashed < progress.num_pieces && progress.arrived[static_cast<size_t>(progress.num_hashed)]) {
        lock.unlock();
        hash(piece.extent, piece_of(piece.extent, progress.num_hashed));
        lock.lock();
        ++progress.num_hashed;
    }
    progress.is_hashing = false;
    if (progress.num_hashed == progress.num_pieces) {
        times_[static_cast<size_t>(piece.extent)].end = seconds_since_start();
    }
}

// Adds a piece, the next of its extent, to the spans that lie in it.
void Reading::hash(int64_t number, const Piece& piece) {
    const Extent& extent = extents_[static_cast<size_t>(number)];
    Progress& progress = progress_[static_cast<size_t>(number)];
    if (progress.next_span == progress.end_span) return;
    const int64_t started_ns = now_ns();
    const HashTable& hashing = hash_table();
    const int64_t begin = piece.offset - extent.offset, end = begin + piece.needed;  // from the start of the extent
    while (progress.next_span < progress.end_span) {
        const Span& span = spans_[progress.next_span];
        const int64_t span_end = span.begin + span.num_bytes;
        const int64_t from = std::max(begin, span.begin), to = std::min(end, span_end);
        if (from < to) hashing.update(progress.state, extent.address + from, static_cast<size_t>(to - from));
        if (span_end > end) break;
        digests_[progress.next_span++] = hashing.digest(progress.state);
        hashing.reset(progress.state);
    }
    hash_ns_.fetch_add(now_ns() - started_ns, std::memory_order_relaxed);
}

}  // namespace tv
