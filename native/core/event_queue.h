// Control-plane events on their way to the loop thread, in the order in which they were raised.
//
// A mutex is fine here: events are rare (a connection, a region, a death), carry strings anyway, and the lock is held for
// a move only, so the loop thread never waits for anything that can block (INV-7). A drain without events does not take
// it.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "hixl_aio/types.h"

namespace hixl_aio {

class EventQueue {
 public:
  // Any thread. The caller rings the completion channel afterwards.
  void push(Event&& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    // Relaxed: the doorbell that follows orders it for the drain, the mutex orders the events themselves.
    waiting_.store(events_.size(), std::memory_order_relaxed);
  }

  // The consumer, after its doorbell was re-armed: everything that is there.
  std::vector<Event> take_all() {
    std::vector<Event> taken;
    if (waiting_.load(std::memory_order_relaxed) == 0) {  // relaxed: see push
      return taken;
    }
    const std::lock_guard lock(mutex_);
    taken.swap(events_);
    waiting_.store(0, std::memory_order_relaxed);  // relaxed: under the mutex with every other write
    return taken;
  }

 private:
  std::mutex mutex_;
  std::vector<Event> events_;
  std::atomic<std::size_t> waiting_{0};
};

}  // namespace hixl_aio
