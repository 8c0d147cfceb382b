// See resend_transport.h.
#include "transports/resend/resend_transport.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace hixl_aio::resend {
namespace {

constexpr Token kOwnToken = std::numeric_limits<Token>::max();  // of a disconnect that nobody asked for

bool is_end(Status status) noexcept {
  return status == Status::peer_lost || status == Status::peer_closed || status == Status::not_connected ||
         status == Status::closed;
}

}  // namespace

// Between the inner transport and us: what arrives.
class ResendTransport::Intake final : public SignalSink {
 public:
  explicit Intake(ResendTransport& owner) : owner_(owner) {}
  void take(const SignalRecord& record) override {
    Link& link = owner_.link_of(record.peer);
    if (!link.take(record, owner_.now()) && ok(link.over)) {
      owner_.fail(record.peer, link, "a signal frame is damaged; the connection was ended");
    }
  }

 private:
  ResendTransport& owner_;
};

ResendTransport::ResendTransport(std::unique_ptr<Transport> inner, Config config)
    : Decorator(std::move(inner)), config_(config) {
  capabilities_.signals_lossless = true;
  capabilities_.inline_signal = false;
  capabilities_.max_signal_payload -= kHeaderNbytes;
}

ResendTransport::~ResendTransport() { shutdown(); }

// ---- life

void ResendTransport::shutdown() noexcept {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  end_landed(0, Status::closed);
  { const std::lock_guard the_one_in_hand_is_through(sending_); }
  Decorator::shutdown();
}

void ResendTransport::disconnect(Token token, PeerId peer, bool abort) {
  const auto found = links_.find(peer);
  if (found == links_.end()) {
    inner_->disconnect(token, peer, abort);
    return;
  }
  Link& link = found->second;
  if (link.leaving.empty()) {
    link.leave_by = now() + config_.linger;
  }
  link.leaving.push_back(token);
  if (abort || link.kept.empty()) {
    leave(peer, link, abort);
  } else {
    arm(link.leave_by);
  }
}

void ResendTransport::leave(PeerId peer, Link& link, bool abort) {
  link.end(Status::peer_closed);
  for (const Token token : std::exchange(link.leaving, {})) {
    inner_->disconnect(token, peer, abort);
  }
}

void ResendTransport::forget_peer(PeerId peer) {
  if (const auto found = links_.find(peer); found != links_.end()) {
    leave(peer, found->second, true);  // it went by itself: whoever wanted to leave is answered
    links_.erase(found);
  }
  inner_->forget_peer(peer);
  const std::lock_guard lock(mutex_);
  ending_.erase(peer);
  failed_.erase(peer);
}

void ResendTransport::fail(PeerId peer, Link& link, std::string why) {
  link.end(Status::peer_lost);
  {
    const std::lock_guard lock(mutex_);
    failed_.emplace(peer, std::move(why));
  }
  inner_->disconnect(kOwnToken, peer, true);
}

void ResendTransport::raise(Event event) {
  if (event.kind == EventKind::disconnected && event.token == kOwnToken) {
    return;
  }
  if (event.kind == EventKind::peer_down) {
    end_landed(event.peer, event.status);
    const std::lock_guard lock(mutex_);
    if (const auto found = failed_.find(event.peer); found != failed_.end()) {
      event.status = Status::peer_lost;
      event.text = found->second;
    }
  }
  host_->raise(std::move(event));
}

void ResendTransport::peer_ending(PeerId peer, Status status) noexcept {
  end_landed(peer, status);
  host_->peer_ending(peer, status);
}

// ---- time

