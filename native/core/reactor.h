// The control thread: an epoll loop for sockets, pidfds and timers of the control plane.
//
// Keeps INV-3 by its place: connections are accepted and deaths noticed here, whatever the interpreter does meanwhile.
// Slow path only, so tables behind a mutex and std::function are welcome; the mutex is never held while user code runs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/native_thread.h"
#include "hixl_aio/status.h"

namespace hixl_aio {

using TimerId = std::uint64_t;  // never reused; 0 names no timer

class Reactor {
 public:
  using Task = std::function<void()>;
  using Handler = std::function<void(std::uint32_t)>;  // gets the epoll events

  Reactor();
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  Status start();
  // Any thread. Tasks run on the control thread in the order in which they were posted. False: stopped, dropped.
  bool post(Task task);

  // Any thread, also before start. Handlers run on the control thread, level-triggered, and must not throw.
  Status watch(int fd, std::uint32_t events, Handler handler);
  Status modify(int fd, std::uint32_t events);
  // On the control thread the handler does not run again, not even for an event of the batch that is being dispatched.
  // From another thread it may be running now, for the last time. Call it before the fd is closed: a descriptor that was
  // also sent elsewhere would go on reporting events. False: not watched.
  bool unwatch(int fd);

  // Any thread. Runs once on the control thread, at the earliest `seconds` from now; equal deadlines in order of creation.
  // 0: stopped, dropped.
  TimerId add_timer(double seconds, Task task);
  // False: has run, is running, or never existed.
  bool cancel_timer(TimerId timer);

  // Refuses further tasks, runs those posted before, drops watches and timers, joins, closes its descriptors. On the control thread itself it
  // only asks for the end; the join is left to a later call from elsewhere. If the thread was never started, what was
  // posted runs here and now. Idempotent, but not for two threads at once.
  void stop();
  [[nodiscard]] bool on_thread() const noexcept { return thread_.on_thread(); }
  // In a forked child: closes the descriptors; afterwards this object must be leaked, its mutex may be held by a thread
  // that is not there.
  void abandon_after_fork() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Watch {
    std::uint32_t id;
    Handler handler;
  };

  void run();
  void wake() noexcept;
  [[nodiscard]] int wait_milliseconds();
  void dispatch(int fd, std::uint32_t id, std::uint32_t events);
  void run_due_timers();
  bool run_posted();  // false: stopping, and everything posted has run
  void close_fds() noexcept;

  int epoll_fd_ = -1;
  int wake_fd_ = -1;
  NativeThread thread_;

  std::mutex mutex_;  // guards what follows
  std::vector<Task> posted_;
  std::unordered_map<int, std::shared_ptr<Watch>> watches_;
  std::map<std::pair<Clock::time_point, TimerId>, Task> timers_;
  std::unordered_map<TimerId, Clock::time_point> deadlines_;
  std::uint32_t next_watch_ = 1;
  TimerId next_timer_ = 1;
  bool stopping_ = false;
};

}  // namespace hixl_aio
