// See doorbell.h.
#include "core/doorbell.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

namespace hixl_aio {

Doorbell::Doorbell() noexcept : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

Doorbell::~Doorbell() { close(); }

void Doorbell::close() noexcept {
  if (fd_ >= 0) {
    ::close(fd_);
    fd_ = -1;
  }
}

void Doorbell::write_fd() noexcept {
  // Relaxed: a statistic, orders nothing.
  wakeups_.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t one = 1;
  // EAGAIN would mean that the counter is full, so the fd is readable anyway.
  while (::write(fd_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void Doorbell::read_fd() noexcept {
  std::uint64_t count = 0;
  // EAGAIN: the wake-up was spurious, which is allowed.
  while (::read(fd_, &count, sizeof count) < 0 && errno == EINTR) {
  }
}

}  // namespace hixl_aio
