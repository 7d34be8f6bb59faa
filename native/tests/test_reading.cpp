// Readings: bytes in place and digests right, whatever the pieces, workers and rings; failures are told.
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <stdexcept>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "io_mapping.h"
#include "io_reading.h"
#include "io_ring.h"
#include "suites.h"

namespace tv::test {

static uint64_t digest_of(const std::string& bytes, Random* cuts) {
    HashState state;
    const HashTable& hashing = hash_table();
    hashing.reset(state);
    size_t done = 0;
    while (done < bytes.size()) {
        const size_t left = bytes.size() - done;
        const size_t count = cuts ? static_cast<size_t>(1 + cuts->below(static_cast<int64_t>(left))) : left;
        hashing.update(state, bytes.data() + done, count);
        done += count;
    }
    return hashing.digest(state);
}

static std::string random_bytes(size_t count, Random& random) {
    std::string bytes(count, 0);
    for (char& byte : bytes) byte = static_cast<char>(random.bits());
    return bytes;
}

static void test_hash(Random& random) {
    // Of the published algorithm, as the library's own vectors have them.
    check(digest_of("", nullptr) == 0x2d06800538d394c2u, "hash: of nothing");
    for (const size_t count : {1, 16, 17, 128, 129, 240, 241, 256, 257, 1024, 1025, 100000}) {
        const std::string bytes = random_bytes(count, random);
        const uint64_t whole = digest_of(bytes, nullptr);
        check(whole == digest_of(bytes, &random), "hash: pieces of " + std::to_string(count) + " bytes");
        add_to_digest(std::to_string(whole));
    }
}

// A file that is gone when it is closed.
static int open_file(const std::string& bytes) {
    char path[] = "/tmp/trivet-reading-XXXXXX";
    const int file = mkstemp(path);
    unlink(path);
    for (size_t done = 0; done < bytes.size();) {
        const ssize_t count = write(file, bytes.data() + done, bytes.size() - done);
        if (count <= 0) break;
        done += static_cast<size_t>(count);
    }
    return file;
}

static void finish(Reading& reading) {
    while (!reading.wait(1)) continue;
}

static void test_pieces(const Setting& setting, Random& random, int depth) {
    const std::string bytes = random_bytes(setting.is_small ? 20000 : 200000, random);
    const auto size = static_cast<int64_t>(bytes.size());
    const int file = open_file(bytes);
    for (const int workers : {1, 3}) {
        for (const int64_t piece : {4096, 5000}) {
            std::string found(bytes.size(), 0);
            const int64_t cut = 1 + random.below(size - 2), begin = random.below(size - cut);
            const std::vector<Extent> extents = {{file, 0, cut, found.data()}, {file, cut, size - cut, &found[cut]}};
            const std::vector<Span> spans = {{0, 0, cut}, {1, begin, size - cut - begin}};
            Reading reading(extents, spans, {1, piece, workers, depth});
            finish(reading);
            const std::string name = std::to_string(workers) + " workers, depth " + std::to_string(depth) +
                                     ", pieces of " + std::to_string(piece);
            check(!reading.failure() && found == bytes, "reading: every byte in place, " + name);
            check(reading.digests() == std::vector<uint64_t>{digest_of(bytes.substr(0, cut), nullptr),
                                                             digest_of(bytes.substr(cut + begin), nullptr)},
                  "reading: digests, " + name);
        }
    }
    close(file);
}

static void test_failures(int depth) {
    const std::string bytes(10000, 'x');
    std::string found(20000, 0);
    const int file = open_file(bytes);
    Reading short_file({{file, 0, 20000, found.data()}}, {}, {1, 4096, 2, depth});
    finish(short_file);
    const std::optional<ReadFailure> end = short_file.failure();
    check(end && end->error == 0 && end->offset >= 10000, "reading: a file that ends is a failure");
    close(file);
    const int unreadable = open("/dev/null", O_WRONLY);
    Reading refused({{unreadable, 0, 10000, found.data()}}, {}, {1, 4096, 2, depth});
    finish(refused);
    check(refused.failure() && refused.failure()->error == EBADF, "reading: the errno of a read that failed");
    close(unreadable);
}

// Memory in whole huge pages.
class Memory {
public:
    explicit Memory(int64_t num_bytes) : num_bytes_(static_cast<size_t>(num_bytes) + 2 * kHuge) {
        mapped_ = static_cast<char*>(
            mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        address_ = mapped_ + (kHuge - reinterpret_cast<uintptr_t>(mapped_) % kHuge);
    }
    ~Memory() { munmap(mapped_, num_bytes_); }
    char* address() const { return address_; }

private:
    static constexpr size_t kHuge = 2 << 20;
    size_t num_bytes_;
    char* mapped_;
    char* address_;
};

static void test_mapping(Random& random) {
    constexpr int64_t kSize = (5 << 20) + 100, kCut = 3 << 20, kAt = 4096 * 3;
    const std::string bytes = random_bytes(kSize, random);
    const std::string first = bytes.substr(0, kCut), second = bytes.substr(kCut);
    const uint64_t digests[] = {digest_of(first, nullptr), digest_of(second, nullptr)};
    for (const std::string damage : {"whole", "changed", "cut"}) {
        const int file = open_file(bytes);
        const Memory memory(kAt + kSize);
        char* const address = memory.address() + kAt;
        const std::vector<Extent> extents = {{file, 0, kCut, address}, {file, kCut, kSize - kCut, address + kCut}};
        Mapping mapping(extents, {"first", "second"});
        Reading reading(extents, {{0, 0, kCut}, {1, 0, kSize - kCut}}, {4096, 1 << 20, 2, 0, true});
        finish(reading);
        check(!reading.failure() && reading.digests() == std::vector<uint64_t>(digests, digests + 2),
              "mapping: digests of what stands in memory");
        bool is_ready = true;
        if (damage == "changed") is_ready = pwrite(file, "?!", 2, kSize - 50) == 2;
        if (damage == "cut") is_ready = ftruncate(file, kCut + 4096) == 0;
        mapping.take_in({{address, kCut, digests[0]}, {address + kCut, kSize - kCut, digests[1]}}, std::nullopt);
        while (!mapping.wait(1)) continue;
        const std::optional<Damage> found = mapping.damage();
        if (damage == "whole") {
            is_ready = ftruncate(file, 0) == 0;
            check(is_ready && !found && bytes.compare(0, kSize, address, kSize) == 0,
                  "mapping: what was taken in needs no file");
        } else {
            check(is_ready && found && found->path == "second" && found->is_cut == (damage == "cut") && any_damage(),
                  "mapping: the file that is " + damage + " is told");
            check(first.compare(0, kCut, address, kCut) == 0, "mapping: what is not damaged stays, beside what is " + damage);
        }
        close(file);
    }
    check(!any_damage(), "mapping: damage is told as long as there is a mapping");
}

static void test_refusals() {
    char byte;
    const auto refuses = [&](std::vector<Extent> extents, std::vector<Span> spans, ReadOptions options) {
        try {
            Reading reading(std::move(extents), std::move(spans), options);
        } catch (const std::invalid_argument&) {
            return true;
        }
        return false;
    };
    check(refuses({{0, 0, 0, &byte}}, {}, {}), "reading: an extent without bytes");
    check(refuses({{0, 0, 1, &byte}}, {{0, 0, 2}}, {}), "reading: a span outside its extent");
    check(refuses({}, {}, {4096, 5000, 1, 0}), "reading: pieces that are not blocks");
}

void test_reading(const Setting& setting) {
    Random random(11);
    test_hash(random);
    test_refusals();
    test_mapping(random);
    for (const int depth : {0, 1, 4}) {
        if (depth > 0 && !ring_refusal().empty()) continue;
        test_pieces(setting, random, depth);
        test_failures(depth);
    }
}

}  // namespace tv::test
