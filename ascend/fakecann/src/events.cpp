// Events: marks on a stream that another stream, or the host, waits for.
//
// An event wait is a task like another: when it runs, it first runs the other stream up to the recorded mark. A record
// makes a new mark, and a wait is for the last one made before it.
#include <chrono>
#include <optional>
#include <set>

#include "streams.h"

namespace fake {
namespace {

struct Mark {
  Stream* stream;
  bool is_reached = false;
  double reached_ms = 0;
  std::optional<Place> captured = {};  // recorded in a capture: it orders the streams of that, and nothing else
};

struct Event {
  std::shared_ptr<Mark> mark;  // null: never recorded
};

std::set<Event*>& events() {
  static std::set<Event*> all;
  return all;
}

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void reach(Mark& mark) {
  if (mark.captured) throw std::runtime_error("the event was recorded in a capture: only streams of it can wait");
  while (!mark.is_reached && !mark.stream->tasks.empty()) advance(*mark.stream);
  if (!mark.is_reached)
    throw std::runtime_error("waits for an event behind a failed kernel (" + mark.stream->failure + ")");
}

void refuse_update(const Stream& stream) {
  if (stream.sink && !stream.graph) throw std::runtime_error("an event in the update of a graph is not emulated");
}

Event& event_of(void* handle) {
  Event* event = static_cast<Event*>(handle);
  if (!events().count(event)) throw std::runtime_error("not an event");
  return *event;
}

}  // namespace

void forget_events(const Stream& stream) {
  for (Event* event : events()) {
    if (event->mark && event->mark->stream == &stream) event->mark->is_reached = true;
  }
}

}  // namespace fake

using namespace fake;

// flag says whether the event also carries a time; here every event does.
CANN_API int aclrtCreateEventExWithFlag(void** handle, uint32_t) {
  return guarded("aclrtCreateEventExWithFlag", [&] {
    Event* event = new Event{};
    events().insert(event);
    *handle = event;
    return kSuccess;
  });
}

CANN_API int aclrtCreateEventWithFlag(void** handle, uint32_t flag) { return aclrtCreateEventExWithFlag(handle, flag); }

CANN_API int aclrtDestroyEvent(void* handle) {
  return guarded("aclrtDestroyEvent", [&] {
    Event* event = &event_of(handle);
    events().erase(event);
    delete event;
    return kSuccess;
  });
}

CANN_API int aclrtRecordEvent(void* handle, void* stream_handle) {
  count("event_records");
  return guarded("aclrtRecordEvent", [&] {
    Stream& stream = stream_of(stream_handle);
    refuse_update(stream);
    auto mark = std::make_shared<Mark>(Mark{&stream});
    event_of(handle).mark = mark;
    if (stream.graph) {
      mark->captured = place(stream);
      return kSuccess;
    }
    enqueue(stream, "aclrtRecordEvent", [mark] {
      mark->is_reached = true;
      mark->reached_ms = now_ms();
    });
    return kSuccess;
  });
}

CANN_API int aclrtStreamWaitEvent(void* stream_handle, void* handle) {
  count("event_waits");
  return guarded("aclrtStreamWaitEvent", [&] {
    Stream& stream = stream_of(stream_handle);
    refuse_update(stream);
    auto mark = event_of(handle).mark;
    if (!mark) throw std::runtime_error("the event was never recorded: a real stream would wait for ever");
    if (mark->captured) {
      wait_in_capture(stream, *mark->captured);
      return kSuccess;
    }
    if (stream.graph) throw std::runtime_error("a capture waits for an event that was recorded outside it");
    enqueue(stream, "aclrtStreamWaitEvent", [mark] { reach(*mark); });
    return kSuccess;
  });
}

CANN_API int aclrtSynchronizeEvent(void* handle) {
  count("event_syncs");
  return guarded("aclrtSynchronizeEvent", [&] {
    auto mark = event_of(handle).mark;
    if (mark) reach(*mark);
    return kSuccess;
  });
}

// A question says how things stood, then lets one task pass, so that a loop that polls comes to an end.
CANN_API int aclrtQueryEventStatus(void* handle, int* status) {
  return guarded("aclrtQueryEventStatus", [&] {
    auto mark = event_of(handle).mark;
    if (mark && mark->captured) throw std::runtime_error("the event was recorded in a capture");
    bool is_done = !mark || mark->is_reached;
    *status = is_done ? 1 : 0;  // ACL_EVENT_RECORDED_STATUS_COMPLETE, ACL_EVENT_RECORDED_STATUS_NOT_READY
    if (!is_done && !mark->stream->tasks.empty()) step(*mark->stream);
    return kSuccess;
  });
}

CANN_API int aclrtEventElapsedTime(float* ms, void* start, void* end) {
  return guarded("aclrtEventElapsedTime", [&] {
    auto from = event_of(start).mark, to = event_of(end).mark;
    if (!from || !to || !from->is_reached || !to->is_reached) throw std::runtime_error("an event has not been reached");
    *ms = static_cast<float>(to->reached_ms - from->reached_ms);
    return kSuccess;
  });
}
