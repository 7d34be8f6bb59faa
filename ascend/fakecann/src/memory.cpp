// Device memory, pinned memory and the copies between them.
//
// A device is a range of addresses that nobody may touch (PROT_NONE) beside an equally large one that holds its bytes:
// address + distance is where they are. So a host that reads a device pointer dies, as it would with a real device.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "fake.h"

namespace fake {
namespace {

constexpr size_t kAlignment = 512;  // aclrtMalloc aligns to 512 bytes

size_t device_bytes() {
  static const char* text = std::getenv("FAKECANN_DEVICE_BYTES");
  static const size_t bytes = text ? std::strtoull(text, nullptr, 10) : 64ull << 30;  // HBM of an Ascend 910B3
  return bytes / kAlignment * kAlignment;
}

struct Memory {
  char* guarded;
  char* bytes;
  std::map<size_t, size_t> live;  // offset → size
  size_t used = 0;

  static char* reserve(int protection) {
    void* range = mmap(nullptr, device_bytes(), protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) throw std::runtime_error("fake CANN: no address space for a device's memory");
    return static_cast<char*>(range);
  }
  Memory() : guarded(reserve(PROT_NONE)), bytes(reserve(PROT_READ | PROT_WRITE)) {}

  bool owns(const void* address) const {
    const char* byte = static_cast<const char*>(address);
    return guarded <= byte && byte < guarded + device_bytes();
  }

  std::optional<size_t> first_fit(size_t size) const {
    size_t end = 0;
    for (auto [offset, taken] : live) {
      if (offset - end >= size) return end;
      end = offset + taken;
    }
    return device_bytes() - end >= size ? std::optional(end) : std::nullopt;
  }
};

Memory& memory(int device) {
  static std::vector<Memory> devices(device_count());
  return devices.at(device);
}

Memory* owner(const void* address) {
  for (int device = 0; device < device_count(); ++device) {
    if (memory(device).owns(address)) return &memory(device);
  }
  return nullptr;
}

std::map<const char*, size_t>& pinned() {
  static std::map<const char*, size_t> ranges;
  return ranges;
}

void* readable(const void* address, size_t bytes) {
  return is_device_address(address) ? bytes_of(address, bytes) : const_cast<void*>(address);
}

// The kinds of aclrtMemcpyKind, checked against what the addresses are.
enum Kind { kHostToHost, kHostToDevice, kDeviceToHost, kDeviceToDevice, kDefault };

std::optional<std::string> wrong_kind(const void* to, const void* from, int kind) {
  if (kind == kDefault) return std::nullopt;
  if (kind < kHostToHost || kind > kDefault) return "copy kind " + std::to_string(kind) + " is not emulated";
  bool from_device = kind == kDeviceToHost || kind == kDeviceToDevice;
  bool to_device = kind == kHostToDevice || kind == kDeviceToDevice;
  if (from_device != is_device_address(from))
    return std::string("source is ") + (from_device ? "not " : "") + "a device address";
  if (to_device != is_device_address(to))
    return std::string("target is ") + (to_device ? "not " : "") + "a device address";
  return std::nullopt;
}

void count_copy(const void* to, const void* from, size_t bytes) {
  const char* names[] = {"host_to_host", "device_to_host", "host_to_device", "device_to_device"};
  std::string name = names[2 * is_device_address(to) + is_device_address(from)];
  count((name + "_copies").c_str());
  count((name + "_bytes").c_str(), bytes);
}

int copy(void* to, size_t room, const void* from, size_t bytes, int kind, Stream* stream) {
  std::lock_guard lock(world());
  if (bytes > room)
    return fail(kInvalidParameter, "aclrtMemcpy: " + std::to_string(bytes) + " bytes into " + std::to_string(room));
  if (auto wrong = wrong_kind(to, from, kind)) return fail(kInvalidParameter, "aclrtMemcpy: " + *wrong);
  count_copy(to, from, bytes);
  auto move = [=] { std::memmove(readable(to, bytes), readable(from, bytes), bytes); };
  auto stays = [bytes](const void* address) { return is_device_address(address) || is_pinned(address, bytes); };
  if (stream && stays(to) && stays(from)) {
    count("async_copies");
    enqueue(*stream, "aclrtMemcpyAsync", move);
    return kSuccess;
  }
  // Pageable memory may be gone tomorrow: CANN, too, makes such a copy wait for the stream and the caller for the copy.
  if (stream) {
    if (int code = drain(*stream)) return code;
  }
  try {
    move();
  } catch (const std::exception& error) {
    return fail(kInvalidParameter, std::string("aclrtMemcpy: ") + error.what());
  }
  return kSuccess;
}

int set(void* to, size_t room, int value, size_t bytes, Stream* stream) {
  std::lock_guard lock(world());
  if (bytes > room)
    return fail(kInvalidParameter, "aclrtMemset: " + std::to_string(bytes) + " bytes into " + std::to_string(room));
  auto fill = [=] { std::memset(bytes_of(to, bytes), value, bytes); };
  count("memsets");
  if (stream) {
    enqueue(*stream, "aclrtMemsetAsync", fill);
    return kSuccess;
  }
  try {
    fill();
  } catch (const std::exception& error) {
    return fail(kInvalidParameter, std::string("aclrtMemset: ") + error.what());
  }
  return kSuccess;
}

}  // namespace

bool is_device_address(const void* address) { return owner(address) != nullptr; }

bool is_pinned(const void* address, size_t bytes) {
  const char* start = static_cast<const char*>(address);
  auto next = pinned().upper_bound(start);
  if (next == pinned().begin()) return false;
  auto [first, size] = *std::prev(next);
  return start + bytes <= first + size;
}

void* bytes_of(const void* device_address, size_t bytes) {
  Memory* home = owner(device_address);
  if (!home) throw std::runtime_error("a host address was given where a device address is wanted");
  size_t offset = static_cast<const char*>(device_address) - home->guarded;
  auto next = home->live.upper_bound(offset);
  bool inside = next != home->live.begin() && offset + bytes <= std::prev(next)->first + std::prev(next)->second;
  if (!inside)
    throw std::runtime_error(std::to_string(bytes) + " bytes at a device address that is not (or no longer) allocated");
  return home->bytes + offset;
}

}  // namespace fake

