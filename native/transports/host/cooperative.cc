#include "transports/host/cooperative.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "transports/host/fragile_memory.h"

namespace hixl_aio::host {
namespace {

// A value that another process may change at any moment: one read, so that what was checked is what is used (INV-12).
template <typename T>
T read_once(T& value) noexcept {
  return std::atomic_ref<T>(value).load(std::memory_order_relaxed);
}

}  // namespace

// ---- initiator

void CoopInitiator::enqueue(Op& op) noexcept {
  auto* peer = static_cast<Peer*>(op.target);
  if (std::find(active_.begin(), active_.end(), peer) == active_.end()) {
    active_.push_back(peer);
  }
  op.queued = true;
  peer->coop_waiting.push_back(&op);
}

void CoopInitiator::end_chunk(Op& op) noexcept {
  --op.outstanding;
  if (op.outstanding == 0 && !op.queued) {
    finisher_.finish(op);
  }
}

void CoopInitiator::reap_slot(Peer& peer, std::uint64_t counter) noexcept {
  CoopSlot& slot = peer.out().coop_slot(counter);
  auto& pieces = peer.coop_slots[counter % kCoopSlots];
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const CoopPiece& piece = pieces[i];
    Op& op = *piece.op;
    Run& run = op.runs[piece.run];
    if (const std::uint8_t status = read_once(slot.run_status[i]); status != 0) {
      run.state = static_cast<Status>(status) == Status::stale_region ? RunState::stale : RunState::failed;
    } else if (run.direction == Direction::get && !copy_bytes(run.local + piece.offset, slot.data + at, piece.nbytes)) {
      run.state = RunState::failed;
    } else {
      op.moved_nbytes += piece.nbytes;
    }
    at += piece.nbytes;
  }
  for (const CoopPiece& piece : pieces) {
    end_chunk(*piece.op);
  }
  pieces.clear();
}

bool CoopInitiator::reap(Peer& peer) noexcept {
  // Acquire: the answer, and for a get the bytes, were written before the counter.
  const std::uint64_t completed = peer.out().header().coop_completed.load(std::memory_order_acquire);
  bool moved = false;
  while (peer.coop_reaped != peer.coop_submitted && peer.coop_reaped < completed) {
    reap_slot(peer, peer.coop_reaped);
    ++peer.coop_reaped;
    moved = true;
  }
  return moved;
}

// Takes up to `limit` bytes of `op` into the slot that is being filled, from `at` on. The first piece decides the slot's
// direction. Empty runs need no piece. Returns the bytes taken.
std::uint64_t CoopInitiator::take_pieces(Peer& peer, Op& op, std::uint64_t at, std::uint64_t limit) noexcept {
  CoopSlot& slot = peer.out().coop_slot(peer.coop_submitted);
  auto& pieces = peer.coop_slots[peer.coop_submitted % kCoopSlots];
  std::uint64_t taken = 0;
  while (taken < limit && pieces.size() < kCoopRuns && op.next_run < op.runs.size()) {
    Run& run = op.runs[op.next_run];
    const std::uint64_t nbytes = std::min(limit - taken, run.nbytes - op.next_offset);
    if (nbytes > 0) {
      if (!pieces.empty() && run.direction != peer.coop_direction) {
        break;
      }
      if (run.direction == Direction::put && !copy_bytes(slot.data + at + taken, run.local + op.next_offset, nbytes)) {
        run.state = RunState::failed;
        ++op.next_run;
        op.next_offset = 0;
        continue;
      }
      peer.coop_direction = run.direction;
      slot.runs[pieces.size()] = CoopRun{run.remote_offset + op.next_offset, nbytes, run.region, run.generation};
      pieces.push_back(CoopPiece{&op, op.next_run, op.next_offset, nbytes});
      ++op.outstanding;
      taken += nbytes;
      op.next_offset += nbytes;
    }
    if (op.next_offset == run.nbytes) {
      ++op.next_run;
      op.next_offset = 0;
    }
  }
  return taken;
}

