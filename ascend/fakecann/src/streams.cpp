// Streams. Work that is put on a stream runs when somebody waits for it, in order, and not a moment sooner.
//
// A real device runs early or late, so a missing wait is a bug that shows now and then; here it shows every time.
#include "streams.h"

#include <map>
#include <set>

namespace fake {
namespace {

std::set<Stream*>& streams() {
  static std::set<Stream*> all;
  return all;
}

Stream* new_stream(int device) {
  static int next_id = 0;
  Stream* stream = new Stream{device, next_id++};
  streams().insert(stream);
  return stream;
}

int failure_of(const Stream& stream) {
  return stream.failure.empty()
             ? kSuccess
             : fail(kKernelFailed, "stream " + std::to_string(stream.id) + " failed in " + stream.failure);
}

}  // namespace

void step(Stream& stream) {
  Task task = std::move(stream.tasks.front());
  stream.tasks.pop_front();
  stream.is_running = true;
  try {
    task.work();
  } catch (const std::exception& error) {
    stream.failure = task.name + ": " + error.what();
    stream.tasks.clear();
  }
  stream.is_running = false;
}

void advance(Stream& stream) {
  if (stream.is_running) throw std::runtime_error("two streams wait for each other");
  step(stream);
}

Stream& stream_of(void* handle) {
  std::lock_guard lock(world());
  static std::map<int, Stream*> defaults;
  if (!handle) {
    Stream*& stream = defaults[current_device()];
    if (!stream) stream = new_stream(current_device());
    return *stream;
  }
  Stream* stream = static_cast<Stream*>(handle);
  if (!streams().count(stream)) throw std::runtime_error("fake CANN: not a stream");
  return *stream;
}

void enqueue(Stream& stream, std::string name, std::function<void()> work) {
  std::lock_guard lock(world());
  Task task{std::move(name), std::move(work)};
  if (stream.sink) {
    stream.sink->push_back(std::move(task));
  } else if (stream.failure.empty()) {
    stream.tasks.push_back(std::move(task));
  }
}

int drain(Stream& stream) {
  std::lock_guard lock(world());
  if (stream.sink) return fail(kUnsupported, "a stream is waited for while it is captured");
  while (!stream.tasks.empty()) step(stream);
  return failure_of(stream);
}

}  // namespace fake

using namespace fake;

CANN_API int aclrtCreateStream(void** stream) {
  return guarded("aclrtCreateStream", [&] {
    *stream = new_stream(current_device());
    count("streams");
    return kSuccess;
  });
}

// priority and flag choose between kinds of hardware queues; order and results do not depend on them.
CANN_API int aclrtCreateStreamWithConfig(void** stream, uint32_t, uint32_t) { return aclrtCreateStream(stream); }

CANN_API int aclrtDestroyStream(void* handle) {
  return guarded("aclrtDestroyStream", [&] {
    Stream* stream = &stream_of(handle);
    int code = drain(*stream);
    forget_events(*stream);
    forget_writers(*stream);
    streams().erase(stream);
    delete stream;
    return code;
  });
}

CANN_API int aclrtDestroyStreamForce(void* handle) {
  return guarded("aclrtDestroyStreamForce", [&] {
    stream_of(handle).tasks.clear();
    return aclrtDestroyStream(handle);
  });
}

CANN_API int aclrtStreamGetId(void* handle, int32_t* id) {
  return guarded("aclrtStreamGetId", [&] {
    *id = stream_of(handle).id;
    return kSuccess;
  });
}

CANN_API int aclrtSynchronizeStream(void* handle) {
  count("stream_syncs");
  return guarded("aclrtSynchronizeStream", [&] { return drain(stream_of(handle)); });
}

// The limit is on a device that hangs; this one cannot.
CANN_API int aclrtSynchronizeStreamWithTimeout(void* handle, int32_t) { return aclrtSynchronizeStream(handle); }

CANN_API int aclrtSynchronizeDevice() {
  count("device_syncs");
  return guarded("aclrtSynchronizeDevice", [&] {
    int code = kSuccess;
    for (Stream* stream : streams()) {
      if (stream->device != current_device()) continue;
      if (int failed = drain(*stream)) code = failed;
    }
    return code;
  });
}

CANN_API int aclrtSynchronizeDeviceWithTimeout(int32_t) { return aclrtSynchronizeDevice(); }

// A question says how things stood, then lets one task pass, so that a loop that polls comes to an end.
CANN_API int aclrtStreamQuery(void* handle, int* status) {
  return guarded("aclrtStreamQuery", [&] {
    Stream& stream = stream_of(handle);
    *status = stream.tasks.empty() ? 0 : 1;  // ACL_STREAM_STATUS_COMPLETE, ACL_STREAM_STATUS_NOT_READY
    if (!stream.tasks.empty()) step(stream);
    return failure_of(stream);
  });
}
