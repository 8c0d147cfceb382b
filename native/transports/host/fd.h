// A file descriptor that closes itself. Every descriptor of the host transport lives in one, so a failed handshake
// leaks none (INV-10), and a forked child can close all of them without a lock and without walking tables that a thread
// which does not exist there was changing. What the child inherited and drops later closes nothing: the number may be
// somebody else's by then.
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
  // How many forks lie between the first process and this one.
  static std::uint32_t epoch() noexcept { return epoch_.load(std::memory_order_relaxed); }
  // In a forked child, where only the calling thread exists.
  static void close_all() noexcept {
    epoch_.fetch_add(1, std::memory_order_relaxed);
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
  static inline std::atomic<std::uint32_t> epoch_{0};
};

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) { FdRegistry::add(fd_); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), epoch_(other.epoch_) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
      epoch_ = other.epoch_;
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
    epoch_ = FdRegistry::epoch();
    FdRegistry::add(fd_);
  }

 private:
  void close() noexcept {
    if (fd_ >= 0 && epoch_ == FdRegistry::epoch()) {
      FdRegistry::remove(fd_);  // before the number can be given out again
      ::close(fd_);
    }
    fd_ = -1;
  }
  int fd_ = -1;
  std::uint32_t epoch_ = FdRegistry::epoch();
};

}  // namespace hixl_aio::host
