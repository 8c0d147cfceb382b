// See fault_transport.h. Life, the end of peers, look-ups.
#include "transports/fault/fault_transport.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "core/reactor.h"

namespace hixl_aio::fault {

FaultTransport::FaultTransport(std::unique_ptr<Transport> inner, Config config)
    : Decorator(std::move(inner)), config_(config) {
  capabilities_.can_stop = capabilities_.can_stop && config_.can_stop;
  capabilities_.always_quiescent = false;
  capabilities_.signals_lossless = capabilities_.signals_lossless && !config_.lossy_signals;
}

FaultTransport::~FaultTransport() { shutdown(); }

Status FaultTransport::start(TransportHost& host, const std::string& address, std::string& bound, std::string& error) {
  timer_fd_ = ::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (timer_fd_ < 0) {
    error = "no descriptor is left for the timer of the fault plan";
    return Status::resource_exhausted;
  }
  if (const Status status = Decorator::start(host, address, bound, error); !ok(status)) {
    return status;
  }
  return host.reactor().watch(timer_fd_, EPOLLIN, [this, timer = timer_fd_](std::uint32_t) {
    std::uint64_t times = 0;
    static_cast<void>(!::read(timer, &times, sizeof times));
    wake();
    ring_loop();
  });
}

void FaultTransport::shutdown() noexcept {
  Steps steps;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    for (auto& [op, entry] : entries_) {
      if (entry->phase != Phase::moving && entry->phase != Phase::moving_half) {
        entry->status = entry->phase == Phase::lost ? Status::lost : Status::closed;
        entry->quiescent = true;
        steps.finish.push_back(std::move(entry));
      }
    }
    std::erase_if(entries_, [](const auto& item) { return item.second == nullptr; });
    late_signals_.clear();
    drop_ghosts(0, steps);
  }
  run(steps);
  inner_->shutdown();
  if (host_ == nullptr) {
    return;
  }
  int timer = -1;
  {
    const std::lock_guard lock(mutex_);
    timer = std::exchange(timer_fd_, -1);
  }
  if (timer >= 0) {
    host_->reactor().unwatch(timer);
    ::close(timer);
  }
}

void FaultTransport::abandon_after_fork() noexcept {
  inner_->abandon_after_fork();
  if (timer_fd_ >= 0) {
    ::close(std::exchange(timer_fd_, -1));
  }
}

// ---- peers that end

void FaultTransport::peer_ending(PeerId peer, Status status) noexcept {
  end_peer(peer, status);
  host_->peer_ending(peer, status);
}

void FaultTransport::raise(Event event) {
  if (event.peer != 0 && (event.kind == EventKind::peer_down || event.kind == EventKind::disconnected)) {
    end_peer(event.peer, ok(event.status) ? Status::peer_closed : event.status);
    const std::lock_guard lock(mutex_);
    latched_.erase(event.peer);
    frozen_.erase(event.peer);
    free_at_.erase(event.peer);
    update_active();
  }
  host_->raise(std::move(event));
}

// A link is torn down: that is the proof for all that was kept, and nothing of it is posted any more.
void FaultTransport::end_peer(PeerId peer, Status status) {
  Steps steps;
  {
    const std::lock_guard lock(mutex_);
    ending_peers_.emplace(peer, status);
    for (auto& [op, entry] : entries_) {
      const bool kept = entry->phase == Phase::landed || entry->phase == Phase::signalling ||
                        entry->phase == Phase::signalled || entry->phase == Phase::lost;
      if (op->peer == peer && kept) {
        if (entry->phase == Phase::lost || ok(entry->status)) {
          entry->status = entry->phase == Phase::lost ? Status::lost : status;
        }
        entry->quiescent = true;
        steps.finish.push_back(std::move(entry));
      }
    }
    std::erase_if(entries_, [](const auto& item) { return item.second == nullptr; });
    std::erase_if(late_signals_, [peer](const LateSignal& late) { return late.peer == peer; });
    drop_ghosts(peer, steps);
  }
  run(steps);
  wake();  // what has not moved is failed by the inner transport
}

// Those of one peer, or of all (0).
void FaultTransport::drop_ghosts(PeerId peer, Steps& steps) {
  for (Ghost& ghost : ghosts_) {
    if (!ghost.posted && (peer == 0 || ghost.op->peer == peer)) {
      steps.drop.push_back(std::move(ghost.op));
    }
  }
  std::erase_if(ghosts_, [](const Ghost& ghost) { return ghost.op == nullptr; });
}

// ---- look-ups

bool FaultTransport::peer_info(PeerId peer, PeerInfo& out) {
  if (!inner_->peer_info(peer, out)) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  if (nbytes_per_second_ > 0 || latency_ > 0) {
    char text[96];
    std::snprintf(text, sizeof text, "; throttled by a fault plan: %.6g bytes/s, %.6g s latency", nbytes_per_second_,
                  latency_);
    for (LinkInfo& link : out.route) {
      link.reason += text;
    }
  }
  return true;
}

void FaultTransport::forget_peer(PeerId peer) {
  inner_->forget_peer(peer);
  const std::lock_guard lock(mutex_);
  ending_peers_.erase(peer);
}

}  // namespace hixl_aio::fault
