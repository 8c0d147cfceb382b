// See reactor.h.
#include "core/reactor.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <initializer_list>
#include <limits>

namespace hixl_aio {

namespace {

constexpr std::uint32_t wake_id = 0;

// An event carries the watch's number besides the fd: an fd that was closed and reused within one batch of events then
// does not match (INV-9).
std::uint64_t pack(int fd, std::uint32_t id) noexcept {
  return (std::uint64_t{id} << 32) | static_cast<std::uint32_t>(fd);
}

Status from_errno(int error) noexcept {
  return error == ENOMEM || error == ENOSPC ? Status::resource_exhausted : Status::invalid_argument;
}

}  // namespace

Reactor::Reactor() : epoll_fd_(::epoll_create1(EPOLL_CLOEXEC)), wake_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = pack(wake_fd_, wake_id);
  if (epoll_fd_ < 0 || wake_fd_ < 0 || ::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, wake_fd_, &event) != 0) {
    close_fds();  // start() reports it
  }
}

Reactor::~Reactor() { stop(); }

void Reactor::close_fds() noexcept {
  for (int* fd : {&epoll_fd_, &wake_fd_}) {
    if (*fd >= 0) {
      ::close(*fd);
      *fd = -1;
    }
  }
}

void Reactor::abandon_after_fork() noexcept {
  thread_.forget();
  close_fds();
}

Status Reactor::start() {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) {
      return Status::closed;
    }
    if (epoll_fd_ < 0) {
      return Status::resource_exhausted;
    }
  }
  return thread_.start("hixl-control", [](void* self) noexcept { static_cast<Reactor*>(self)->run(); }, this);
}

// Under the mutex and before stopping_, or by stop itself: stop closes the descriptor, whose number is then reused.
void Reactor::wake() noexcept {
  const std::uint64_t one = 1;
  while (::write(wake_fd_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

bool Reactor::post(Task task) {
  const std::lock_guard lock(mutex_);
  if (stopping_) {
    return false;
  }
  posted_.push_back(std::move(task));
  wake();
  return true;
}

Status Reactor::watch(int fd, std::uint32_t events, Handler handler) {
  const std::lock_guard lock(mutex_);
  if (stopping_) {
    return Status::closed;
  }
  if (watches_.contains(fd)) {
    return Status::invalid_argument;
  }
  const std::uint32_t id = next_watch_;
  next_watch_ = next_watch_ == std::numeric_limits<std::uint32_t>::max() ? 1 : next_watch_ + 1;
  epoll_event event{};
  event.events = events;
  event.data.u64 = pack(fd, id);
  // Under the lock, so that an event that fires at once finds its entry.
  if (::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
    return from_errno(errno);
  }
  watches_.emplace(fd, std::make_shared<Watch>(Watch{id, std::move(handler)}));
  return Status::ok;
}

Status Reactor::modify(int fd, std::uint32_t events) {
  const std::lock_guard lock(mutex_);
  const auto found = watches_.find(fd);
  if (found == watches_.end()) {
    return Status::invalid_argument;
  }
  epoll_event event{};
  event.events = events;
  event.data.u64 = pack(fd, found->second->id);
  return ::epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, fd, &event) == 0 ? Status::ok : from_errno(errno);
}

bool Reactor::unwatch(int fd) {
  std::shared_ptr<Watch> removed;  // destroyed after the lock: its captures may do anything
  const std::lock_guard lock(mutex_);
  const auto found = watches_.find(fd);
  if (found == watches_.end()) {
    return false;
  }
  removed = std::move(found->second);
  watches_.erase(found);
  ::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);  // fails if the fd was closed already, which removed it
  return true;
}

TimerId Reactor::add_timer(double seconds, Task task) {
  // NaN and negative mean now; what exceeds a year is as good as never and would overflow the clock.
  constexpr double year = 365.0 * 24 * 3600;
  const double delay = seconds > 0 ? std::min(seconds, year) : 0.0;
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(delay));
  const std::lock_guard lock(mutex_);
  if (stopping_) {
    return 0;
  }
  const TimerId timer = next_timer_++;
  timers_.emplace(std::make_pair(deadline, timer), std::move(task));
  deadlines_.emplace(timer, deadline);
  if (!on_thread()) {
    wake();  // it may be the earliest now
  }
  return timer;
}

