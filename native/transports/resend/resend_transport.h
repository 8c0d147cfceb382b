// A decorator over a transport whose signals may get lost, repeated or reordered: it gives the core what the seam
// promises, each peer's signals exactly once and in sequence (INV-11).
//
// See link.h for the frames.
//
// Sender. What is not acknowledged is kept, and sent again after a timeout that doubles up to a limit, for as long as the
// peer is there. A peer that says nothing at all for `tries` timeouts in a row is taken for broken: its link is torn down.
// It is the peer's loop that acknowledges, so this has to be longer than a loop may stand still; a process that is stopped
// is waited for.
// Places (INV-11): the peer says up to which sequence it takes; before its first word that is our own `capacity`, so both
// ends are set up alike. A refusal for want of a place sends an old number again, so that a lost word about it is repeated.
// Receiver. What comes early waits, what comes again is dropped; acknowledged once per drain.
// Bound signals are taken from their operations and sent when those have ended, before their records.
// End. An orderly disconnect waits for acknowledgements, `linger` seconds at most; a crash, an abort and a shutdown lose
// what was not delivered.
//
// Threads. `links_` is the loop thread's. Operations end on any thread: `mutex_`, never held while others are called.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "core/reactor.h"
#include "hixl_aio/decorator.h"
#include "transports/resend/link.h"

namespace hixl_aio::resend {

class ResendTransport final : public Decorator {
 public:
  ResendTransport(std::unique_ptr<Transport> inner, Config config);
  ~ResendTransport() override;

  void advance(double seconds);         // loop thread
  [[nodiscard]] std::size_t pending();  // loop thread: signals that are kept or wait here, and operations

  void shutdown() noexcept override;
  void disconnect(Token token, PeerId peer, bool abort) override;
  Status admit(Op& op) noexcept override;
  void release(Op& op) noexcept override;
  Status transfer_now(PeerId peer, const Run& run, const SignalText* signal, bool reserved) noexcept override;
  Status reserve_signal(PeerId peer) noexcept override;
  void unreserve_signal(PeerId peer) noexcept override;
  Status send_signal(PeerId peer, std::string_view name, std::string_view payload, Status status,
                     bool reserved) noexcept override;
  bool drain_signals(SignalSink& sink, std::size_t limit) override;
  void drain_peer_signals(PeerId peer, SignalSink& sink) override;
  void forget_peer(PeerId peer) override;
  void signals_taken(PeerId peer, std::uint32_t count) noexcept override;

 private:
  // An operation with a signal that has come back from the inner transport.
  struct Landed {
    Op* op = nullptr;
    Status status = Status::ok;
    bool quiescent = true;
  };
  class Intake;

  // TransportHost, called by the inner transport
  void complete(Op& op, Status status, bool quiescent) noexcept override;
  void peer_ending(PeerId peer, Status status) noexcept override;
  void raise(Event event) override;

  [[nodiscard]] bool fits(std::string_view name, std::string_view payload) const noexcept;
  [[nodiscard]] double now() const noexcept;
  void arm(double due);
  Link& link_of(PeerId peer);
  void pump(PeerId peer, Link& link);
  [[nodiscard]] bool is_stopped(PeerId peer);
  [[nodiscard]] double serve(PeerId peer, Link& link, double time);
  void acknowledge(PeerId peer, Link& link);
  void fail(PeerId peer, Link& link, std::string why);
  void leave(PeerId peer, Link& link, bool abort);
  void send_landed();
  void end_landed(PeerId peer, Status status);

  const Config config_;
  std::unordered_map<PeerId, Link> links_;
  double manual_seconds_ = 0.0;
  TimerId timer_ = 0;
  double armed_for_ = kNever;
  // Set by the control thread before it rings. Relaxed: the bell orders it, and an early look costs a late timer at most.
  std::atomic<bool> timer_fired_{false};

  std::mutex sending_;  // held by the loop thread while it sends for operations; taken once by who ends them all
  std::mutex mutex_;    // everything below
  std::unordered_set<Op*> bound_;  // admitted operations whose signal we have taken
  std::deque<Landed> landed_;
  std::unordered_map<PeerId, Status> ending_;
  std::unordered_map<PeerId, std::string> failed_;  // torn down by us, and why
  bool ended_ = false;
};

}  // namespace hixl_aio::resend
