// What a stream holds, for the parts that put work on one or take it off: streams, events, captured graphs.
#pragma once

#include <deque>
#include <vector>

#include "fake.h"

namespace fake {

struct Task {
  std::string name;
  std::function<void()> work;
};

struct Graph;

struct Stream {
  int device;
  int id;
  std::deque<Task> tasks;
  std::string failure;                // of the first kernel that failed; what was queued behind it is dropped
  bool is_running = false;            // in the middle of a task
  std::shared_ptr<Graph> graph;       // while it is captured
  std::vector<Task>* sink = nullptr;  // while it is captured, or while it updates a graph: tasks go there
};

// The stream's next task.
void step(Stream& stream);
// The same from within a task of another stream, which waits for this one.
void advance(Stream& stream);

// In a captured graph: behind the first `end` tasks of a lane.
struct Place {
  std::shared_ptr<Graph> graph;
  size_t lane, end;
};
// Behind what has been captured on the stream so far.
Place place(const Stream& stream);
// A task that waits for a place in the capture that is under way; a stream that is not part of it becomes one.
void wait_in_capture(Stream& stream, const Place& place);

// What still points at a stream that is about to go.
void forget_events(const Stream& stream);
void forget_writers(const Stream& stream);

}  // namespace fake