double ResendTransport::now() const noexcept {
  return config_.manual_clock
             ? manual_seconds_
             : std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void ResendTransport::advance(double seconds) {
  manual_seconds_ += seconds;
  ring_loop();
}

// Loop thread: `drain_signals` is called then. At most one timer is under way.
void ResendTransport::arm(double due) {
  if (timer_fired_.exchange(false, std::memory_order_relaxed)) {
    armed_for_ = kNever;
  }
  if (config_.manual_clock || due >= armed_for_) {
    return;
  }
  host_->reactor().cancel_timer(timer_);
  armed_for_ = due;
  timer_ = host_->reactor().add_timer(due - now(), [this] {
    timer_fired_.store(true, std::memory_order_relaxed);
    ring_loop();
  });
}

// ---- operations

bool ResendTransport::fits(std::string_view name, std::string_view payload) const noexcept {
  return !name.empty() && name.size() <= kMaxSignalNbytes && payload.size() <= capabilities_.max_signal_payload;
}

Status ResendTransport::admit(Op& op) noexcept {
  if (!op.signal.present) {
    return inner_->admit(op);
  }
  if (!fits(op.signal.name, op.signal.payload)) {
    return Status::invalid_argument;
  }
  op.signal.present = false;  // the inner transport would send it its own way
  if (const Status status = inner_->admit(op); !ok(status)) {
    op.signal.present = true;
    return status;
  }
  const std::lock_guard lock(mutex_);
  bound_.insert(&op);
  return Status::ok;
}

void ResendTransport::release(Op& op) noexcept {
  {
    const std::lock_guard lock(mutex_);
    bound_.erase(&op);
  }
  inner_->release(op);
}

Status ResendTransport::transfer_now(PeerId peer, const Run& run, const SignalText* signal, bool reserved) noexcept {
  if (signal == nullptr) {
    return inner_->transfer_now(peer, run, nullptr, false);
  }
  if (!reserved || !fits(signal->name, signal->payload)) {
    return Status::invalid_argument;
  }
  const Status status = inner_->transfer_now(peer, run, nullptr, false);
  return ok(status) ? send_signal(peer, signal->name, signal->payload, Status::ok, true) : status;
}

void ResendTransport::complete(Op& op, Status status, bool quiescent) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (bound_.contains(&op)) {
      const auto end = ending_.find(op.peer);
      if (!ended_ && end == ending_.end()) {
        landed_.push_back({&op, status, quiescent});
        ring_loop();
        return;
      }
      if (ok(status)) {
        status = ended_ ? Status::closed : end->second;  // its signal cannot be sent any more
      }
    }
  }
  host_->complete(op, status, quiescent);
}

// Loop thread, whose look at events comes later: so the records come before the end of their peer.
void ResendTransport::send_landed() {
  const std::lock_guard sending(sending_);
  for (;;) {
    Landed landed;
    {
      const std::lock_guard lock(mutex_);
      if (landed_.empty()) {
        return;
      }
      landed = landed_.front();
      landed_.pop_front();
    }
    const SignalText& signal = landed.op->signal;
    const Status sent = send_signal(landed.op->peer, signal.name, signal.payload, landed.status, true);
    host_->complete(*landed.op, ok(landed.status) ? sent : landed.status, landed.quiescent);
  }
}

// A link is torn down; peer 0: all are.
void ResendTransport::end_landed(PeerId peer, Status status) {
  std::vector<Landed> ended;
  {
    const std::lock_guard lock(mutex_);
    if (peer != 0) {
      ending_.emplace(peer, status);
    }
    std::erase_if(landed_, [&](const Landed& landed) {
      const bool ends = peer == 0 || landed.op->peer == peer;
      if (ends) {
        ended.push_back(landed);
      }
      return ends;
    });
  }
  for (const Landed& landed : ended) {
    host_->complete(*landed.op, ok(landed.status) ? status : landed.status, landed.quiescent);
  }
}

// ---- signals out

Link& ResendTransport::link_of(PeerId peer) { return links_.try_emplace(peer, config_).first->second; }

Status ResendTransport::reserve_signal(PeerId peer) noexcept {
  if (const Status status = inner_->reserve_signal(peer); !ok(status)) {
    return status;
  }
  Link& link = link_of(peer);
  if (!ok(link.over) || !link.leaving.empty()) {
    return ok(link.over) ? Status::peer_closed : link.over;
  }
  if (link.reserved < link.limit) {
    ++link.reserved;
    return Status::ok;
  }
  if (link.kept.empty() && link.acknowledged > 0) {
    // Its word about the places may have been lost: a number that it has seen makes it say it again.
    static_cast<void>(inner_->send_signal(peer, "again", link.old_frame(), Status::ok, false));
  }
  return Status::signal_queue_full;
}

