// Captured graphs: the tasks of some streams, kept instead of queued, to be queued together as often as wanted.
//
// Every stream of a capture is a lane of the graph. A replay runs the first one, and as much of another as something
// waits for: like streams, lanes are lazy, so that a missing wait shows. A stream joins a capture when it waits for an
// event recorded in one; what it then captures has to be waited for before the capture ends.
//
// A group of captured tasks can be replaced. The replacement is itself a task of the stream that makes it, so a graph
// that does not wait for it (by an external event) runs with what it had before.
#include <algorithm>
#include <map>

#include "streams.h"

namespace fake {

struct Graph {
  std::deque<std::vector<Task>> lanes = {};  // a deque: streams point at their lane while more are added
  std::vector<Stream*> streams = {};         // of the lanes, while they are captured
  std::vector<size_t> awaited = {};          // of each lane: what the first one waits for, at the latest
  std::vector<size_t> cursors = {};          // of each lane, during a replay

  bool is_open() const { return !streams.empty(); }

  void run_to(size_t lane, size_t end) {
    // By number: a task may replace those that come after it.
    while (cursors[lane] < end) Task(lanes[lane][cursors[lane]++]).work();
  }
  void run() {
    cursors.assign(lanes.size(), 0);
    run_to(0, lanes[0].size());
  }
};

namespace {

struct Group {  // of a lane's tasks
  std::shared_ptr<Graph> graph;
  size_t lane, first, end;
  std::vector<Task> replacement = {};
};

std::map<void*, std::shared_ptr<Graph>>& graphs() {
  static std::map<void*, std::shared_ptr<Graph>> all;
  return all;
}

std::map<void*, std::shared_ptr<Group>>& groups() {
  static std::map<void*, std::shared_ptr<Group>> all;
  return all;
}

// What is open on a stream: a group while it is captured, or while it is replaced.
std::map<Stream*, std::shared_ptr<Group>>& open_groups() {
  static std::map<Stream*, std::shared_ptr<Group>> all;
  return all;
}

template <class Thing>
std::shared_ptr<Thing> known(std::map<void*, std::shared_ptr<Thing>>& all, void* handle, const char* what) {
  auto found = all.find(handle);
  if (found == all.end()) throw std::runtime_error(std::string("not a ") + what);
  return found->second;
}

std::shared_ptr<Graph> captured(const Stream& stream) {
  if (!stream.graph) throw std::runtime_error("the stream is not being captured");
  return stream.graph;
}

size_t lane_of(const Stream& stream) {
  auto& streams = captured(stream)->streams;
  return std::find(streams.begin(), streams.end(), &stream) - streams.begin();
}

void join(Stream& stream, const std::shared_ptr<Graph>& graph) {
  stream.graph = graph;
  stream.sink = &graph->lanes.emplace_back();
  graph->streams.push_back(&stream);
  graph->awaited.push_back(0);
}

std::shared_ptr<Group> closed(Stream& stream) {
  auto found = open_groups().find(&stream);
  if (found == open_groups().end()) throw std::runtime_error("no group is open on the stream");
  auto group = found->second;
  open_groups().erase(found);
  return group;
}

void replace(Group& group, const std::vector<Task>& tasks) {
  std::copy(tasks.begin(), tasks.end(), group.graph->lanes[group.lane].begin() + group.first);
}

}  // namespace

Place place(const Stream& stream) { return {captured(stream), lane_of(stream), stream.sink->size()}; }

void wait_in_capture(Stream& stream, const Place& place) {
  if (!place.graph->is_open()) throw std::runtime_error("the event was recorded in a capture that has ended");
  if (!stream.graph) join(stream, place.graph);
  if (stream.graph != place.graph) throw std::runtime_error("the event was recorded in another capture");
  size_t& awaited = place.graph->awaited[place.lane];
  if (lane_of(stream) == 0) awaited = std::max(awaited, place.end);
  // Not a shared pointer: the graph owns the task.
  enqueue(stream, "aclrtStreamWaitEvent",
          [graph = place.graph.get(), lane = place.lane, end = place.end] { graph->run_to(lane, end); });
}

}  // namespace fake

using namespace fake;