// One slot takes pieces of as many waiting operations as fit, one direction at a time; an operation that has more goes
// to the end of the line, so a small one waits for the slots in flight and no longer. False: nothing was left to copy.
bool CoopInitiator::fill_slot(Peer& peer) noexcept {
  const auto& pieces = peer.coop_slots[peer.coop_submitted % kCoopSlots];
  std::uint64_t at = 0;
  for (std::size_t turns = peer.coop_waiting.size(); turns > 0 && at < kCoopSlotNbytes && pieces.size() < kCoopRuns;
       --turns) {
    Op& op = *peer.coop_waiting.front();
    peer.coop_waiting.pop_front();
    op.queued = false;
    if (op.stop_requested.load(std::memory_order_relaxed) && ok(op.status)) {
      op.status = Status::stopped;
    }
    if (ok(op.status)) {
      // Half a slot at most while others wait: nobody's large operation fills all the slots alone.
      const std::uint64_t left = kCoopSlotNbytes - at;
      at += take_pieces(peer, op, at, turns > 1 ? std::max<std::uint64_t>(left / 2, 1) : left);
    }
    if (ok(op.status) && op.next_run < op.runs.size()) {
      op.queued = true;
      peer.coop_waiting.push_back(&op);
    } else if (op.outstanding == 0) {
      finisher_.finish(op);  // stopped before it began, or nothing but empty runs
    }
  }
  if (pieces.empty()) {
    return false;
  }
  CoopSlot& slot = peer.out().coop_slot(peer.coop_submitted);
  slot.run_count = static_cast<std::uint32_t>(pieces.size());
  slot.direction = static_cast<std::uint32_t>(peer.coop_direction);
  return true;
}

bool CoopInitiator::fill(Peer& peer) noexcept {
  bool moved = false;
  while (!peer.coop_waiting.empty() && peer.coop_submitted - peer.coop_reaped < kCoopSlots) {
    moved = true;
    if (!fill_slot(peer)) {
      continue;  // whatever waited has ended
    }
    ++peer.coop_submitted;
    ChannelHeader& header = peer.out().header();
    // Release: the slot is written before the service can see it.
    header.coop_submitted.store(peer.coop_submitted, std::memory_order_release);
    // Either this exchange finds the service asleep and rings, or the service's later arm sees our counter (the same
    // handshake as for signals).
    if (header.coop_service_armed.exchange(0, std::memory_order_acq_rel) == 1) {
      peer.ring_service();
    }
  }
  return moved;
}

// With the ring full nobody waits his turn for a stop: a target that is silent must not hold what has no slot.
bool CoopInitiator::end_stopped(Peer& peer) noexcept {
  bool moved = false;
  for (std::size_t turns = peer.coop_waiting.size(); turns > 0; --turns) {
    Op& op = *peer.coop_waiting.front();
    peer.coop_waiting.pop_front();
    if (op.outstanding == 0 && op.stop_requested.load(std::memory_order_relaxed)) {
      op.queued = false;
      op.status = ok(op.status) ? Status::stopped : op.status;
      finisher_.finish(op);
      moved = true;
    } else {
      peer.coop_waiting.push_back(&op);
    }
  }
  return moved;
}

// The peer is gone: no slot will be answered. Our memory is not reachable for anybody, so everything ends at once.
bool CoopInitiator::fail_all(Peer& peer) noexcept {
  bool moved = false;
  while (peer.coop_reaped != peer.coop_submitted) {
    auto& pieces = peer.coop_slots[peer.coop_reaped % kCoopSlots];
    for (const CoopPiece& piece : pieces) {
      if (ok(piece.op->status)) {
        piece.op->status = peer.down_status();
      }
      piece.op->runs[piece.run].state = RunState::failed;
    }
    for (const CoopPiece& piece : pieces) {
      end_chunk(*piece.op);
    }
    pieces.clear();
    ++peer.coop_reaped;
    moved = true;
  }
  while (!peer.coop_waiting.empty()) {
    Op& op = *peer.coop_waiting.front();
    peer.coop_waiting.pop_front();
    op.queued = false;
    if (ok(op.status)) {
      op.status = peer.down_status();
    }
    finisher_.finish(op);
    moved = true;
  }
  return moved;
}

