// The link for memory that the kernel lets nobody copy across: the target's own native thread does it.
//
// The initiator fills slots in the target's channel (for a put the bytes travel in the slot, for a get they come back in
// it), the target's service thread checks every claim against its region table and copies. So access and bounds are
// enforced at the target here, and the initiator's memory is only ever touched by the initiator: a stop, or the death of
// the target, leaves nothing in flight that could reach it.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <vector>

#include "core/native_thread.h"
#include "transports/host/copy_scheduler.h"
#include "transports/host/peer.h"
#include "transports/host/regions.h"

namespace hixl_aio::host {

// Initiator's half; progress thread only.
class CoopInitiator {
 public:
  explicit CoopInitiator(OpFinisher& finisher) noexcept : finisher_(finisher) {}

  void enqueue(Op& op) noexcept;
  // Reaps answered slots and fills free ones, for all peers with work. True if anything moved.
  bool advance() noexcept;

 private:
  bool reap(Peer& peer) noexcept;
  void reap_slot(Peer& peer, std::uint64_t counter) noexcept;
  bool fill(Peer& peer) noexcept;
  bool fill_slot(Peer& peer) noexcept;
  std::uint64_t take_pieces(Peer& peer, Op& op, std::uint64_t at, std::uint64_t limit) noexcept;
  bool end_stopped(Peer& peer) noexcept;
  bool fail_all(Peer& peer) noexcept;
  void end_chunk(Op& op) noexcept;

  OpFinisher& finisher_;
  std::vector<Peer*> active_;  // peers with waiting operations or unanswered slots; their operations hold references
};

// Target's half: its own thread, started when the first slot arrives.
class CoopService {
 public:
  explicit CoopService(RegionTable& regions) noexcept : regions_(regions) {}
  ~CoopService() { stop(); }
  CoopService(const CoopService&) = delete;
  CoopService& operator=(const CoopService&) = delete;

  Status open();
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  // Control thread.
  void add_peer(PeerRef peer);
  void remove_peer(PeerId peer);
  Status start();  // idempotent
  void stop() noexcept;
  void forget_thread() noexcept { thread_.forget(); }

 private:
  void run() noexcept;
  bool serve(Peer& peer) noexcept;
  void serve_slot(CoopSlot& slot) noexcept;

  RegionTable& regions_;
  UniqueFd fd_;
  NativeThread thread_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;  // guards peers_; the service copies the list when it changed
  std::vector<PeerRef> peers_;
};

}  // namespace hixl_aio::host
