// The store of operations: a fixed number of slots with stable addresses, reused through a free list.
//
// Keeps INV-9: each reuse of a slot has a new generation, so that a late handle never matches. Loop thread only: other
// threads get an Op* through a ring and never come here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "hixl_aio/types.h"

namespace hixl_aio {

class OpSlab {
 public:
  // A generation has 31 bits, so that a handle is positive as a signed 64-bit integer too.
  static constexpr std::uint32_t max_generation = 0x7fffffff;
  // A released slot keeps the memory of at most this many runs: enough for a put or a usual batch, and a burst of huge
  // batches does not stay resident for ever.
  static constexpr std::size_t kept_runs = 1024;

  // `first_generation` is for tests of the wrap.
  explicit OpSlab(std::uint32_t capacity, std::uint32_t first_generation = 1);
  OpSlab(const OpSlab&) = delete;
  OpSlab& operator=(const OpSlab&) = delete;

  // A clean operation with its handle set; null when all slots are taken or memory is out.
  Op* acquire() noexcept;
  // `op` came from acquire, and no thread works on it any more.
  void release(Op& op) noexcept;
  // Null for stale and malformed handles.
  Op* find(OpHandle handle) noexcept;

  [[nodiscard]] std::uint32_t in_use() const noexcept { return in_use_; }
  [[nodiscard]] std::uint32_t capacity() const noexcept { return capacity_; }

 private:
  // Aligned so that two operations that are worked on by two threads never share a line.
  struct alignas(64) Slot : Op {
    std::uint32_t index = 0;
    std::uint32_t generation = 1;
    bool taken = false;
  };
  static constexpr std::uint32_t chunk_slots = 256;

  bool grow() noexcept;

  const std::uint32_t capacity_;
  const std::uint32_t first_generation_;
  std::uint32_t created_ = 0;
  std::uint32_t in_use_ = 0;
  Op* free_ = nullptr;  // linked by Op::next; last in, first out, because its memory is still warm
  std::vector<std::unique_ptr<Slot[]>> chunks_;
};

}  // namespace hixl_aio
