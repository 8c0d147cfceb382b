// Cuts operations into chunks and shares them between copy threads (links inproc, shm and cma).
//
// Fair: operations that fit one chunk and larger ones wait in two lines that are served in turn, and a larger one goes
// back to the end of its line after each chunk. So a small operation waits for the chunk in hand and at most one more,
// however much is queued to the same peer. A stop takes effect at the next chunk.
//
// Several threads share an operation chunk by chunk, and its last chunks are shorter, so that they end together.
//
// `step` does one chunk and needs no thread: tests drive it by hand.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/native_thread.h"
#include "hixl_aio/types.h"
#include "transports/host/peer.h"

namespace hixl_aio::host {

// Told when the last chunk of an operation has ended: sends the bound signal and completes.
class OpFinisher {
 public:
  virtual void finish(Op& op) noexcept = 0;

 protected:
  ~OpFinisher() = default;
};

class CopyScheduler {
 public:
  // Operations of `stream_nbytes` and more are written past the cache.
  CopyScheduler(OpFinisher& finisher, std::uint64_t chunk_nbytes, std::uint64_t stream_nbytes = UINT64_MAX) noexcept
      : finisher_(finisher), chunk_nbytes_(chunk_nbytes > 0 ? chunk_nbytes : 1), stream_nbytes_(stream_nbytes) {}
  ~CopyScheduler() { stop(); }
  CopyScheduler(const CopyScheduler&) = delete;
  CopyScheduler& operator=(const CopyScheduler&) = delete;

  Status start(std::uint32_t threads);
  // Everything queued is copied or, for peers that are down, failed before the threads end.
  void stop() noexcept;
  // In a forked child.
  void forget_threads() noexcept {
    for (const auto& thread : threads_) {
      thread->forget();
    }
  }
  void enqueue(Op& op) noexcept;  // `op.target` is its peer
  // One chunk of one operation; false when nothing waits.
  bool step() noexcept;

 private:
  struct Piece {
    std::size_t run = 0;
    std::uint64_t offset = 0;
    std::uint64_t nbytes = 0;
    Status status = Status::ok;
  };
  static constexpr std::size_t kMaxPieces = 256;
  struct Chunk {
    Op* op = nullptr;
    Piece pieces[kMaxPieces];
    std::size_t count = 0;
  };
  struct Line {
    Op* head = nullptr;
    Op* tail = nullptr;
    void push(Op& op) noexcept;
    Op* pop() noexcept;
  };

  bool claim(Chunk& chunk, Op*& finished) noexcept;
  [[nodiscard]] std::uint64_t share_of(const Op& op) const noexcept;
  void cut(Op& op, Chunk& chunk) const noexcept;
  void copy(Chunk& chunk, std::uint64_t& moved) noexcept;
  static Status copy_vectors(const Peer& peer, const Op& op, std::span<const Piece> pieces,
                             std::uint64_t& moved) noexcept;
  void copy_cma(Peer& peer, Op& op, std::span<Piece> pieces, std::uint64_t& moved) noexcept;
  void copy_mapped(Peer& peer, Op& op, std::span<Piece> pieces, std::uint64_t& moved) noexcept;
  bool account(Chunk& chunk, std::uint64_t moved) noexcept;
  void work() noexcept;

  OpFinisher& finisher_;
  const std::uint64_t chunk_nbytes_;
  const std::uint64_t stream_nbytes_;
  std::uint32_t sharers_ = 1;  // threads that copy; written before the first of them starts
  // Taken twice a chunk (about a megabyte of copying), never for an inline put. It also orders the chunks of different
  // threads before `finish`, hence before the signal.
  std::mutex mutex_;
  std::condition_variable available_;
  Line small_;
  Line large_;
  bool large_next_ = false;
  bool stopping_ = false;
  std::vector<std::unique_ptr<NativeThread>> threads_;
};

// Settles the states of the runs and returns the status of the whole operation. Shared with the cooperative link.
Status settle_runs(Op& op) noexcept;

}  // namespace hixl_aio::host