void ResendTransport::unreserve_signal(PeerId peer) noexcept {
  if (const auto found = links_.find(peer); found != links_.end()) {
    --found->second.reserved;
  }
}

Status ResendTransport::send_signal(PeerId peer, std::string_view name, std::string_view payload, Status status,
                                    bool reserved) noexcept {
  if (!fits(name, payload)) {
    return Status::invalid_argument;  // before a place is taken
  }
  if (!reserved) {
    if (const Status place = reserve_signal(peer); !ok(place)) {
      return place;
    }
  }
  const auto found = links_.find(peer);
  if (found == links_.end()) {
    return Status::not_connected;
  }
  Link& link = found->second;
  if (ok(link.over)) {
    link.keep(name, payload, status, now());
    arm(link.due);
    pump(peer, link);
  }
  return link.over;
}

void ResendTransport::pump(PeerId peer, Link& link) {
  while (link.on_wire < link.kept.size()) {
    const Link::Kept& kept = link.kept[link.on_wire];
    const Status status = inner_->send_signal(peer, kept.name, kept.frame, kept.status, false);
    if (is_end(status)) {
      link.end(status);
      return;
    }
    if (!ok(status)) {
      return;  // no room now; the next drain or timeout tries again
    }
    ++link.on_wire;
  }
}

void ResendTransport::acknowledge(PeerId peer, Link& link) {
  const Status status = inner_->send_signal(peer, "", link.acknowledgement(), Status::ok, false);
  if (is_end(status)) {
    link.end(status);
  }
  link.owes = !ok(status) && ok(link.over);
}

bool ResendTransport::is_stopped(PeerId peer) {
  PeerInfo info;
  return inner_->peer_info(peer, info) && info.state == PeerState::suspect;
}

// What is due for one link; returns when to look again.
double ResendTransport::serve(PeerId peer, Link& link, double time) {
  if (link.times_out(time)) {
    if (is_stopped(peer)) {
      link.silent = 0;
    } else if (link.silent > config_.tries) {
      fail(peer, link,
           "the peer is there, but has acknowledged no signal after " + std::to_string(link.acknowledged) + " in " +
               std::to_string(config_.tries) + " tries; the connection was ended");
    }
  }
  pump(peer, link);
  if (link.owes) {
    acknowledge(peer, link);
  }
  if (!link.leaving.empty() && (link.kept.empty() || time >= link.leave_by)) {
    leave(peer, link, false);
  }
  const double next = link.leaving.empty() ? link.due : std::min(link.due, link.leave_by);
  return link.owes ? std::min(next, time + config_.first_timeout) : next;
}

// ---- signals in

bool ResendTransport::drain_signals(SignalSink& sink, std::size_t limit) {
  send_landed();
  Intake intake(*this);
  bool left = inner_->drain_signals(intake, limit);
  const double time = now();
  double next = kNever;
  for (auto& [peer, link] : links_) {
    left |= link.deliver(sink, limit);
    next = std::min(next, serve(peer, link, time));
  }
  arm(next);
  return left;
}

void ResendTransport::drain_peer_signals(PeerId peer, SignalSink& sink) {
  Intake intake(*this);
  inner_->drain_peer_signals(peer, intake);
  if (const auto found = links_.find(peer); found != links_.end()) {
    Link& link = found->second;
    std::size_t limit = std::numeric_limits<std::size_t>::max();
    static_cast<void>(link.deliver(sink, limit));
    link.arrived.clear();  // after a gap: lost with the peer
    link.end(Status::peer_lost);
  }
}

void ResendTransport::signals_taken(PeerId peer, std::uint32_t count) noexcept {
  const auto found = links_.find(peer);
  if (found == links_.end() || !ok(found->second.over)) {
    return;
  }
  Link& link = found->second;
  link.taken += count;
  if (!link.owes) {
    link.owes = true;
    ring_loop();  // the peer is told of its places in the next drain
  }
}

std::size_t ResendTransport::pending() {
  std::size_t count = 0;
  for (const auto& [peer, link] : links_) {
    count += link.kept.size() + link.arrived.size();
  }
  const std::lock_guard lock(mutex_);
  return count + bound_.size();
}

}  // namespace hixl_aio::resend
