// Bounded queue with many producers and one consumer; a sequence number in each cell says whose turn it is.
//
// Carries operations down (Op*) and records up (CompletionRecord). Keeps INV-1's mechanical half: what was pushed is
// popped exactly once. Never blocks, never allocates after construction.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace hixl_aio {

#ifdef HIXL_AIO_TEST_PUSH_GAP
// Only one test program has this: it stops a producer where it may be preempted at any time, between taking a place and
// publishing it.
void push_gap() noexcept;
#endif

template <typename T>
class SubmissionRing {
  static_assert(std::is_trivially_copyable_v<T>, "a cell is copied in and out while its neighbours are in use");

 public:
  // Rounded up to a power of two.
  explicit SubmissionRing(std::size_t capacity)
      : mask_(std::bit_ceil(capacity < 2 ? std::size_t{2} : capacity) - 1), cells_(new Cell[mask_ + 1]) {
    for (std::size_t index = 0; index <= mask_; ++index) {
      // Relaxed: the ring is handed to other threads by something that orders its construction.
      cells_[index].sequence.store(index, std::memory_order_relaxed);
    }
  }
  SubmissionRing(const SubmissionRing&) = delete;
  SubmissionRing& operator=(const SubmissionRing&) = delete;

  // Any thread. False: full.
  bool try_push(T value) noexcept {
    // Relaxed: only a guess where to try; the cell's sequence decides.
    std::uint64_t position = tail_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[position & mask_];
      // Acquire: pairs with the consumer's release in try_pop; the old value was copied out before we overwrite it.
      const std::uint64_t sequence = cell.sequence.load(std::memory_order_acquire);
      const auto lead = static_cast<std::int64_t>(sequence - position);
      if (lead == 0) {
        // Relaxed: only decides which producer owns the cell. The value is published by the sequence below.
        if (tail_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) {
#ifdef HIXL_AIO_TEST_PUSH_GAP
          push_gap();
#endif
          cell.value = value;
          // Release: the value (and everything the producer did before) is visible to whoever acquires this sequence.
          cell.sequence.store(position + 1, std::memory_order_release);
          return true;
        }
      } else if (lead < 0) {
        return false;  // the consumer has not emptied this cell since the last lap
      } else {
        position = tail_.load(std::memory_order_relaxed);  // another producer was faster; relaxed as above
      }
    }
  }

  // The one consumer. False: nothing there, or the next cell's producer has not published it yet; that producer still
  // has its doorbell to ring.
  bool try_pop(T& out) noexcept {
    // Relaxed: only this thread writes head_.
    const std::uint64_t position = head_.load(std::memory_order_relaxed);
    Cell& cell = cells_[position & mask_];
    // Acquire: pairs with the producer's release; the value is complete.
    if (cell.sequence.load(std::memory_order_acquire) != position + 1) {
      return false;
    }
    out = cell.value;
    // Release: our copy is finished before a producer of the next lap acquires the cell and overwrites it.
    cell.sequence.store(position + mask_ + 1, std::memory_order_release);
    head_.store(position + 1, std::memory_order_relaxed);  // relaxed: read by others as a statistic only
    return true;
  }

  // The consumer: is there something that try_pop would give?
  [[nodiscard]] bool ready() const noexcept {
    const std::uint64_t position = head_.load(std::memory_order_relaxed);  // relaxed: our own
    // Acquire, though a hint would do, so that a caller that goes on to pop relies on one kind of load only.
    return cells_[position & mask_].sequence.load(std::memory_order_acquire) == position + 1;
  }

  // Places ever taken by producers, published or about to be. Relaxed: it sees at least every push that happens before
  // the call, which is all that the callers need.
  [[nodiscard]] std::uint64_t pushed() const noexcept { return tail_.load(std::memory_order_relaxed); }
  // Values ever popped. Relaxed: exact on the consumer's thread, a statistic elsewhere.
  [[nodiscard]] std::uint64_t popped() const noexcept { return head_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::size_t capacity() const noexcept { return mask_ + 1; }

 private:
  struct Cell {
    std::atomic<std::uint64_t> sequence{0};
    T value{};
  };

  const std::size_t mask_;
  const std::unique_ptr<Cell[]> cells_;
  // On lines of their own: producers hammer one, the consumer the other.
  alignas(64) std::atomic<std::uint64_t> tail_{0};
  alignas(64) std::atomic<std::uint64_t> head_{0};
};

}  // namespace hixl_aio