bool Reactor::cancel_timer(TimerId timer) {
  Task removed;  // destroyed after the lock
  const std::lock_guard lock(mutex_);
  const auto found = deadlines_.find(timer);
  if (found == deadlines_.end()) {
    return false;
  }
  const auto entry = timers_.find({found->second, timer});
  removed = std::move(entry->second);
  timers_.erase(entry);
  deadlines_.erase(found);
  return true;
}

void Reactor::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (thread_.joinable() && !thread_.on_thread()) {
      wake();
    }
    stopping_ = true;
  }
  if (thread_.on_thread()) {
    return;  // run() ends after this turn
  }
  if (thread_.joinable()) {
    thread_.join();
  } else {
    run_posted();  // never started, or already empty
  }
  std::unordered_map<int, std::shared_ptr<Watch>> watches;
  std::map<std::pair<Clock::time_point, TimerId>, Task> timers;
  const std::lock_guard lock(mutex_);  // released before the two maps: their captures may do anything
  watches.swap(watches_);
  timers.swap(timers_);
  deadlines_.clear();
  close_fds();
}

void Reactor::run() {
  std::array<epoll_event, 64> batch;
  for (;;) {
    const int count = ::epoll_wait(epoll_fd_, batch.data(), static_cast<int>(batch.size()), wait_milliseconds());
    for (int index = 0; index < count; ++index) {
      const epoll_event& event = batch[static_cast<std::size_t>(index)];
      dispatch(static_cast<int>(static_cast<std::uint32_t>(event.data.u64)),
               static_cast<std::uint32_t>(event.data.u64 >> 32), event.events);
    }
    run_due_timers();
    if (!run_posted()) {
      return;
    }
  }
}

int Reactor::wait_milliseconds() {
  const std::lock_guard lock(mutex_);
  if (timers_.empty()) {
    return -1;
  }
  const auto left = timers_.begin()->first.first - Clock::now();
  // Rounded up: waking a fraction of a millisecond early would spin until the deadline.
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<std::int64_t>(milliseconds, 0, 3'600'000));
}

void Reactor::dispatch(int fd, std::uint32_t id, std::uint32_t events) {
  if (id == wake_id) {
    std::uint64_t count = 0;
    // Read before run_posted takes the queue: what is posted later rings again.
    while (::read(fd, &count, sizeof count) < 0 && errno == EINTR) {
    }
    return;
  }
  std::shared_ptr<Watch> watch;  // keeps the handler alive when it unwatches itself
  {
    const std::lock_guard lock(mutex_);
    const auto found = watches_.find(fd);
    if (found == watches_.end() || found->second->id != id) {
      return;  // unwatched earlier in this batch
    }
    watch = found->second;
  }
  watch->handler(events);
}

void Reactor::run_due_timers() {
  const auto now = Clock::now();  // once, so that a timer that sets itself again with 0 s cannot keep us here
  for (;;) {
    Task task;
    {
      const std::lock_guard lock(mutex_);
      if (timers_.empty() || timers_.begin()->first.first > now) {
        return;
      }
      task = std::move(timers_.begin()->second);
      deadlines_.erase(timers_.begin()->first.second);
      timers_.erase(timers_.begin());
    }
    task();
  }
}

bool Reactor::run_posted() {
  std::vector<Task> tasks;
  bool stopping = false;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(posted_);
    stopping = stopping_;  // with the queue in one look: nothing can be posted after it was set
  }
  for (Task& task : tasks) {
    task();
    task = nullptr;  // its captures end with its turn
  }
  return !stopping;
}

}  // namespace hixl_aio
