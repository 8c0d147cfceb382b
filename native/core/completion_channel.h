// The way up: completion records from any thread to the loop thread, and one file descriptor that says "look".
//
// Keeps INV-1 (a record that was pushed is taken exactly once) and INV-8 (re-arm, then take; see doorbell.h for why no
// wake-up is lost and what each barrier orders).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/doorbell.h"
#include "core/submission_ring.h"
#include "hixl_aio/types.h"

namespace hixl_aio {

class CompletionChannel {
 public:
  // At least as many as there are operation slots: each slot has at most one record under way, so push never finds the
  // ring full.
  explicit CompletionChannel(std::size_t capacity) : ring_(capacity) {}

  // Any thread. Ends the process if the ring is full: a transport then completed operations twice, and the next record
  // would have to be dropped.
  void push(const CompletionRecord& record) noexcept;
  // Any thread: wakes the loop without a record, for news that was published elsewhere before the call.
  void ring() noexcept { bell_.ring(); }

  // The consumer, before it takes records: reads the eventfd and re-arms.
  void prepare_drain() noexcept { bell_.clear_and_arm(); }
  // The consumer. Less than `limit`: nothing more is there.
  std::size_t pop(CompletionRecord* records, std::size_t limit) noexcept;
  // The consumer: is something there that pop would give?
  [[nodiscard]] bool ready() const noexcept { return ring_.ready(); }

  // Records ever pushed (or about to be published) and taken: positions in one sequence. A record that was pushed before
  // this call has been taken once popped() has reached the value.
  [[nodiscard]] std::uint64_t pushed() const noexcept { return ring_.pushed(); }
  [[nodiscard]] std::uint64_t popped() const noexcept { return ring_.popped(); }
  [[nodiscard]] std::uint64_t wakeups() const noexcept { return bell_.wakeups(); }
  [[nodiscard]] std::size_t capacity() const noexcept { return ring_.capacity(); }
  [[nodiscard]] int fd() const noexcept { return bell_.fd(); }
  void close() noexcept { bell_.close(); }

 private:
  SubmissionRing<CompletionRecord> ring_;
  Doorbell bell_;
};

}  // namespace hixl_aio