bool CoopInitiator::advance() noexcept {
  bool moved = false;
  for (std::size_t i = 0; i < active_.size();) {
    // Finishing an operation may drop the last reference to its peer.
    const PeerRef peer(active_[i]);
    if (peer->down()) {
      moved |= fail_all(*peer);
    } else {
      moved |= reap(*peer);
      moved |= fill(*peer);
      if (peer->coop_submitted - peer->coop_reaped == kCoopSlots) {
        moved |= end_stopped(*peer);
      }
      if (peer->coop_reaped != peer->coop_submitted) {
        // Ask to be woken, then look again: an answer that came before the exchange is found by this look.
        peer->out().header().coop_initiator_armed.exchange(1, std::memory_order_acq_rel);
        moved |= reap(*peer);
      }
    }
    if (peer->coop_waiting.empty() && peer->coop_reaped == peer->coop_submitted) {
      active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  return moved;
}

// ---- service

Status CoopService::open() {
  fd_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return fd_ ? Status::ok : Status::resource_exhausted;
}

void CoopService::add_peer(PeerRef peer) {
  const std::lock_guard lock(mutex_);
  peers_.push_back(std::move(peer));
}

void CoopService::remove_peer(PeerId peer) {
  const std::lock_guard lock(mutex_);
  std::erase_if(peers_, [peer](const PeerRef& each) { return each->id == peer; });
}

Status CoopService::start() {
  if (thread_.joinable()) {
    return Status::ok;
  }
  return thread_.start("hixl-service", [](void* self) noexcept { static_cast<CoopService*>(self)->run(); }, this);
}

void CoopService::stop() noexcept {
  if (thread_.joinable()) {
    stopping_.store(true, std::memory_order_release);
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(fd_.get(), &one, sizeof(one));
    thread_.join();
  }
  const std::lock_guard lock(mutex_);
  peers_.clear();
}

void CoopService::serve_slot(CoopSlot& slot) noexcept {
  // The slot belongs to another process, which may go on writing it.
  const std::uint32_t count = std::min(read_once(slot.run_count), kCoopRuns);
  const auto direction = read_once(slot.direction) == 0 ? Direction::put : Direction::get;
  std::uint64_t at = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    CoopRun& claim = slot.runs[i];
    const CoopRun run{read_once(claim.offset), read_once(claim.nbytes), read_once(claim.region),
                      read_once(claim.generation)};
    Status status = Status::out_of_bounds;
    if (run.nbytes <= kCoopSlotNbytes - at) {
      std::byte* address = nullptr;
      status = regions_.service_pin(run.region, run.generation, run.offset, run.nbytes, direction, address);
      if (ok(status)) {
        const bool copied = direction == Direction::put ? copy_bytes(address, slot.data + at, run.nbytes)
                                                        : copy_bytes(slot.data + at, address, run.nbytes);
        status = copied ? Status::ok : Status::failed;
        regions_.service_unpin(run.region);
      }
      at += run.nbytes;
    }
    slot.run_status[i] = static_cast<std::uint8_t>(status);
  }
}

bool CoopService::serve(Peer& peer) noexcept {
  ChannelHeader& header = peer.in().header();
  // Acquire: the slots were written before the counter.
  const std::uint64_t submitted = header.coop_submitted.load(std::memory_order_acquire);
  if (submitted - peer.coop_served > kCoopSlots) {
    return false;  // no engine writes that: whoever does is not served
  }
  bool moved = false;
  while (peer.coop_served != submitted) {
    serve_slot(peer.in().coop_slot(peer.coop_served));
    ++peer.coop_served;
    header.coop_completed.store(peer.coop_served, std::memory_order_release);
    if (header.coop_initiator_armed.exchange(0, std::memory_order_acq_rel) == 1) {
      peer.ring_progress();
    }
    moved = true;
  }
  return moved;
}

void CoopService::run() noexcept {
  std::vector<PeerRef> peers;
  while (!stopping_.load(std::memory_order_acquire)) {
    {
      const std::lock_guard lock(mutex_);
      peers = peers_;
    }
    bool moved = false;
    for (const PeerRef& peer : peers) {
      moved |= serve(*peer);
    }
    if (moved) {
      continue;
    }
    for (const PeerRef& peer : peers) {
      peer->in().header().coop_service_armed.exchange(1, std::memory_order_acq_rel);
      moved |= serve(*peer);  // look again after arming
    }
    if (moved) {
      continue;
    }
    peers.clear();  // asleep, the service keeps no peer alive
    pollfd entry{fd_.get(), POLLIN, 0};
    poll(&entry, 1, -1);
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(fd_.get(), &count, sizeof(count));
  }
}

}  // namespace hixl_aio::host
