// Captured graphs: the tasks of one stream, kept instead of queued, to be queued together as often as wanted.
//
// A group of captured tasks can be replaced. The replacement is itself a task of the stream that makes it, so a graph
// that does not wait for it (by an external event) runs with what it had before.
#include <map>

#include "streams.h"

namespace fake {

struct Graph {
  std::vector<Task> tasks;
};

namespace {

struct Group {  // of a graph's tasks
  std::shared_ptr<Graph> graph;
  size_t first, end;
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

std::shared_ptr<Group> closed(Stream& stream) {
  auto found = open_groups().find(&stream);
  if (found == open_groups().end()) throw std::runtime_error("no group is open on the stream");
  auto group = found->second;
  open_groups().erase(found);
  return group;
}

void replace(Group& group, const std::vector<Task>& tasks) {
  std::copy(tasks.begin(), tasks.end(), group.graph->tasks.begin() + group.first);
}

}  // namespace
}  // namespace fake

using namespace fake;

// mode says which other calls a capture forbids; here those that cannot be captured are refused in every mode.
CANN_API int aclmdlRICaptureBegin(void* handle, int) {
  return guarded("aclmdlRICaptureBegin", [&] {
    Stream& stream = stream_of(handle);
    if (stream.sink) throw std::runtime_error("the stream is being captured already");
    stream.graph = std::make_shared<Graph>();
    stream.sink = &stream.graph->tasks;
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
    stream.graph.reset();
    stream.sink = nullptr;
    graphs()[made.get()] = made;
    *graph = made.get();
    return kSuccess;
  });
}

CANN_API int aclmdlRIExecuteAsync(void* handle, void* stream) {
  return guarded("aclmdlRIExecuteAsync", [&] {
    auto graph = known(graphs(), handle, "graph");
    count("replays");
    enqueue(stream_of(stream), "aclmdlRIExecuteAsync", [graph] {
      // By number: a task may replace those that come after it.
      for (size_t i = 0; i < graph->tasks.size(); ++i) Task(graph->tasks[i]).work();
    });
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
    open_groups()[&stream] = std::make_shared<Group>(Group{graph, graph->tasks.size(), 0});
    return kSuccess;
  });
}

CANN_API int aclmdlRICaptureTaskGrpEnd(void* handle, void** group_handle) {
  return guarded("aclmdlRICaptureTaskGrpEnd", [&] {
    Stream& stream = stream_of(handle);
    auto group = closed(stream);
    group->end = captured(stream)->tasks.size();
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
