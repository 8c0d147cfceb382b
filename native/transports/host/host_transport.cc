#include "transports/host/host_transport.h"

#include <sys/epoll.h>

#include <algorithm>
#include <future>
#include <utility>

#include "core/job_thread.h"
#include "core/reactor.h"

namespace hixl_aio::host {
namespace {

constexpr double kServicePause = 0.1;
// The call of a batch costs several times that of a put, so that copying several times as much there is no worse.
constexpr std::uint64_t kInlineBatch = 4;
constexpr std::size_t kMaxRunsNow = 1024;  // tiny runs cost their overhead, not their bytes

Status parse_reachable(const std::string& address, Address& parsed, std::string& error) {
  const Status status = parse_address(address, parsed, error);
  if (ok(status) && !parsed.loopback) {
    error = "address '" + address + "' is not a loopback address; this engine reaches one host only";
    return Status::unsupported;
  }
  if (ok(status) && !parsed.unix_name && parsed.port == 0) {
    error = "address '" + address + "' has port 0; connect to the address that the other engine reports";
    return Status::invalid_argument;
  }
  return status;
}

}  // namespace

HostTransport::HostTransport(HostConfig config)
    : state_(std::move(config)),
      control_(state_),
      scheduler_(*this, state_.config.chunk_nbytes, state_.config.stream_nbytes),
      coop_(*this) {
  capabilities_.name = "host";
  capabilities_.inline_nbytes = state_.config.inline_nbytes;
  capabilities_.post_is_nonblocking = true;
  capabilities_.can_stop = true;
  capabilities_.deregister_while_connected = true;
  capabilities_.inline_signal = true;
  capabilities_.always_quiescent = true;
  capabilities_.memory_shared = true;
  capabilities_.memory_host = true;
  (void)random_bytes(state_.incarnation);
  (void)random_bytes(state_.probe.value);
}

HostTransport::~HostTransport() { shutdown(); }

// ---- life

Status HostTransport::start(TransportHost& host, const std::string& address, std::string& bound, std::string& error) {
  state_.host = &host;
  if (error = state_.config.complaint(); !error.empty()) {
    return Status::invalid_argument;
  }
  state_.host_id = read_boot_id();
  state_.doorbell = SharedDoorbell::create(error);
  if (!state_.doorbell) {
    return Status::resource_exhausted;
  }
  if (const Status status = state_.service.open(); !ok(status)) {
    error = "no descriptor is left for the cooperative service; raise the limit (ulimit -n)";
    return status;
  }
  if (const Status status = control_.listen(address, bound, error); !ok(status)) {
    return status;
  }
  state_.address = bound;
  SharedHeap::Owner owner{
      .segment_gone =
          [this](std::uint32_t segment) {
            state_.host->reactor().post([this, segment] { control_.segment_gone(segment); });
          },
      .unmap = [this](std::shared_ptr<Segment> segment) { state_.host->jobs().post([last = std::move(segment)] {}); },
  };
  state_.heap = std::make_shared<SharedHeap>(std::move(owner), state_.config.huge_pages);
  if (state_.config.allow_ptrace) {
    allow_ptrace_if_yama_asks();
  }
  if (const Status status = scheduler_.start(state_.config.copy_threads); !ok(status)) {
    error = "no thread is left for copying";
    return status;
  }
  started_ = true;
  host.reactor().post([this] {
    await_first_customer();
    control_.begin();
  });
  return Status::ok;
}

// The service thread is started by its first customer. Control thread.
void HostTransport::await_first_customer() {
  Reactor& reactor = state_.host->reactor();
  const auto again = [this, &reactor] { reactor.add_timer(kServicePause, [this] { await_first_customer(); }); };
  if (serving_over_) {
    return;
  }
  const Status status = reactor.watch(state_.service.fd(), EPOLLIN, [this, &reactor, again](std::uint32_t) {
    reactor.unwatch(state_.service.fd());
    if (!ok(state_.service.start())) {
      again();  // no thread is to be had now: the customer waits
    }
  });
  if (!ok(status)) {
    again();
  }
}

void HostTransport::shutdown() noexcept {
  if (ended_) {
    return;
  }
  ended_ = true;
  if (started_) {
    auto done = std::make_shared<std::promise<void>>();
    auto waiting = done->get_future();
    const auto end = [this, done] {
      // On the control thread, so that no late customer starts the service while it is being stopped.
      serving_over_ = true;
      state_.host->reactor().unwatch(state_.service.fd());
      done->set_value();
    };
    if (state_.host->reactor().post([this, end] { control_.shutdown(end); })) {
      waiting.wait();
    }
  }
  scheduler_.stop();
  state_.service.stop();
  if (state_.heap) {
    state_.heap->detach();
  }
}

void HostTransport::abandon_after_fork() noexcept {
  FdRegistry::close_all();
  FragileMemory::forget_all();
  scheduler_.forget_threads();
  state_.service.forget_thread();
}

// ---- control plane

template <typename Task>
void HostTransport::on_control(EventKind kind, Token token, PeerId peer, Task task) {
  if (!state_.host->reactor().post(std::move(task))) {
    state_.host->raise(event_of(kind, token, peer, Status::closed, "the engine is closed"));
  }
}

void HostTransport::connect(Token token, const std::string& address, double timeout) {
  Address parsed;
  std::string error;
  const Status status = parse_reachable(address, parsed, error);
  on_control(EventKind::connected, token, 0, [this, token, status, error, parsed, timeout] {
    if (ok(status)) {
      control_.connect(token, parsed, timeout);
    } else {
      control_.connect_failed({token}, status, error);
    }
  });
}

void HostTransport::look(Token token, const std::string& address, double timeout) {
  Address parsed;
  std::string error;
  const Status status = parse_reachable(address, parsed, error);
  on_control(EventKind::looked, token, 0, [this, token, status, error, parsed, timeout] {
    if (ok(status)) {
      control_.look(token, parsed, timeout);
    } else {
      state_.host->raise(event_of(EventKind::looked, token, 0, status, error));
    }
  });
}

void HostTransport::disconnect(Token token, PeerId peer, bool /*abort*/) {
  // Nothing is awaited here either way: operations that still run fail at their next chunk.
  on_control(EventKind::disconnected, token, peer, [this, token, peer] { control_.disconnect(token, peer); });
}

void HostTransport::refresh(Token token, PeerId peer) {
  on_control(EventKind::refreshed, token, peer, [this, token, peer] { control_.refresh(token, peer); });
}

void HostTransport::allocate(Token token, const RegionSpec& spec) {
  // Reserving pages takes about a second for four gigabytes.
  const bool posted = state_.host->jobs().post([this, token, spec] {
    Event event = event_of(EventKind::allocated, token, 0);
    auto block = state_.heap->allocate(spec.nbytes, segment_class(spec.access), event.status, event.text);
    if (!block) {
      state_.host->raise(std::move(event));
      return;
    }
    on_control(EventKind::allocated, token, 0,
               [this, token, spec, block] { control_.publish_region(token, spec, block); });
  });
  if (!posted) {
    state_.host->raise(event_of(EventKind::allocated, token, 0, Status::closed, "the engine is closed"));
  }
}

void HostTransport::register_memory(Token token, const RegionSpec& spec) {
  on_control(EventKind::allocated, token, 0, [this, token, spec] {
    if (spec.kind == MemoryKind::device) {
      state_.host->raise(event_of(EventKind::allocated, token, 0, Status::unsupported,
                                  "the host engine cannot reach device memory; use backend='hixl'"));
      return;
    }
    std::string error;
    auto fragile = FragileMemory::look(spec.address, spec.nbytes, error);
    if (!error.empty()) {
      state_.host->raise(event_of(EventKind::allocated, token, 0, Status::unsupported, error));
      return;
    }
    control_.publish_region(token, spec, nullptr, std::move(fragile));
  });
}

void HostTransport::close_region(Token token, std::uint32_t region, double timeout) {
  on_control(EventKind::region_closed, token, 0,
             [this, token, region, timeout] { control_.close_region(token, region, timeout); });
}

// ---- look-ups

Peer* HostTransport::peer_of(PeerId peer) noexcept {
  const auto it = loop_peers_.find(peer);
  if (it != loop_peers_.end()) {
    return it->second.get();
  }
  PeerRef found = state_.peers.find(peer);
  if (!found) {
    return nullptr;
  }
  return loop_peers_.emplace(peer, std::move(found)).first->second.get();
}

bool HostTransport::find_region(PeerId peer, std::string_view label, RegionInfo& out) {
  Peer* found = peer_of(peer);
  return found != nullptr && found->find(label, out);
}

bool HostTransport::peer_info(PeerId peer, PeerInfo& out) {
  const Peer* found = peer_of(peer);
  if (found == nullptr) {
    return false;
  }
  out.peer = found->id;
  out.name = found->identity.name;
  out.address = found->identity.address;
  out.incarnation = hex(found->identity.incarnation);
  out.pid = found->identity.pid;
  if (found->down()) {
    out.state = found->down_status() == Status::peer_closed ? PeerState::closed : PeerState::lost;
  } else {
    // Dead before the control thread has said so is dead: whoever looks now must not be told otherwise.
    out.state = found->process_gone()      ? PeerState::lost
                : found->process_stopped() ? PeerState::suspect
                                           : PeerState::connected;
  }
  out.route = found->route.links;
  return true;
}

std::shared_ptr<void> HostTransport::hold_region(std::uint32_t region) { return state_.regions.hold(region); }

// ---- data plane

Status HostTransport::admit(Op& op) noexcept {
  Peer* peer = peer_of(op.peer);
  if (peer == nullptr) {
    return Status::not_connected;
  }
  if (op.signal.present && !signal_fits(op.signal.name, op.signal.payload)) {
    return Status::invalid_argument;
  }
  op.nbytes = 0;
  op.posted = false;
  {
    const std::lock_guard lock(peer->directory_mutex);
    if (const Status status = peer->resolve(op.runs, op.next_run); !ok(status)) {
      return status;
    }
    op.next_run = 0;
    for (const Run& run : op.runs) {
      op.nbytes += run.nbytes;
    }
    if (peer->down()) {
      return peer->down_status();
    }
    peer->enter();
  }
  peer->retain();
  op.target = peer;
  return Status::ok;
}

void HostTransport::release(Op& op) noexcept {
  auto* peer = static_cast<Peer*>(std::exchange(op.target, nullptr));
  if (!op.posted && peer->leave()) {  // it never reached us, so `finish` will not say so
    state_.host->reactor().post([this, id = peer->id] { control_.operations_ended(id); });
  }
  peer->drop();
}

Status HostTransport::transfer_now(PeerId id, const Run& run, const SignalText* signal, bool reserved) noexcept {
  Peer* peer = peer_of(id);
  if (peer == nullptr) {
    return Status::not_connected;
  }
  if (run.nbytes > capabilities_.inline_nbytes) {
    return Status::would_block;
  }
  // The place is reserved, and the text known to fit, before data moves.
  if (signal != nullptr && (!reserved || !signal_fits(signal->name, signal->payload))) {
    return Status::invalid_argument;
  }
  Run resolved = run;
  if (const Status status = peer->copy_now({&resolved, 1}); !ok(status)) {
    return status;
  }
  return signal != nullptr ? peer->publish(signal->name, signal->payload, Status::ok) : Status::ok;
}

bool HostTransport::batch_now(Op& op) noexcept {
  if (op.runs.size() > kMaxRunsNow) {
    return false;
  }
  std::uint64_t left = kInlineBatch * capabilities_.inline_nbytes;
  for (const Run& run : op.runs) {
    if (run.nbytes > left) {
      return false;
    }
    left -= run.nbytes;
  }
  Peer* peer = peer_of(op.peer);
  if (peer == nullptr || (op.signal.present && !signal_fits(op.signal.name, op.signal.payload))) {
    return false;
  }
  return ok(peer->copy_now(op.runs)) &&
         (!op.signal.present || ok(peer->publish(op.signal.name, op.signal.payload, Status::ok)));
}

void HostTransport::post(Op& op) noexcept {
  // What the scheduler can copy was taken by post_now, unless a decorator held it back.
  if (!post_now(op)) {
    op.posted = true;
    coop_.enqueue(op);
  }
}

bool HostTransport::post_now(Op& op) noexcept {
  // One link for a whole batch: the cooperative service reaches every region, the others do not.
  const bool cooperative = std::any_of(op.runs.begin(), op.runs.end(), [](const Run& run) {
    return static_cast<LinkKind>(run.link) == LinkKind::cooperative;
  });
  if (cooperative) {
    return false;  // the ring to the peer's service is the progress thread's
  }
  op.posted = true;
  scheduler_.enqueue(op);
  return true;
}

void HostTransport::finish(Op& op) noexcept {
  const PeerRef peer(static_cast<Peer*>(op.target));
  Status status = settle_runs(op);
  // Memory of a dead process can still be written through a mapping: that is not a success. And where the kernel could not
  // reach it, this is why.
  if ((ok(status) || status == Status::failed) && (peer->down() || peer->process_gone())) {
    status = peer->down() ? peer->down_status() : Status::peer_lost;
  }
  if (op.signal.present) {
    (void)peer->publish(op.signal.name, op.signal.payload, status);  // fails only with the peer itself
  }
  state_.host->complete(op, status, true);
  if (peer->leave()) {
    state_.host->reactor().post([this, id = peer->id] { control_.operations_ended(id); });
  }
}

// ---- signals

Status HostTransport::reserve_signal(PeerId id) noexcept {
  Peer* peer = peer_of(id);
  return peer == nullptr ? Status::not_connected : peer->reserve_signal();
}

void HostTransport::unreserve_signal(PeerId id) noexcept {
  if (Peer* peer = peer_of(id)) {
    peer->unreserve_signal();
  }
}

Status HostTransport::send_signal(PeerId id, std::string_view name, std::string_view payload, Status status,
                                  bool reserved) noexcept {
  Peer* peer = peer_of(id);
  if (peer == nullptr) {
    return Status::not_connected;
  }
  if (!signal_fits(name, payload)) {
    return Status::invalid_argument;  // before a place is taken
  }
  if (!reserved) {
    if (const Status place = peer->reserve_signal(); !ok(place)) {
      return place;
    }
  }
  return peer->publish(name, payload, status);
}

bool HostTransport::drain_signals(SignalSink& sink, std::size_t limit) {
  if (!started_) {
    return false;
  }
  // Once round the page, from the place whose turn it is.
  const std::size_t first = drain_from_ / 64;
  const std::uint64_t upper = ~0ULL << (drain_from_ % 64);
  bool left = drain_word(first, upper, sink, limit);
  for (std::size_t i = 1; i < kDoorbellPlaces / 64; ++i) {
    left |= drain_word((first + i) % (kDoorbellPlaces / 64), ~0ULL, sink, limit);
  }
  left |= drain_word(first, ~upper, sink, limit);
  return left;
}

bool HostTransport::drain_word(std::size_t word, std::uint64_t mask, SignalSink& sink, std::size_t& budget) {
  std::atomic<std::uint64_t>& dirty = state_.doorbell->page().dirty[word];
  // Acquire: the bit was set before the bell that woke us was rung.
  if ((dirty.load(std::memory_order_acquire) & mask) == 0) {
    return false;
  }
  if (budget == 0) {
    return true;  // the bits stay
  }
  bool left = false;
  for (std::uint64_t bits = dirty.fetch_and(~mask, std::memory_order_acq_rel) & mask; bits != 0; bits &= bits - 1) {
    const auto place = static_cast<std::uint32_t>(word * 64 + static_cast<std::size_t>(__builtin_ctzll(bits)));
    drain_place(place, sink, budget, left);
  }
  return left;
}

void HostTransport::drain_place(std::uint32_t place, SignalSink& sink, std::size_t& budget, bool& left) {
  const PeerRef peer = state_.peers.at_place(place);
  if (!peer || peer->silenced || !peer->announced()) {
    return;  // whoever is announced later is looked at then
  }
  bool malformed = false;
  const bool had_its_turn = budget > 0;
  if (!had_its_turn || peer->drain(sink, budget, malformed)) {
    state_.doorbell->page().dirty[place / 64].fetch_or(1ULL << (place % 64), std::memory_order_acq_rel);
    left = true;
  }
  if (had_its_turn && budget == 0) {
    drain_from_ = (place + 1) % kDoorbellPlaces;
  }
  if (malformed) {
    state_.host->reactor().post([this, id = peer->id] {
      control_.fail_peer(id, Status::peer_lost, "its signal ring is damaged; the connection was ended");
    });
  }
}

void HostTransport::drain_peer_signals(PeerId id, SignalSink& sink) {
  if (Peer* peer = peer_of(id)) {
    for (Peer* half : {peer, peer->inner()}) {
      if (half == nullptr) {
        continue;
      }
      std::size_t budget = SIZE_MAX;
      bool malformed = false;
      (void)half->drain(sink, budget, malformed);
      half->silenced = true;
    }
  }
}

void HostTransport::forget_peer(PeerId id) {
  loop_peers_.erase(id);
  state_.peers.remove(id);
}

void HostTransport::signals_taken(PeerId id, std::uint32_t count) noexcept {
  if (Peer* peer = peer_of(id)) {
    peer->taken(count);
  }
}

}  // namespace hixl_aio::host
