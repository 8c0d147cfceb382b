// One peer as the data plane sees it: the route, the peer's regions, both channels, signals out and in.
//
// Who owns what. Directory: written on the control thread, read on the loop thread, under `directory_mutex`. Signals
// out: any thread that finishes an operation, under `sender_mutex_`. Signals in: the loop thread. Lifetime: counted by
// `PeerRef`; the channels live as long as the object, the mapped segments until the last admitted operation has ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hixl_aio/transport.h"
#include "transports/host/channel.h"
#include "transports/host/links.h"
#include "transports/host/wire.h"

namespace hixl_aio::host {

// A peer's segment, mapped here if that was possible.
struct MappedSegment {
  std::byte* base = nullptr;  // null: no descriptor, address space or mapping was left, so another link has to do

  std::uint64_t nbytes = 0;
  bool writable = false;
};

struct RemoteRegion {
  std::uint32_t generation = 0;  // 0: none
  Access access = Access::local;
  MemoryKind kind = MemoryKind::host;
  std::uint64_t nbytes = 0;
  std::byte* mapped = nullptr;    // in one of our mappings of the peer's segments
  std::uint64_t address = 0;      // in the peer's address space
  std::uint32_t segment = 0;  // 0: not in one
  std::string label;
};

struct Route {
  LinkKind shared = LinkKind::none;  // for memory of allocate()
  LinkKind host = LinkKind::none;    // for any other registered memory
  std::vector<LinkInfo> links;
};

struct PeerIdentity {
  Incarnation incarnation{};
  std::string name;
  std::string address;
  std::int64_t pid = 0;
  bool same_process = false;
};

// What the handshake collected for the data plane.
struct PeerParts {
  PeerIdentity identity;
  Route route;
  std::unique_ptr<Channel> in;   // ours: the peer pins, signals and posts here
  std::unique_ptr<Channel> out;  // theirs
  std::unique_ptr<SharedDoorbell> doorbell;
  UniqueFd loop_fd;      // theirs: a signal has arrived
  UniqueFd progress_fd;  // theirs: a cooperative slot is answered
  UniqueFd service_fd;   // theirs: a cooperative slot is waiting
  std::uint32_t place = 0;         // our doorbell bit that the peer sets
  std::uint32_t remote_place = 0;  // the bit we set at the peer
};

// One slot of the cooperative ring that this side has filled.
struct CoopPiece {
  Op* op = nullptr;
  std::size_t run = 0;
  std::uint64_t offset = 0;
  std::uint64_t nbytes = 0;
};

class Peer {
 public:
  Peer(PeerId id, PeerParts parts);
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  const PeerId id;
  const PeerIdentity identity;
  const Route route;
  const std::uint32_t place;
  std::atomic<PeerId> alias;  // what the owner calls it; differs for the inner half of a connection to ourselves

  [[nodiscard]] Channel& in() noexcept { return *in_; }
  [[nodiscard]] Channel& out() noexcept { return *out_; }

  // ---- directory
  std::mutex directory_mutex;
  // Under the lock: resolves the runs, or says why that cannot be done, and of which (`at`). Sets remote and link.
  Status resolve(std::span<Run> runs, std::size_t& at) noexcept;
  // Inline path: resolve, pin, copy, unpin, all runs or none; would_block unless shm or inproc.
  Status copy_now(std::span<Run> runs) noexcept;
  bool find(std::string_view label, RegionInfo& out);
  // Control thread; take the lock themselves. False: no engine announces that. Without a descriptor the segment is known
  // and not mapped.
  bool add_segment(const SegmentFrame& frame, UniqueFd fd);
  // Maps up to `limit` bytes of a segment before they are first touched, from `offset` on. Where to go on; 0: that was all.
  std::uint64_t prefault_segment(std::uint32_t segment, std::uint64_t offset, std::uint64_t limit) noexcept;
  void drop_segment(std::uint32_t segment);
  bool add_region(const RegionFrame& frame);
  void drop_region(std::uint32_t region, std::uint32_t generation);
  void unmap_all();

  // ---- life
  // Acquire pairs with the release in `mark_down`: who sees it down sees why.
  [[nodiscard]] bool down() const noexcept { return down_.load(std::memory_order_seq_cst); }
  [[nodiscard]] Status down_status() const noexcept { return down_status_; }
  [[nodiscard]] bool process_gone() const noexcept;  // asks the pidfd: one system call
  // Asks /proc, which never waits for that process: four system calls. Alive, and SIGSTOP or a debugger holds it.
  [[nodiscard]] bool process_stopped() const noexcept;
  void set_pidfd(UniqueFd fd) noexcept { pidfd_ = std::move(fd); }
  [[nodiscard]] int pidfd() const noexcept { return pidfd_.get(); }
  // Control thread. False: it already was.
  bool mark_down(Status status) noexcept;
  // Operations between admit and completion. seq_cst on both sides of (count, down): the teardown sees the operation, or
  // the operation sees the teardown.
  void enter() noexcept { admitted_.fetch_add(1, std::memory_order_seq_cst); }
  [[nodiscard]] bool leave() noexcept { return admitted_.fetch_sub(1, std::memory_order_seq_cst) == 1 && down(); }
  [[nodiscard]] bool idle() const noexcept { return admitted_.load(std::memory_order_seq_cst) == 0; }

