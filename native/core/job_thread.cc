// See job_thread.h.
#include "core/job_thread.h"

#include <utility>

namespace hixl_aio {

Status JobThread::start() {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) {
      return Status::closed;
    }
  }
  return thread_.start("hixl-jobs", [](void* self) noexcept { static_cast<JobThread*>(self)->run(); }, this);
}

bool JobThread::post(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) {
      return false;
    }
    jobs_.push_back(std::move(job));
  }
  wake_.notify_one();
  return true;
}

void JobThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  } else {
    run();  // never started, or already empty
  }
}

void JobThread::run() {
  for (;;) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) {
        return;
      }
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();  // and destroyed before the next one starts, so that its captures do not outlive their turn
  }
}

}  // namespace hixl_aio
