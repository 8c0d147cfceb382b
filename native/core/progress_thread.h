// The progress thread: takes submitted operations to the transport and lets the transport advance; sleeps on an eventfd
// when neither has work.
//
// Keeps INV-5's native half (operations are posted in the order of submission) and never polls: it sleeps without a
// timeout, by the handshake of doorbell.h. Processes on the other side of shared memory write the same eventfd, so every
// wake-up calls Transport::progress, whatever the submission ring says.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "core/doorbell.h"
#include "core/native_thread.h"
#include "core/submission_ring.h"
#include "hixl_aio/transport.h"

namespace hixl_aio {

class ProgressThread {
 public:
  ProgressThread(Transport& transport, std::size_t capacity);
  ~ProgressThread() { stop(); }
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  Status start();
  // Any thread. False: the ring is full, nothing was taken. Must not race with stop: the owner refuses first.
  bool submit(Op* op) noexcept;
  // Any thread, after what progress shall find is published: makes the thread call Transport::progress.
  void wake() noexcept { bell_.ring(); }
  // Waits until everything that was submitted before the call has been posted. Not on the progress thread.
  void flush();
  // Posts what was submitted, then ends the thread and joins. Idempotent, safe if never started.
  void stop();

  [[nodiscard]] int fd() const noexcept { return bell_.fd(); }
  [[nodiscard]] std::uint64_t wakeups() const noexcept { return bell_.wakeups(); }
  // Nobody may submit, wake or sleep any more.
  void close() noexcept { bell_.close(); }
  // In a forked child; afterwards this object must be leaked.
  void abandon_after_fork() noexcept;

 private:
  void run();
  bool post_submitted();
  void answer_flush(std::uint64_t ticket);

  Transport& transport_;
  SubmissionRing<Op*> ring_;
  Doorbell bell_;
  NativeThread thread_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> flush_wanted_{0};

  std::mutex mutex_;  // guards what follows; taken by flush only, never per operation
  std::condition_variable flushed_changed_;
  std::uint64_t flushed_ = 0;
};

}  // namespace hixl_aio
