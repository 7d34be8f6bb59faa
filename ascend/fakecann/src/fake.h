// What every part of the fake shares: refusals, counters, device memory, streams. Knows no libtorch and no operator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#define CANN_API extern "C" __attribute__((visibility("default")))

namespace fake {

// Codes as in CANN's acl_base_rt.h and error_codes/rt_error_codes.h.
constexpr int kSuccess = 0;
constexpr int kInvalidParameter = 107000;  // ACL_ERROR_RT_PARAM_INVALID
constexpr int kInvalidDevice = 107001;     // ACL_ERROR_RT_INVALID_DEVICEID
constexpr int kUnsupported = 200006;       // ACL_ERROR_FEATURE_UNSUPPORTED
constexpr int kOutOfMemory = 207001;       // ACL_ERROR_RT_MEMORY_ALLOCATION
constexpr int kKernelFailed = 507015;      // ACL_ERROR_RT_AICORE_EXCEPTION

// Remembers the sentence for aclGetRecentErrMsg, prints it, and gives the code back: every refusal goes through here.
int fail(int code, const std::string& sentence);
// What a generated entry point answers that nothing here computes.
int refuse(const char* entry_point);

// The body of an entry point under the lock below. What it throws becomes a code, and a sentence that begins with the
// name.
int guarded(const std::string& entry_point, const std::function<int()>& body);

// Counted since the start or the last reset; names are what Python reads.
void count(const char* name, uint64_t amount = 1);
void count_launch(const std::string& operator_name);

// One lock around the fake's whole state: CANN is called from Python's thread and from torch_npu's task queue.
std::recursive_mutex& world();

int current_device();
int device_count();

// The bytes behind a device address. The address itself is never readable: the process dies if it touches it.
// Throws if [address, address + bytes) is not inside one live allocation.
void* bytes_of(const void* device_address, size_t bytes);
bool is_device_address(const void* address);
bool is_pinned(const void* address, size_t bytes);

struct Stream;
Stream& stream_of(void* handle);  // null: the default stream of the current device
// Runs when something waits for this stream, in order, and not before. A throw is a failed kernel.
void enqueue(Stream& stream, std::string name, std::function<void()> work);
// Everything on it, now; the failure's code if a kernel failed.
int drain(Stream& stream);

}  // namespace fake
