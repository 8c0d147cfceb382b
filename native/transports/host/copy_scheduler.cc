#include "transports/host/copy_scheduler.h"

#include <algorithm>
#include <span>

#include "transports/host/fragile_memory.h"
#include "transports/host/streaming.h"

namespace hixl_aio::host {
namespace {

// A shorter chunk costs more in the handing out than it evens out at the end.
constexpr std::uint64_t kLeastShare = 128U << 10U;

}  // namespace

void CopyScheduler::Line::push(Op& op) noexcept {
  op.next = nullptr;
  (tail == nullptr ? head : tail->next) = &op;
  tail = &op;
}

Op* CopyScheduler::Line::pop() noexcept {
  Op* op = head;
  if (op != nullptr) {
    head = op->next;
    if (head == nullptr) {
      tail = nullptr;
    }
    op->next = nullptr;
  }
  return op;
}

void CopyScheduler::enqueue(Op& op) noexcept {
  {
    const std::lock_guard lock(mutex_);
    op.queued = true;
    (op.nbytes <= chunk_nbytes_ ? small_ : large_).push(op);
  }
  available_.notify_one();
}

// How much the next chunk takes: towards the end less, so that no thread is left with a whole chunk while the others
// have nothing to do.
std::uint64_t CopyScheduler::share_of(const Op& op) const noexcept {
  if (sharers_ == 1 || op.nbytes <= chunk_nbytes_) {
    return chunk_nbytes_;
  }
  const std::uint64_t left = op.nbytes - std::min(op.nbytes, op.cut_nbytes);
  return std::min(chunk_nbytes_, std::max(left / (2 * sharers_), kLeastShare));
}

// Takes the next chunk of `op` and moves its cursor.
void CopyScheduler::cut(Op& op, Chunk& chunk) const noexcept {
  const std::uint64_t share = share_of(op);
  std::uint64_t left = share;
  while (left > 0 && chunk.count < kMaxPieces && op.next_run < op.runs.size()) {
    const Run& run = op.runs[op.next_run];
    const std::uint64_t nbytes = std::min(left, run.nbytes - op.next_offset);
    if (nbytes > 0) {
      chunk.pieces[chunk.count++] = Piece{op.next_run, op.next_offset, nbytes, Status::ok};
    }
    left -= nbytes;
    op.next_offset += nbytes;
    if (op.next_offset == run.nbytes) {
      ++op.next_run;
      op.next_offset = 0;
    }
  }
  op.cut_nbytes += share - left;
}

bool CopyScheduler::claim(Chunk& chunk, Op*& finished) noexcept {
  const std::lock_guard lock(mutex_);
  Line& first = large_next_ ? large_ : small_;
  Line& second = large_next_ ? small_ : large_;
  Op* op = first.pop();
  if (op == nullptr) {
    op = second.pop();
  }
  if (op == nullptr) {
    return false;
  }
  op->queued = false;
  large_next_ = !large_next_;
  const Peer& peer = *static_cast<Peer*>(op->target);
  if (peer.down() && ok(op->status)) {
    op->status = peer.down_status();
  }
  if (op->stop_requested.load(std::memory_order_relaxed) && ok(op->status)) {
    op->status = Status::stopped;
  }
  chunk.op = op;
  chunk.count = 0;
  if (ok(op->status)) {
    cut(*op, chunk);
  }
  if (chunk.count == 0) {  // ended early, or nothing to copy at all
    if (op->outstanding == 0) {
      finished = op;
    }  // else the thread that ends the last chunk finishes it
    return true;
  }
  ++op->outstanding;
  if (op->next_run < op->runs.size()) {
    op->queued = true;
    large_.push(*op);
    available_.notify_one();  // a thread that sleeps takes the next chunk while we copy this one
  }
  return true;
}

void CopyScheduler::copy_mapped(Peer& peer, Op& op, std::span<Piece> pieces, std::uint64_t& moved) noexcept {
  const Run& first = op.runs[pieces.front().run];
  if (!peer.out().pin(first.region, first.generation)) {
    for (Piece& piece : pieces) {
      piece.status = Status::stale_region;
    }
    return;
  }
  const bool put = first.direction == Direction::put;
  const bool streamed = op.nbytes >= stream_nbytes_;
  const auto source = [&](const Piece& piece) {
    const Run& run = op.runs[piece.run];
    return (put ? run.local : run.remote) + piece.offset;
  };
  for (Piece& piece : pieces) {
    const std::byte* from = source(piece);
    std::byte* to = (put ? op.runs[piece.run].remote : op.runs[piece.run].local) + piece.offset;
    if (&piece != &pieces.back()) {
      const Piece& next = (&piece)[1];
      expect_bytes(source(next), next.nbytes);
    }
    if (streamed && !FragileMemory::touches(from, piece.nbytes) && !FragileMemory::touches(to, piece.nbytes)) {
      stream_bytes(to, from, piece.nbytes);
    } else if (!copy_bytes(to, from, piece.nbytes)) {
      piece.status = Status::failed;
      continue;
    }
    moved += piece.nbytes;
  }
  if (streamed) {
    stream_fence();  // before the pin goes, and before any signal (INV-2, INV-11)
  }
  peer.out().unpin(first.region);
}

// One system call for all pieces, which have their region pinned.
Status CopyScheduler::copy_vectors(const Peer& peer, const Op& op, std::span<const Piece> pieces,
                                   std::uint64_t& moved) noexcept {
  iovec local[kMaxPieces];
  iovec remote[kMaxPieces];
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Run& run = op.runs[pieces[i].run];
    local[i] = {run.local + pieces[i].offset, pieces[i].nbytes};
    remote[i] = {run.remote + pieces[i].offset, pieces[i].nbytes};
  }
  return cma_copy(peer.identity.pid, op.runs[pieces.front().run].direction, {local, pieces.size()},
                  {remote, pieces.size()}, moved);
}

