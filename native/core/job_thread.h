// One thread for work that may block: munmap of gigabytes, fallocate, waiting for pins, the end of a transport.
//
// Keeps INV-7: what can block goes here instead of the loop thread. Jobs run in the order in which they were posted.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

#include "core/native_thread.h"
#include "hixl_aio/status.h"

namespace hixl_aio {

class JobThread {
 public:
  JobThread() = default;
  ~JobThread() { stop(); }
  JobThread(const JobThread&) = delete;
  JobThread& operator=(const JobThread&) = delete;

  Status start();
  // Any thread. False: stopped, the job was dropped.
  bool post(std::function<void()> job);
  // Refuses further jobs, runs those that are queued, then joins. On the jobs thread itself it only asks for the end; the
  // join is left to a later call from elsewhere. If the thread was never started, what was posted runs here and now.
  // Idempotent, but not for two threads at once.
  void stop();
  [[nodiscard]] bool on_thread() const noexcept { return thread_.on_thread(); }
  // In a forked child; afterwards this object must be leaked, its mutex may be held by a thread that is not there.
  void abandon_after_fork() noexcept { thread_.forget(); }

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  NativeThread thread_;
};

}  // namespace hixl_aio
