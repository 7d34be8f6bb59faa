// Values in device memory that one stream writes and another waits for. torch_npu makes its external events of them:
// they may be waited for before they are recorded, so a captured graph can wait for what comes after the capture.
#include <map>

#include "streams.h"

namespace fake {
namespace {

// Who has put a write on a stream, by address, in that order.
std::map<const void*, std::deque<Stream*>>& writers() {
  static std::map<const void*, std::deque<Stream*>> all;
  return all;
}

uint64_t& value_at(void* address) { return *static_cast<uint64_t*>(bytes_of(address, sizeof(uint64_t))); }

enum Condition { kAtLeast, kEqual, kAnyBit, kAnyClearBit };  // ACL_STREAM_WAIT_VALUE_GEQ, _EQ, _AND, _NOR

bool holds(uint64_t found, uint64_t wanted, uint32_t condition) {
  switch (condition) {
    case kAtLeast: return found >= wanted;
    case kEqual: return found == wanted;
    case kAnyBit: return (found & wanted) != 0;
    case kAnyClearBit: return ~(found | wanted) != 0;
    default: throw std::runtime_error("condition " + std::to_string(condition) + " is not emulated");
  }
}

void wait(void* address, uint64_t wanted, uint32_t condition) {
  auto& candidates = writers()[address];
  while (!holds(value_at(address), wanted, condition)) {
    if (candidates.empty()) throw std::runtime_error("waits for a value that nobody is about to write");
    Stream& writer = *candidates.front();
    if (writer.tasks.empty()) {
      candidates.pop_front();
    } else {
      advance(writer);
    }
  }
}

}  // namespace

void forget_writers(const Stream& stream) {
  for (auto& [address, streams] : writers()) std::erase(streams, &stream);
}

}  // namespace fake

using namespace fake;

// flag is reserved.
CANN_API int aclrtValueWrite(void* address, uint64_t value, uint32_t, void* handle) {
  return guarded("aclrtValueWrite", [&] {
    Stream& stream = stream_of(handle);
    if (!stream.sink) writers()[address].push_back(&stream);
    enqueue(stream, "aclrtValueWrite", [=] { value_at(address) = value; });
    return kSuccess;
  });
}

CANN_API int aclrtValueWait(void* address, uint64_t value, uint32_t condition, void* stream) {
  return guarded("aclrtValueWait", [&] {
    enqueue(stream_of(stream), "aclrtValueWait", [=] { wait(address, value, condition); });
    return kSuccess;
  });
}