void CopyScheduler::copy_cma(Peer& peer, Op& op, std::span<Piece> pieces, std::uint64_t& moved) noexcept {
  const Run& first = op.runs[pieces.front().run];
  Status status = Status::ok;
  // A process number may be given out again: ask the pidfd right before it is used.
  if (peer.process_gone()) {
    status = Status::peer_lost;
  } else if (!peer.out().pin(first.region, first.generation)) {
    status = Status::stale_region;
  } else {
    std::uint64_t copied = 0;
    status = copy_vectors(peer, op, pieces, copied);
    const bool one_of_many = status == Status::failed && pieces.size() > 1;
    moved += one_of_many ? 0 : copied;
    for (Piece& piece : one_of_many ? pieces : std::span<Piece>()) {  // which one? The others shall arrive
      piece.status = copy_vectors(peer, op, {&piece, 1}, moved);
    }
    peer.out().unpin(first.region);
    if (one_of_many) {
      return;
    }
  }
  for (Piece& piece : pieces) {
    piece.status = status;
  }
}

// Pieces next to each other with the same region, direction and link share one pin and, on cma, one system call.
void CopyScheduler::copy(Chunk& chunk, std::uint64_t& moved) noexcept {
  Op& op = *chunk.op;
  Peer& peer = *static_cast<Peer*>(op.target);
  std::size_t begin = 0;
  while (begin < chunk.count) {
    const Run& first = op.runs[chunk.pieces[begin].run];
    std::size_t end = begin + 1;
    while (end < chunk.count) {
      const Run& run = op.runs[chunk.pieces[end].run];
      if (run.region != first.region || run.generation != first.generation || run.direction != first.direction ||
          run.link != first.link) {
        break;
      }
      ++end;
    }
    const std::span<Piece> group(chunk.pieces + begin, end - begin);
    if (static_cast<LinkKind>(first.link) == LinkKind::cma) {
      copy_cma(peer, op, group, moved);
    } else {
      copy_mapped(peer, op, group, moved);
    }
    begin = end;
  }
}

bool CopyScheduler::account(Chunk& chunk, std::uint64_t moved) noexcept {
  Op& op = *chunk.op;
  const std::lock_guard lock(mutex_);
  op.moved_nbytes += moved;
  for (std::size_t i = 0; i < chunk.count; ++i) {
    const Piece& piece = chunk.pieces[i];
    if (ok(piece.status)) {
      continue;
    }
    op.runs[piece.run].state = piece.status == Status::stale_region ? RunState::stale : RunState::failed;
    if (piece.status == Status::peer_lost && ok(op.status)) {
      op.status = Status::peer_lost;
    }
  }
  --op.outstanding;
  // A queued operation has more to copy and is finished by whoever claims it next; nobody else sees this one again.
  return op.outstanding == 0 && !op.queued;
}

bool CopyScheduler::step() noexcept {
  Chunk chunk;
  Op* finished = nullptr;
  if (!claim(chunk, finished)) {
    return false;
  }
  if (finished != nullptr) {
    finisher_.finish(*finished);
    return true;
  }
  if (chunk.count == 0) {
    return true;
  }
  std::uint64_t moved = 0;
  copy(chunk, moved);
  if (account(chunk, moved)) {
    finisher_.finish(*chunk.op);
  }
  return true;
}

void CopyScheduler::work() noexcept {
  for (;;) {
    if (step()) {
      continue;
    }
    std::unique_lock lock(mutex_);
    available_.wait(lock, [this] { return stopping_ || small_.head != nullptr || large_.head != nullptr; });
    if (stopping_ && small_.head == nullptr && large_.head == nullptr) {
      return;
    }
  }
}

Status CopyScheduler::start(std::uint32_t threads) {
  sharers_ = std::max(threads, 1U);
  for (std::uint32_t i = 0; i < threads; ++i) {
    threads_.push_back(std::make_unique<NativeThread>());
    const Status status = threads_.back()->start(
        "hixl-copy", [](void* self) noexcept { static_cast<CopyScheduler*>(self)->work(); }, this);
    if (!ok(status)) {
      return status;
    }
  }
  return Status::ok;
}

void CopyScheduler::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  available_.notify_all();
  for (const auto& thread : threads_) {
    thread->join();
  }
  threads_.clear();
}

Status settle_runs(Op& op) noexcept {
  Status worst = op.status;
  for (std::size_t i = 0; i < op.runs.size(); ++i) {
    Run& run = op.runs[i];
    if (run.state == RunState::pending) {
      // Every chunk that was started has ended, so a run before the cursor was copied whole.
      const bool whole = i < op.next_run;
      run.state = whole ? RunState::done : op.status == Status::stopped ? RunState::stopped : RunState::failed;
    }
    if (ok(worst) && run.state != RunState::done) {
      worst = run.state == RunState::stale ? Status::stale_region : Status::failed;
    }
  }
  return worst;
}

}  // namespace hixl_aio::host
