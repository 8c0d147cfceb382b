// The one seam between the core and whatever moves bytes.
//
// Threads. "loop" is the thread of the owner's event loop, "progress" the engine's progress thread, "control" its
// control thread, "jobs" the thread for work that may block. A method says who calls it; none of them throws, and none
// that is called on the loop thread may block (INV-7).
//
// Completion. Every operation that `post` was given is handed back exactly once through `TransportHost::complete`
// (INV-1), from any thread, at or after the moment the transport has let go of the memory (or says that it cannot know).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hixl_aio/status.h"
#include "hixl_aio/types.h"

namespace hixl_aio {

enum class DeliveryLevel : std::uint8_t { local = 0, remote = 1 };
enum class OrderPerPeer : std::uint8_t { none = 0, submission = 1 };

inline constexpr std::uint32_t kMaxSignalNbytes = 1024;  // of a signal's name, and at best of its payload

struct Capabilities {
  std::string_view name;
  DeliveryLevel delivery = DeliveryLevel::remote;  // what a completion means at best
  OrderPerPeer order = OrderPerPeer::none;
  std::uint32_t max_in_flight_per_peer = 0;  // 0: no limit of its own
  std::uint32_t max_descriptors = 0;         // per operation; 0: no limit of its own
  std::uint64_t inline_nbytes = 0;           // transfer_now takes up to this many; 0: never
  bool post_is_nonblocking = false;
  bool can_stop = false;
  bool deregister_while_connected = false;
  bool inline_signal = false;
  // What is sent arrives once and in order. False: it may be lost, repeated or reordered, and no places are kept:
  // reserve_signal only says whether the peer is there, signals_taken does nothing, and send_signal answers
  // signal_queue_full when there is no room now. ResendTransport makes a lossless transport of such a one.
  bool signals_lossless = true;
  std::uint32_t max_signal_payload = kMaxSignalNbytes;  // bytes
  bool always_quiescent = false;  // every record says "let go"
  bool memory_shared = false;
  bool memory_host = false;
  bool memory_device = false;
};

class Reactor;
class JobThread;

// What the core offers a transport.
class TransportHost {
 public:
  // Any thread. The transport must not touch `op` afterwards.
  virtual void complete(Op& op, Status status, bool quiescent) noexcept = 0;
  // Any thread. A record that may repeat one: it is matched by its handle, and dropped when it matches nothing or when
  // there is no room for it (INV-9).
  virtual void complete_again(OpHandle handle, Token token, Status status) noexcept = 0;
  // Any thread, as soon as the transport begins to tear a peer down, which it ends only when all its operations have
  // ended: a decorator that holds some back must let them come now. `status`: what they end with.
  virtual void peer_ending(PeerId peer, Status status) noexcept = 0;
  // Any thread but the loop's is expected; wakes the loop.
  virtual void raise(Event event) = 0;
  // Any thread: makes the progress thread call `Transport::progress` soon.
  virtual void wake_progress() noexcept = 0;
  virtual int progress_fd() const noexcept = 0;
  virtual int loop_fd() const noexcept = 0;
  virtual Reactor& reactor() noexcept = 0;
  virtual JobThread& jobs() noexcept = 0;

 protected:
  ~TransportHost() = default;
};

struct RegionSpec {
  std::uint64_t nbytes = 0;
  std::byte* address = nullptr;  // null: the transport allocates
  MemoryKind kind = MemoryKind::host;
  Access access = Access::local;
  std::string label;
};

class SignalSink {
 public:
  virtual void take(const SignalRecord& record) = 0;

 protected:
  ~SignalSink() = default;
};

class Transport {
 public:
  virtual ~Transport() = default;

  [[nodiscard]] virtual const Capabilities& capabilities() const noexcept = 0;

  // ---- life. `start` on the loop thread: binds, starts threads, does not wait for peers.
  virtual Status start(TransportHost& host, const std::string& address, std::string& bound, std::string& error) = 0;
  // On the jobs thread or at destruction: ends links, joins the transport's own threads. When it returns, every posted
  // operation has been completed and no thread of the transport is inside a call to the host. Idempotent.
  virtual void shutdown() noexcept = 0;
  // In a forked child: close descriptors, touch nothing else (the threads do not exist here).
  virtual void abandon_after_fork() noexcept = 0;

  // ---- control plane, called on the loop thread; returns at once, the answer is an Event with `token`.
  virtual void connect(Token token, const std::string& address, double timeout) = 0;
  virtual void disconnect(Token token, PeerId peer, bool abort) = 0;
  virtual void refresh(Token token, PeerId peer) = 0;
  virtual void allocate(Token token, const RegionSpec& spec) = 0;
  virtual void register_memory(Token token, const RegionSpec& spec) = 0;
  // Revokes the region, then answers when no peer can touch it any more, or with region_busy after `timeout` seconds
  // (negative: waits without end). It stays revoked then, and may be closed again.
  virtual void close_region(Token token, std::uint32_t region, double timeout) = 0;

  // ---- look-ups, loop thread.
  virtual bool find_region(PeerId peer, std::string_view label, RegionInfo& out) = 0;
  virtual bool peer_info(PeerId peer, PeerInfo& out) = 0;
  // For as long as the caller holds it, a region's memory is mapped and known for what it is; null if that needs nothing.
  virtual std::shared_ptr<void> hold_region(std::uint32_t region) = 0;

  // ---- data plane.
  // Loop thread: checks and resolves the runs (peer, generation, bounds, access, link) before anything moves, and keeps
  // the peer in `op.target`; the core gives it back through `release` (any thread) for every admitted operation. If a run
  // is what is wrong, `op.next_run` says which.
  virtual Status admit(Op& op) noexcept = 0;
  virtual void release(Op& op) noexcept = 0;
  // Loop thread: the whole operation here and now, if that cannot block. `would_block`: queue it instead.
  // A reserved signal place is used up unless the answer is `would_block` or an error.
  virtual Status transfer_now(PeerId peer, const Run& run, const SignalText* signal, bool reserved) noexcept = 0;
  // Loop thread: the same for an operation of many runs. False: admit and queue it instead, which also says what is
  // wrong with it.
  virtual bool batch_now(Op& /*op*/) noexcept { return false; }
  // Progress thread. Failures arrive through complete().
  virtual void post(Op& op) noexcept = 0;
  // Loop thread: the same, for what needs neither the progress thread nor a wait; it spares one wake-up. False: not taken.
  virtual bool post_now(Op& /*op*/) noexcept { return false; }
  // Progress thread: reap and advance; true if anything was done.
  virtual bool progress() noexcept = 0;

  // ---- signals, loop thread.
  virtual Status reserve_signal(PeerId peer) noexcept = 0;
  virtual void unreserve_signal(PeerId peer) noexcept = 0;  // a place that was reserved and not used
  virtual Status send_signal(PeerId peer, std::string_view name, std::string_view payload, Status status,
                             bool reserved) noexcept = 0;
  // Gives up to `limit` arrived signals to the sink; true if some may be left. Re-arms before it looks (INV-8).
  virtual bool drain_signals(SignalSink& sink, std::size_t limit) = 0;
  // Everything that has arrived from one peer: the last words of one that is down.
  virtual void drain_peer_signals(PeerId peer, SignalSink& sink) = 0;
  // The caller has dealt with the peer's end and will not ask about it again. Until then look-ups still answer: a peer
  // may come, speak and go between two looks of the loop.
  virtual void forget_peer(PeerId peer) = 0;
  // The application has taken `count` signals of the peer: their places are free again.
  virtual void signals_taken(PeerId peer, std::uint32_t count) noexcept = 0;
};

}  // namespace hixl_aio
