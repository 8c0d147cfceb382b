// See progress_thread.h.
#include "core/progress_thread.h"

#include <poll.h>

namespace hixl_aio {

namespace {

// How many operations are posted before the transport may advance those that are under way.
constexpr int posts_per_turn = 64;

}  // namespace

ProgressThread::ProgressThread(Transport& transport, std::size_t capacity) : transport_(transport), ring_(capacity) {}

Status ProgressThread::start() {
  if (bell_.fd() < 0) {
    return Status::resource_exhausted;
  }
  return thread_.start("hixl-progress", [](void* self) noexcept { static_cast<ProgressThread*>(self)->run(); }, this);
}

bool ProgressThread::submit(Op* op) noexcept {
  if (!ring_.try_push(op)) {
    return false;
  }
  bell_.ring();  // after the operation is published, never before
  return true;
}

void ProgressThread::flush() {
  if (!thread_.joinable()) {
    return;
  }
  // Release: whoever acquires this ticket also sees every submission that happened before the call.
  const std::uint64_t ticket = flush_wanted_.fetch_add(1, std::memory_order_release) + 1;
  bell_.ring();
  std::unique_lock lock(mutex_);
  flushed_changed_.wait(lock, [&] { return flushed_ >= ticket; });
}

void ProgressThread::stop() {
  // Release: submissions that happened before the call are visible to the thread when it sees this.
  stopping_.store(true, std::memory_order_release);
  bell_.ring();
  thread_.join();
}

void ProgressThread::abandon_after_fork() noexcept {
  thread_.forget();
  bell_.close();
}

void ProgressThread::run() {
  bool armed = false;
  std::uint64_t answered = 0;
  for (;;) {
    // Acquire, and before the look into the ring: pair with the releases in flush() and stop(), so that an empty ring
    // below means that everything submitted before those calls was posted.
    const std::uint64_t wanted = flush_wanted_.load(std::memory_order_acquire);
    const bool stopping = stopping_.load(std::memory_order_acquire);

    const bool posted = post_submitted();
    const bool advanced = transport_.progress();
    if (!posted && wanted != answered) {
      answer_flush(wanted);
      answered = wanted;
    }
    if (!posted && stopping) {
      return;
    }
    if (posted || advanced) {
      if (armed) {
        bell_.disarm();
        armed = false;
      }
    } else if (!armed) {
      bell_.clear_and_arm();
      armed = true;  // and look once more: news published before the re-arm did not ring
    } else {
      pollfd wait{.fd = bell_.fd(), .events = POLLIN, .revents = 0};
      ::poll(&wait, 1, -1);  // whatever ends it is a reason to look
      bell_.disarm();
      armed = false;
    }
  }
}

bool ProgressThread::post_submitted() {
  Op* op = nullptr;
  int count = 0;
  while (count < posts_per_turn && ring_.try_pop(op)) {
    transport_.post(*op);
    ++count;
  }
  return count > 0;
}

void ProgressThread::answer_flush(std::uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  flushed_ = ticket;
  flushed_changed_.notify_all();
}

}  // namespace hixl_aio
