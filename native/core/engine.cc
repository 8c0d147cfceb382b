// See engine.h. Keeps INV-1 (what submit accepted yields one record), INV-2 and INV-7 (what the
// transport keeps for an operation is given back in complete(), by the thread that ended it), INV-8 and INV-10.
#include "core/engine.h"

#include <algorithm>
#include <utility>

namespace hixl_aio {

namespace {

// Events after which the caller forgets something, so that nothing about it may come later. The others announce
// something, and come as early as possible.
bool is_ending(EventKind kind) noexcept {
  switch (kind) {
    case EventKind::peer_down:
    case EventKind::disconnected:
    case EventKind::region_closed:
    case EventKind::shutdown:
      return true;
    case EventKind::connected:
    case EventKind::accepted:
    case EventKind::refreshed:
    case EventKind::allocated:
    case EventKind::fault:
    case EventKind::looked:
      return false;
  }
  return false;
}

}  // namespace

Engine::Engine(EngineConfig config, std::unique_ptr<Transport> transport)
    : max_strays_(config.max_strays),
      slab_(config.max_operations),
      channel_(slab_.capacity() + config.max_strays),
      events_(std::make_unique<EventQueue>()),
      jobs_(std::make_unique<JobThread>()),
      reactor_(std::make_unique<Reactor>()),
      progress_(std::make_unique<ProgressThread>(*transport, slab_.capacity())),
      transport_(std::move(transport)) {}

Engine::~Engine() {
  if (abandoned_) {
    // Leaked on purpose; see the members.
    static_cast<void>(transport_.release());
    static_cast<void>(progress_.release());
    static_cast<void>(reactor_.release());
    static_cast<void>(jobs_.release());
    static_cast<void>(events_.release());
    return;
  }
  close();
}

Status Engine::start(const std::string& address, std::string& bound, std::string& error) {
  if (started_ || closed_) {
    error = "the engine was started before";
    return Status::closed;
  }
  started_ = true;
  Status status = channel_.fd() < 0 ? Status::resource_exhausted : Status::ok;
  if (ok(status)) {
    status = jobs_->start();
  }
  if (ok(status)) {
    status = reactor_->start();
  }
  if (ok(status)) {
    error.clear();
    status = transport_->start(*this, address, bound, error);
    if (ok(status)) {
      // After the transport, so that progress() is never called on one that has not started.
      status = progress_->start();
    }
  }
  if (!ok(status)) {
    if (error.empty()) {
      error = "no descriptor or thread left for the engine";
    }
    close();
  }
  return status;
}

Op* Engine::acquire() noexcept { return abandoned_ ? nullptr : slab_.acquire(); }

void Engine::discard(Op& op) noexcept { slab_.release(op); }

Status Engine::submit(Op& op, std::size_t* refused_run) noexcept {
  if (closed_ || !started_) {
    slab_.release(op);
    return Status::closed;
  }
  const Status status = transport_->admit(op);
  if (!ok(status)) {
    if (refused_run != nullptr) {
      *refused_run = op.next_run;
    }
    slab_.release(op);  // only what was admitted is given back to the transport
    return status;
  }
  // The ring has a place for every slot, so this does not fail; if it ever did, the operation has not left us.
  if (!transport_->post_now(op) && !progress_->submit(&op)) {
    transport_->release(op);
    slab_.release(op);
    return Status::queue_full;
  }
  submitted_.store(submitted_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  return Status::ok;
}

Status Engine::transfer_now(PeerId peer, const Run& run, const SignalText* signal, bool reserved) noexcept {
  if (closed_ || !started_) {
    return Status::closed;
  }
  const Status status = transport_->transfer_now(peer, run, signal, reserved);
  if (ok(status)) {
    inline_done_.store(inline_done_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  return status;
}

bool Engine::batch_now(Op& op) noexcept {
  if (closed_ || !started_ || !transport_->batch_now(op)) {
    return false;
  }
  slab_.release(op);
  inline_done_.store(inline_done_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  return true;
}

bool Engine::request_stop(OpHandle handle) noexcept {
  if (abandoned_) {
    return false;
  }
  Op* op = slab_.find(handle);
  if (op == nullptr) {
    return false;
  }
  // Relaxed: it carries no data. The doorbell's exchange orders it before the look that the wake-up causes.
  op->stop_requested.store(true, std::memory_order_relaxed);
  progress_->wake();
  return true;
}

bool Engine::drain(DrainSink& sink, std::size_t limit) {
  if (abandoned_) {
    return false;
  }
  channel_.prepare_drain();
  std::size_t taken = drain_completions(sink, limit);
  const bool signals_left = started_ && transport_->drain_signals(sink, limit);
  // After the signals: a peer is announced before it can send, so its announcement is in the same call as, or before,
  // its first signal.
  drain_events(sink);
  if (!deliver_held(sink)) {
    // Records came between the first look and the events; usually they still fit into this call.
    taken += drain_completions(sink, limit - taken);
    deliver_held(sink);
  }
  // An ending that still waits for a record that is being published needs no ring from us: its producer has yet to ring.
  const bool left = signals_left || channel_.ready();
  if (left) {
    channel_.ring();
  }
  return left;
}

std::size_t Engine::drain_completions(DrainSink& sink, std::size_t limit) {
  CompletionRecord record;
  std::size_t taken = 0;
  // One by one, so that a record is never out of the ring and undelivered at the same time.
  while (taken < limit && channel_.pop(&record, 1) == 1) {
    ++taken;
    Op* op = slab_.find(record.handle);
    if (record.repeats) {
      strays_in_channel_.fetch_sub(1, std::memory_order_relaxed);
    }
    if (op == nullptr) {
      strays_.store(strays_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      continue;  // a late duplicate matches nothing (INV-9)
    }
    sink.complete(record, *op);
    slab_.release(*op);
  }
  return taken;
}

void Engine::drain_events(DrainSink& sink) {
  std::vector<Event> events = events_->take_all();
  if (events.empty()) {
    return;
  }
  // Read after the queue: whoever raised an event pushed the records that belong before it earlier.
  const std::uint64_t after = channel_.pushed();
  for (Event& event : events) {
    if (is_ending(event.kind)) {
      held_.push_back({std::move(event), after});
    } else {
      sink.event(std::move(event));
    }
  }
}

// False: some are held back still.
bool Engine::deliver_held(DrainSink& sink) {
  while (!held_.empty()) {
    // A comparison of positions, not a look for an empty ring: a producer may have taken a place without having
    // published yet, and hides complete records behind it.
    if (channel_.popped() < held_.front().after) {
      return false;
    }
    Event event = std::move(held_.front().event);
    held_.pop_front();
    if (event.kind == EventKind::peer_down) {
      transport_->drain_peer_signals(event.peer, sink);
    }
    sink.event(std::move(event));
  }
  return true;
}

void Engine::begin_shutdown(Token token) {
  if (abandoned_) {
    return;
  }
  const bool first = !closed_;
  closed_ = true;
  auto job = [this, token, first] {
    if (first) {
      end_everything();
    }
    Event event;
    event.kind = EventKind::shutdown;
    event.token = token;
    raise(std::move(event));
  };
  // Jobs run in order, so a second request is answered after the first one has ended everything.
  if (!started_ || !jobs_->post(job)) {
    job();  // never started, or closed: nothing is left that could block
  }
}

void Engine::end_everything() noexcept {
  // Everything accepted reaches the transport before it is told to end, and the progress thread runs on while it does.
  progress_->flush();
  transport_->shutdown();
  progress_->stop();
  reactor_->stop();
}

void Engine::close() noexcept {
  if (ended_ || abandoned_) {
    return;
  }
  ended_ = true;
  if (!closed_) {
    closed_ = true;
    if (!started_ || !jobs_->post([this] { end_everything(); })) {
      end_everything();
    }
  }
  jobs_->stop();
  progress_->close();
  channel_.close();
}

void Engine::abandon_after_fork() noexcept {
  if (abandoned_) {
    return;
  }
  abandoned_ = true;
  closed_ = true;
  transport_->abandon_after_fork();
  progress_->abandon_after_fork();
  reactor_->abandon_after_fork();
  jobs_->abandon_after_fork();
  channel_.close();
}

int Engine::fd() const noexcept { return channel_.fd(); }

Transport& Engine::transport() noexcept { return *transport_; }

EngineCounters Engine::counters() const noexcept {
  EngineCounters counters;
  counters.strays = strays_.load(std::memory_order_relaxed);
  counters.drained = channel_.popped() - counters.strays;
  counters.completed = std::max(channel_.pushed() - counters.strays, counters.drained);  // two looks, so they may be out of step
  counters.submitted = std::max(submitted_.load(std::memory_order_relaxed), counters.drained);
  counters.inline_done = inline_done_.load(std::memory_order_relaxed);
  counters.wakeups = channel_.wakeups();
  counters.in_flight = static_cast<std::uint32_t>(counters.submitted - counters.drained);
  return counters;
}

bool Engine::closed() const noexcept { return closed_; }

void Engine::complete(Op& op, Status status, bool quiescent) noexcept {
  // Here and not at the drain: the last reference to a peer may unmap gigabytes, which must not happen on the loop thread
  // (INV-7).
  // Called whether or not the record says quiescent: a transport that cannot know keeps its own reference (INV-2).
  transport_->release(op);
  CompletionRecord record;
  record.handle = op.handle;
  record.token = op.token;
  record.nbytes = ok(status) ? op.nbytes : op.moved_nbytes;
  record.status = status;
  record.quiescent = quiescent;
  channel_.push(record);  // from here on the slot may be somebody else's
}

void Engine::complete_again(OpHandle handle, Token token, Status status) noexcept {
  if (strays_in_channel_.fetch_add(1, std::memory_order_relaxed) >= max_strays_) {
    strays_in_channel_.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  CompletionRecord record;
  record.handle = handle;
  record.token = token;
  record.status = status;
  record.repeats = true;
  channel_.push(record);
}

void Engine::raise(Event event) {
  events_->push(std::move(event));
  channel_.ring();
}

void Engine::wake_progress() noexcept { progress_->wake(); }

int Engine::progress_fd() const noexcept { return progress_->fd(); }

int Engine::loop_fd() const noexcept { return channel_.fd(); }

Reactor& Engine::reactor() noexcept { return *reactor_; }

JobThread& Engine::jobs() noexcept { return *jobs_; }

}  // namespace hixl_aio
