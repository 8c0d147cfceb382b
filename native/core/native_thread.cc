// See native_thread.h.
#include "core/native_thread.h"

#include <csignal>
#include <initializer_list>

namespace hixl_aio {

namespace {

// Which NativeThread this thread is. A thread-local needs no ordering, where comparing pthread_t would race with
// pthread_create, which may store it after the new thread already runs.
thread_local const NativeThread* current_thread = nullptr;

}  // namespace

Status NativeThread::start(const char* name, void (*body)(void*) noexcept, void* argument) noexcept {
  if (joinable_) {
    return Status::invalid_argument;
  }
  name_ = name;
  body_ = body;
  argument_ = argument;

  // The mask is inherited, so there is no moment at which the new thread could take a signal. Faults stay deliverable:
  // blocked, they would kill the process without the crash handler's report.
  sigset_t blocked;
  sigset_t before;
  sigfillset(&blocked);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) {
    sigdelset(&blocked, fault);
  }
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  joinable_ = true;  // before the thread exists, so that it may read it
  if (pthread_create(&thread_, nullptr, &NativeThread::enter, this) != 0) {
    joinable_ = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return joinable_ ? Status::ok : Status::resource_exhausted;
}

void NativeThread::join() noexcept {
  if (!joinable_ || on_thread()) {
    return;
  }
  pthread_join(thread_, nullptr);
  joinable_ = false;
}

bool NativeThread::on_thread() const noexcept { return current_thread == this; }

void* NativeThread::enter(void* self) {
  auto* thread = static_cast<NativeThread*>(self);
  current_thread = thread;
  pthread_setname_np(pthread_self(), thread->name_);
  thread->body_(thread->argument_);
  return nullptr;
}

}  // namespace hixl_aio