using namespace fake;

CANN_API int aclrtMalloc(void** address, size_t size, int) {
  std::lock_guard lock(world());
  Memory& home = memory(current_device());
  size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  auto offset = rounded ? home.first_fit(rounded) : std::nullopt;
  if (!offset) {
    return fail(kOutOfMemory, "aclrtMalloc: " + std::to_string(size) + " bytes wanted, " +
                                  std::to_string(device_bytes() - home.used) + " of " + std::to_string(device_bytes()) +
                                  " free");
  }
  home.live[*offset] = rounded;
  home.used += rounded;
  // New memory holds what its last owner left: noise makes a read before the first write visible. Only in the first
  // page, for the rest may never be used and would take the host's memory.
  std::memset(home.bytes + *offset, 0xA5, std::min(rounded, size_t{1} << 12));
  count("allocations");
  count("allocated_bytes", rounded);
  *address = home.guarded + *offset;
  return kSuccess;
}

CANN_API int aclrtMallocAlign32(void** address, size_t size, int policy) { return aclrtMalloc(address, size, policy); }

CANN_API int aclrtFree(void* address) {
  std::lock_guard lock(world());
  Memory* home = owner(address);
  size_t offset = home ? static_cast<char*>(address) - home->guarded : 0;
  if (!home || !home->live.count(offset))
    return fail(kInvalidParameter, "aclrtFree: not an address that aclrtMalloc gave");
  size_t size = home->live[offset];
  home->live.erase(offset);
  home->used -= size;
  madvise(home->bytes + offset, size, MADV_DONTNEED);
  count("frees");
  return kSuccess;
}

CANN_API int aclrtMallocHost(void** address, size_t size) {
  std::lock_guard lock(world());
  if (posix_memalign(address, 4096, size ? size : 1))
    return fail(kOutOfMemory, "aclrtMallocHost: " + std::to_string(size) + " bytes");
  pinned()[static_cast<char*>(*address)] = size;
  count("pinned_allocations");
  return kSuccess;
}

CANN_API int aclrtFreeHost(void* address) {
  std::lock_guard lock(world());
  if (!pinned().erase(static_cast<char*>(address)))
    return fail(kInvalidParameter, "aclrtFreeHost: not an address that aclrtMallocHost gave");
  std::free(address);
  return kSuccess;
}

// attribute: aclrtMemAttr, which names DDR or HBM; this device has one memory.
CANN_API int aclrtGetMemInfo(int, size_t* free_bytes, size_t* total_bytes) {
  std::lock_guard lock(world());
  *total_bytes = device_bytes();
  *free_bytes = device_bytes() - memory(current_device()).used;
  return kSuccess;
}

CANN_API int aclrtMemcpy(void* to, size_t room, const void* from, size_t bytes, int kind) {
  count("blocking_copies");
  return copy(to, room, from, bytes, kind, nullptr);
}

CANN_API int aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t bytes, int kind, void* stream) {
  return copy(to, room, from, bytes, kind, &stream_of(stream));
}

CANN_API int aclrtMemset(void* to, size_t room, int value, size_t bytes) {
  return set(to, room, value, bytes, nullptr);
}

CANN_API int aclrtMemsetAsync(void* to, size_t room, int value, size_t bytes, void* stream) {
  return set(to, room, value, bytes, &stream_of(stream));
}

// A prefetch into L2 changes no value; what it names must exist when it is its turn.
CANN_API int aclrtCmoAsync(void* address, size_t bytes, int type, void* stream) {
  constexpr int kPrefetch = 0;  // ACL_RT_CMO_TYPE_PREFETCH
  if (type != kPrefetch) return fail(kUnsupported, "aclrtCmoAsync: type " + std::to_string(type) + " is not emulated");
  count("prefetches");
  count("prefetched_bytes", bytes);
  enqueue(stream_of(stream), "aclrtCmoAsync", [=] { bytes_of(address, bytes); });
  return kSuccess;
}
