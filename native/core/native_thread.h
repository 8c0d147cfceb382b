// A thread of ours: named, deaf to signals, and forgettable after a fork.
//
// Keeps INV-3's outer half: signal handlers of the process (Python's among them) never run on a native thread, because
// every asynchronous signal is blocked in it.
#pragma once

#include <pthread.h>

#include "hixl_aio/status.h"

namespace hixl_aio {

class NativeThread {
 public:
  NativeThread() noexcept = default;
  ~NativeThread() { join(); }
  NativeThread(const NativeThread&) = delete;
  NativeThread& operator=(const NativeThread&) = delete;

  // `name` has at most 15 characters and static storage. `body` must not throw. One thread per object.
  Status start(const char* name, void (*body)(void*) noexcept, void* argument) noexcept;
  // Waits for the end. Nothing happens if it was never started, was joined, or is the calling thread.
  void join() noexcept;
  // In a forked child: the thread does not exist here, so neither join nor detach may be called on it.
  void forget() noexcept { joinable_ = false; }

  [[nodiscard]] bool joinable() const noexcept { return joinable_; }
  [[nodiscard]] bool on_thread() const noexcept;

 private:
  static void* enter(void* self);

  pthread_t thread_{};
  const char* name_ = "";
  void (*body_)(void*) noexcept = nullptr;
  void* argument_ = nullptr;
  bool joinable_ = false;  // touched by the owner only
};

}  // namespace hixl_aio