// mode says which other calls a capture forbids; here those that cannot be captured are refused in every mode.
CANN_API int aclmdlRICaptureBegin(void* handle, int) {
  return guarded("aclmdlRICaptureBegin", [&] {
    Stream& stream = stream_of(handle);
    if (stream.sink) throw std::runtime_error("the stream is being captured already");
    join(stream, std::make_shared<Graph>());
    count("captures");
    return kSuccess;
  });
}

CANN_API int aclmdlRICaptureThreadExchangeMode(int* mode) {
  static thread_local int present = 0;
  std::swap(*mode, present);
  return kSuccess;
}

CANN_API int aclmdlRICaptureGetInfo(void* handle, int* status, void** graph) {
  return guarded("aclmdlRICaptureGetInfo", [&] {
    Stream& stream = stream_of(handle);
    *status = stream.graph ? 1 : 0;  // ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE, ACL_MODEL_RI_CAPTURE_STATUS_NONE
    if (graph) *graph = stream.graph.get();
    return kSuccess;
  });
}

CANN_API int aclmdlRICaptureEnd(void* handle, void** graph) {
  return guarded("aclmdlRICaptureEnd", [&] {
    Stream& stream = stream_of(handle);
    auto made = captured(stream);
    if (lane_of(stream) != 0) throw std::runtime_error("the capture began on another stream");
    for (Stream* each : made->streams) {
      each->graph.reset();
      each->sink = nullptr;
    }
    made->streams.clear();
    for (size_t lane = 1; lane < made->lanes.size(); ++lane) {
      if (made->awaited[lane] < made->lanes[lane].size())
        throw std::runtime_error("a stream joined the capture, and nothing waits for the end of it");
    }
    graphs()[made.get()] = made;
    *graph = made.get();
    return kSuccess;
  });
}

CANN_API int aclmdlRIExecuteAsync(void* handle, void* stream) {
  return guarded("aclmdlRIExecuteAsync", [&] {
    auto graph = known(graphs(), handle, "graph");
    count("replays");
    enqueue(stream_of(stream), "aclmdlRIExecuteAsync", [graph] { graph->run(); });
    return kSuccess;
  });
}

CANN_API int aclmdlRIDestroy(void* handle) {
  return guarded("aclmdlRIDestroy", [&] {
    auto graph = known(graphs(), handle, "graph");
    graphs().erase(handle);
    std::erase_if(groups(), [&](auto& item) { return item.second->graph == graph; });
    return kSuccess;
  });
}

CANN_API int aclmdlRICaptureTaskGrpBegin(void* handle) {
  return guarded("aclmdlRICaptureTaskGrpBegin", [&] {
    Stream& stream = stream_of(handle);
    auto graph = captured(stream);
    open_groups()[&stream] = std::make_shared<Group>(Group{graph, lane_of(stream), stream.sink->size(), 0});
    return kSuccess;
  });
}

CANN_API int aclmdlRICaptureTaskGrpEnd(void* handle, void** group_handle) {
  return guarded("aclmdlRICaptureTaskGrpEnd", [&] {
    Stream& stream = stream_of(handle);
    auto group = closed(stream);
    group->end = stream.sink->size();
    groups()[group.get()] = group;
    *group_handle = group.get();
    return kSuccess;
  });
}

CANN_API int aclmdlRICaptureTaskUpdateBegin(void* handle, void* group_handle) {
  return guarded("aclmdlRICaptureTaskUpdateBegin", [&] {
    Stream& stream = stream_of(handle);
    if (stream.sink) throw std::runtime_error("the stream is being captured or updates already");
    auto group = known(groups(), group_handle, "group");
    group->replacement.clear();
    open_groups()[&stream] = group;
    stream.sink = &group->replacement;
    return kSuccess;
  });
}

CANN_API int aclmdlRICaptureTaskUpdateEnd(void* handle) {
  return guarded("aclmdlRICaptureTaskUpdateEnd", [&] {
    Stream& stream = stream_of(handle);
    auto group = closed(stream);
    stream.sink = nullptr;
    if (group->replacement.size() != group->end - group->first) {
      throw std::runtime_error(std::to_string(group->replacement.size()) + " tasks for " +
                               std::to_string(group->end - group->first));
    }
    count("graph_updates");
    enqueue(stream, "aclmdlRICaptureTaskUpdate", [group, tasks = group->replacement] { replace(*group, tasks); });
    return kSuccess;
  });
}
