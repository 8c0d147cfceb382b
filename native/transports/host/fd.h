// A file descriptor that closes itself. Every descriptor of the host transport lives in one, so a failed handshake
// leaks none (INV-10), and a forked child can close all of them without a lock and without walking tables that a thread
// which does not exist there was changing.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace hixl_aio::host {

class FdRegistry {
 public:
  static void add(int fd) noexcept {
    if (word(fd) != nullptr) {
      word(fd)->fetch_or(bit(fd), std::memory_order_relaxed);
    }
  }
  static void remove(int fd) noexcept {
    if (word(fd) != nullptr) {
      word(fd)->fetch_and(~bit(fd), std::memory_order_relaxed);
    }
  }
  // In a forked child, where only the calling thread exists.
  static void close_all() noexcept {
    for (std::size_t i = 0; i < kWords; ++i) {
      for (std::uint64_t bits = words_[i].exchange(0, std::memory_order_relaxed); bits != 0; bits &= bits - 1) {
        ::close(static_cast<int>(i * 64 + static_cast<std::size_t>(__builtin_ctzll(bits))));
      }
    }
  }

 private:
  static constexpr std::size_t kWords = (1U << 20U) / 64;  // 128 KiB, touched where descriptors are
  static std::atomic<std::uint64_t>* word(int fd) noexcept {
    const auto index = static_cast<std::size_t>(fd) / 64;
    return fd >= 0 && index < kWords ? &words_[index] : nullptr;
  }
  static std::uint64_t bit(int fd) noexcept { return 1ULL << (static_cast<unsigned>(fd) % 64); }
  // Relaxed throughout: each bit belongs to the one owner of its descriptor, and fork itself orders the child.
  static inline std::atomic<std::uint64_t> words_[kWords]{};
};

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) { FdRegistry::add(fd_); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { close(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool valid() const noexcept { return fd_ >= 0; }
  explicit operator bool() const noexcept { return valid(); }
  void reset(int fd = -1) noexcept {
    close();
    fd_ = fd;
    FdRegistry::add(fd_);
  }

 private:
  void close() noexcept {
    if (fd_ >= 0) {
      FdRegistry::remove(fd_);  // before the number can be given out again
      ::close(fd_);
      fd_ = -1;
    }
  }
  int fd_ = -1;
};

}  // namespace hixl_aio::host