  // ---- signals
  // Control thread: the loop has been told of this peer. Release, so that who sees it sees that the news was raised: the
  // peer's signals wait until then.
  void announce() noexcept { announced_.store(true, std::memory_order_release); }
  [[nodiscard]] bool announced() const noexcept { return announced_.load(std::memory_order_acquire); }
  bool silenced = false;  // loop thread: its last words were taken, nothing comes after them
  // Control thread, before the announcement: what we send to ourselves arrives there.
  void set_inner(Peer& inner) noexcept {
    inner.retain();
    inner_ = &inner;
  }
  [[nodiscard]] Peer* inner() const noexcept { return inner_; }
  Status reserve_signal() noexcept;  // loop thread
  void unreserve_signal() noexcept { --signals_reserved_; }  // loop thread
  Status publish(std::string_view name, std::string_view payload, Status status) noexcept;  // any thread
  // Loop thread. `malformed` is set when the peer wrote what no engine writes.
  bool drain(SignalSink& sink, std::size_t& budget, bool& malformed);
  void taken(std::uint32_t count) noexcept;

  // ---- cooperative link, progress thread only
  std::deque<Op*> coop_waiting;
  std::vector<CoopPiece> coop_slots[kCoopSlots];
  std::uint64_t coop_submitted = 0;
  std::uint64_t coop_reaped = 0;
  Direction coop_direction = Direction::put;  // of the slot that is being filled
  // ---- cooperative service, service thread only
  std::uint64_t coop_served = 0;

  void ring_progress() noexcept;
  void ring_service() noexcept;

  void retain() noexcept { refs_.fetch_add(1, std::memory_order_relaxed); }
  void drop() noexcept {
    // acq_rel: whatever any holder did happens before the destructor.
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete this;
    }
  }

 private:
  ~Peer();
  Status look_up(const Run& run, const RemoteRegion*& region) noexcept;
  LinkKind link_to(const RemoteRegion& region) const noexcept;
  Status pin_all(std::span<const Run> runs) noexcept;
  void unpin_all(std::span<const Run> runs) noexcept;
  void forget(RemoteRegion& region, std::uint32_t id_of_region);

  std::unique_ptr<Channel> in_;
  std::unique_ptr<Channel> out_;
  std::unique_ptr<SharedDoorbell> doorbell_;
  UniqueFd loop_fd_;
  UniqueFd progress_fd_;
  UniqueFd service_fd_;
  UniqueFd pidfd_;
  const std::uint32_t remote_place_;

  std::vector<RemoteRegion> directory_;
  std::unordered_map<std::string, std::uint32_t> labels_;
  std::unordered_map<std::uint32_t, MappedSegment> segments_;

  std::atomic<std::uint64_t> admitted_{0};
  Status down_status_ = Status::ok;
  std::atomic<bool> down_{false};
  std::atomic<bool> announced_{false};
  Peer* inner_ = nullptr;

  std::uint64_t signals_reserved_ = 0;
  // Several threads finish operations, the ring has one producer: they take turns. Held for two short copies.
  std::mutex sender_mutex_;
  std::uint64_t send_head_ = 0;
  std::uint64_t send_sequence_ = 0;

  std::uint64_t receive_tail_ = 0;
  std::uint64_t receive_sequence_ = 0;
  SignalRecord receive_record_;

  std::atomic<std::uint32_t> refs_{1};
};

class PeerRef {
 public:
  PeerRef() = default;
  // Takes over one reference.
  static PeerRef adopt(Peer* peer) noexcept {
    PeerRef ref;
    ref.peer_ = peer;
    return ref;
  }
  explicit PeerRef(Peer* peer) noexcept : peer_(peer) {
    if (peer_ != nullptr) {
      peer_->retain();
    }
  }
  PeerRef(const PeerRef& other) noexcept : PeerRef(other.peer_) {}
  PeerRef(PeerRef&& other) noexcept : peer_(std::exchange(other.peer_, nullptr)) {}
  PeerRef& operator=(PeerRef other) noexcept {
    std::swap(peer_, other.peer_);
    return *this;
  }
  ~PeerRef() {
    if (peer_ != nullptr) {
      peer_->drop();
    }
  }
  [[nodiscard]] Peer* get() const noexcept { return peer_; }
  Peer* operator->() const noexcept { return peer_; }
  Peer& operator*() const noexcept { return *peer_; }
  explicit operator bool() const noexcept { return peer_ != nullptr; }
  [[nodiscard]] Peer* release() noexcept { return std::exchange(peer_, nullptr); }

 private:
  Peer* peer_ = nullptr;
};

}  // namespace hixl_aio::host
