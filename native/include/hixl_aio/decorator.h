// A transport over a transport, as the base of those that change a part of it: everything here is passed on, down to the
// inner transport and up to the core.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "hixl_aio/transport.h"

namespace hixl_aio {

class Decorator : public Transport, protected TransportHost {
 public:
  [[nodiscard]] const Capabilities& capabilities() const noexcept override { return capabilities_; }
  Status start(TransportHost& host, const std::string& address, std::string& bound, std::string& error) override {
    host_ = &host;
    return inner_->start(*this, address, bound, error);
  }
  void shutdown() noexcept override { inner_->shutdown(); }
  void abandon_after_fork() noexcept override { inner_->abandon_after_fork(); }
  void connect(Token token, const std::string& address, double timeout) override {
    inner_->connect(token, address, timeout);
  }
  void disconnect(Token token, PeerId peer, bool abort) override { inner_->disconnect(token, peer, abort); }
  void refresh(Token token, PeerId peer) override { inner_->refresh(token, peer); }
  void allocate(Token token, const RegionSpec& spec) override { inner_->allocate(token, spec); }
  void register_memory(Token token, const RegionSpec& spec) override { inner_->register_memory(token, spec); }
  void close_region(Token token, std::uint32_t region, double timeout) override {
    inner_->close_region(token, region, timeout);
  }
  bool find_region(PeerId peer, std::string_view label, RegionInfo& out) override {
    return inner_->find_region(peer, label, out);
  }
  bool peer_info(PeerId peer, PeerInfo& out) override { return inner_->peer_info(peer, out); }
  std::shared_ptr<void> hold_region(std::uint32_t region) override { return inner_->hold_region(region); }
  Status admit(Op& op) noexcept override { return inner_->admit(op); }
  void release(Op& op) noexcept override { inner_->release(op); }
  Status transfer_now(PeerId peer, const Run& run, const SignalText* signal, bool reserved) noexcept override {
    return inner_->transfer_now(peer, run, signal, reserved);
  }
  void post(Op& op) noexcept override { inner_->post(op); }
  bool progress() noexcept override { return inner_->progress(); }
  Status reserve_signal(PeerId peer) noexcept override { return inner_->reserve_signal(peer); }
  void unreserve_signal(PeerId peer) noexcept override { inner_->unreserve_signal(peer); }
  Status send_signal(PeerId peer, std::string_view name, std::string_view payload, Status status,
                     bool reserved) noexcept override {
    return inner_->send_signal(peer, name, payload, status, reserved);
  }
  bool drain_signals(SignalSink& sink, std::size_t limit) override { return inner_->drain_signals(sink, limit); }
  void drain_peer_signals(PeerId peer, SignalSink& sink) override { inner_->drain_peer_signals(peer, sink); }
  void forget_peer(PeerId peer) override { inner_->forget_peer(peer); }
  void signals_taken(PeerId peer, std::uint32_t count) noexcept override { inner_->signals_taken(peer, count); }

 protected:
  explicit Decorator(std::unique_ptr<Transport> inner) : inner_(std::move(inner)), capabilities_(inner_->capabilities()) {}

  // TransportHost, called by the inner transport
  void complete(Op& op, Status status, bool quiescent) noexcept override { host_->complete(op, status, quiescent); }
  void complete_again(OpHandle handle, Token token, Status status) noexcept override {
    host_->complete_again(handle, token, status);
  }
  void peer_ending(PeerId peer, Status status) noexcept override { host_->peer_ending(peer, status); }
  void raise(Event event) override { host_->raise(std::move(event)); }
  void wake_progress() noexcept override { host_->wake_progress(); }
  int progress_fd() const noexcept override { return host_->progress_fd(); }
  int loop_fd() const noexcept override { return host_->loop_fd(); }
  Reactor& reactor() noexcept override { return host_->reactor(); }
  JobThread& jobs() noexcept override { return host_->jobs(); }

  // Any thread: `drain_signals` is called soon.
  void ring_loop() noexcept {
    if (host_ != nullptr) {
      const std::uint64_t one = 1;
      static_cast<void>(!::write(host_->loop_fd(), &one, sizeof one));
    }
  }

  const std::unique_ptr<Transport> inner_;
  Capabilities capabilities_;
  TransportHost* host_ = nullptr;  // null before the start
};

}  // namespace hixl_aio
