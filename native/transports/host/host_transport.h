// The host transport: everything within one machine, over the links inproc, shm, cma and cooperative.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "hixl_aio/transport.h"
#include "transports/host/control.h"
#include "transports/host/cooperative.h"
#include "transports/host/copy_scheduler.h"
#include "transports/host/state.h"

namespace hixl_aio::host {

class HostTransport final : public Transport, private OpFinisher {
 public:
  explicit HostTransport(HostConfig config);
  ~HostTransport() override;

  [[nodiscard]] std::string incarnation() const { return hex(state_.incarnation); }
  [[nodiscard]] std::uint32_t region_count() const { return state_.regions.count(); }
  [[nodiscard]] std::size_t peer_count() const { return state_.peers.count(); }
  // Of what is allocated here, how much lies on huge pages.
  [[nodiscard]] std::uint64_t huge_nbytes() const { return state_.heap ? state_.heap->huge_nbytes() : 0; }

  [[nodiscard]] const Capabilities& capabilities() const noexcept override { return capabilities_; }
  Status start(TransportHost& host, const std::string& address, std::string& bound, std::string& error) override;
  void shutdown() noexcept override;
  void abandon_after_fork() noexcept override;

  void connect(Token token, const std::string& address, double timeout) override;
  // Reads the greeting at an address and goes: who lives there now? The answer is an Event of kind `looked`.
  void look(Token token, const std::string& address, double timeout);
  void disconnect(Token token, PeerId peer, bool abort) override;
  void refresh(Token token, PeerId peer) override;
  void allocate(Token token, const RegionSpec& spec) override;
  void register_memory(Token token, const RegionSpec& spec) override;
  void close_region(Token token, std::uint32_t region, double timeout) override;

  bool find_region(PeerId peer, std::string_view label, RegionInfo& out) override;
  bool peer_info(PeerId peer, PeerInfo& out) override;
  std::shared_ptr<void> hold_region(std::uint32_t region) override;

  Status admit(Op& op) noexcept override;
  void release(Op& op) noexcept override;
  Status transfer_now(PeerId peer, const Run& run, const SignalText* signal, bool reserved) noexcept override;
  bool batch_now(Op& op) noexcept override;
  void post(Op& op) noexcept override;
  bool post_now(Op& op) noexcept override;
  bool progress() noexcept override { return coop_.advance(); }

  Status reserve_signal(PeerId peer) noexcept override;
  void unreserve_signal(PeerId peer) noexcept override;
  Status send_signal(PeerId peer, std::string_view name, std::string_view payload, Status status,
                     bool reserved) noexcept override;
  bool drain_signals(SignalSink& sink, std::size_t limit) override;
  void drain_peer_signals(PeerId peer, SignalSink& sink) override;
  void forget_peer(PeerId peer) override;
  void signals_taken(PeerId peer, std::uint32_t count) noexcept override;

 private:
  // Loop thread's own table, filled on first use: no lock on the way of a put. Null: no such peer.
  Peer* peer_of(PeerId peer) noexcept;
  // On the control thread; if it has ended, `answer` goes up with `closed`: every request is answered.
  template <typename Task>
  void on_control(EventKind kind, Token token, PeerId peer, Task task);
  void await_first_customer();
  // The signals of the peers in one word of the doorbell page, as far as `budget` goes. True: some are left.
  bool drain_word(std::size_t word, std::uint64_t mask, SignalSink& sink, std::size_t& budget);
  void drain_place(std::uint32_t place, SignalSink& sink, std::size_t& budget, bool& left);
  void finish(Op& op) noexcept override;

  HostState state_;
  Capabilities capabilities_;
  ControlPlane control_;
  CopyScheduler scheduler_;
  CoopInitiator coop_;
  std::unordered_map<PeerId, PeerRef> loop_peers_;
  std::uint32_t drain_from_ = 0;  // the place whose turn it is, so that nobody's flood starves the others
  bool serving_over_ = false;  // control thread
  bool started_ = false;
  bool ended_ = false;
};

}  // namespace hixl_aio::host
