// A wake-up that cannot be lost: one eventfd and one armed flag. The completion channel (towards the event loop) and the
// progress thread sleep on one each.
//
// Keeps INV-8: a wake-up is a hint. The sleeper re-arms first and looks afterwards; whoever has news publishes it first
// and looks at the flag afterwards.
//
//   producer                                   sleeper
//   P1  publish the news                       C1  read the eventfd (clears it)
//   P2  armed.exchange(false)                  C2  armed.exchange(true)
//   P3  if it was true: write the eventfd      C3  look for news; nothing there: sleep until the fd is readable
//
// Why nothing is lost. P2 and C2 are read-modify-writes of one atomic, so one of them comes first in its modification
// order, and each reads what its predecessor in that order wrote:
//  * P2 before C2: C2 reads P2's value, or that of a later exchange, which continues P2's release sequence. P2 releases
//    and C2 acquires, so P1 happens before C3 and the sleeper finds the news.
//  * C2 before P2: P2 finds true and writes the eventfd; or another exchange came between and found true, and that
//    producer writes. Either write comes after C1, so the sleeper does not stay asleep; on waking it goes through C2
//    again, now after P2, and the first case applies.
// So acq_rel suffices on both sides. There is no store-then-load on two variables, which is what would need seq_cst;
// turning either exchange into something weaker brings that pattern back:
//  * C2 as a plain store, of whatever order, reads nothing, hence acquires nothing from a P2 before it: C3 may then be
//    satisfied before the store is visible, P2 still sees false, and both sides believe that the other one will act.
//  * P2 as "load, and exchange only if true" may read false before its news is visible, in the same way.
//  * Every access that changes the flag must be an exchange, `disarm` too: a plain store would end P2's release sequence.
// C1 comes before C2, because a producer that finds the flag set writes the fd: read after re-arming, that write could be
// swallowed while the flag stays down, and nobody would ring again.
#pragma once

#include <atomic>
#include <cstdint>

// Only the test programs that prove that mistakes are caught define this: 1 deletes the re-arm, 2 turns C1 and C2 around,
// 3 makes the re-arm a plain store, 5 lets P2 look before it exchanges (4 is in a test: C3 before C2).
#ifndef HIXL_AIO_MUTATE_REARM
#define HIXL_AIO_MUTATE_REARM 0
#endif

namespace hixl_aio {

class Doorbell {
 public:
  Doorbell() noexcept;  // fd() < 0: the process is out of descriptors
  ~Doorbell();
  Doorbell(const Doorbell&) = delete;
  Doorbell& operator=(const Doorbell&) = delete;

  // Any thread, after the news is published (P1). At most one write per re-arm, however many ring.
  void ring() noexcept {
#if HIXL_AIO_MUTATE_REARM == 5
    if (!armed_.load(std::memory_order_acquire)) {
      return;
    }
#endif
    // Release: orders P1 before the flag. Acquire: orders the sleeper's C1 before our write, so it cannot be swallowed.
    if (armed_.exchange(false, std::memory_order_acq_rel)) {
      write_fd();
    }
  }

  // The sleeper, before it looks.
  void clear_and_arm() noexcept {
#if HIXL_AIO_MUTATE_REARM == 1
    read_fd();
#elif HIXL_AIO_MUTATE_REARM == 2
    armed_.exchange(true, std::memory_order_acq_rel);
    read_fd();
#elif HIXL_AIO_MUTATE_REARM == 3
    read_fd();
    armed_.store(true, std::memory_order_release);
#else
    read_fd();
    // Acquire: what was published before an exchange we come after is visible to the look that follows (C3). Release:
    // orders C1 before the flag.
    armed_.exchange(true, std::memory_order_acq_rel);
#endif
  }

  // The sleeper, when it is awake for a while and will re-arm before it sleeps: spares the producers the write.
  void disarm() noexcept {
    // An exchange, so that the release sequences of the producers reach the next re-arm through it.
    armed_.exchange(false, std::memory_order_acq_rel);
  }

  [[nodiscard]] int fd() const noexcept { return fd_; }
  // Writes of the eventfd by this process. Relaxed: a statistic, orders nothing.
  [[nodiscard]] std::uint64_t wakeups() const noexcept { return wakeups_.load(std::memory_order_relaxed); }
  // Nobody may ring or sleep any more. Idempotent.
  void close() noexcept;

 private:
  void write_fd() noexcept;
  void read_fd() noexcept;

  int fd_ = -1;
  alignas(64) std::atomic<bool> armed_{true};
  std::atomic<std::uint64_t> wakeups_{0};
};

}  // namespace hixl_aio
