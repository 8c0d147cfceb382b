// See fault_transport.h. What goes on later: releases, due times, and the way of an operation up again.
#include "transports/fault/fault_transport.h"

#include <sys/timerfd.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace hixl_aio::fault {
namespace {

constexpr double kRetrySeconds = 0.001;

}  // namespace

// ---- steps

bool FaultTransport::progress() noexcept {
  Steps steps;
  {
    const std::lock_guard lock(mutex_);
    collect(steps);
  }
  const bool any = !steps.post.empty() || !steps.post_unstoppable.empty() || !steps.finish.empty();
  run(steps);
  arm();
  return inner_->progress() || any;
}

// Under the lock: what has been released, is due, is asked to stop, or has lost its peer.
void FaultTransport::collect(Steps& steps) {
  std::vector<Entry*> going;
  const double time = now();
  for (auto& [op, entry] : entries_) {
    if (entry->phase == Phase::waiting || entry->phase == Phase::half) {
      going.push_back(entry.get());
    }
  }
  std::sort(going.begin(), going.end(),
            [](const Entry* a, const Entry* b) { return std::pair(a->due, a->order) < std::pair(b->due, b->order); });
  for (Entry* entry : going) {
    if (entry->phase != Phase::waiting && entry->phase != Phase::half) {
      continue;  // its window has let it go
    }
    const bool stops = config_.can_stop && entry->rule.can_stop;
    // Relaxed: it carries no data.
    if (stops && entry->op->stop_requested.load(std::memory_order_relaxed)) {
      const Rule rule = entry->rule;
      begin_finish(*entry, Status::stopped, true, steps);
      if (rule.action == Action::reorder) {
        ++left_windows_[rule.id];  // one less is waited for
        reverse_window(rule, steps);
      }
    } else if (entry->due <= time || ending_peers_.contains(entry->op->peer)) {
      entry->phase = Phase::moving;
      (stops ? steps.post : steps.post_unstoppable).push_back(entry->op);
    }
  }
  for (Ghost& ghost : ghosts_) {
    if (ghost.released && !ghost.posted) {
      ghost.posted = true;
      steps.post.push_back(ghost.op.get());
    }
  }
}

// Under the lock: a held entry may go on.
void FaultTransport::let_go(Entry& entry, Steps& steps) {
  entry.released = true;
  switch (entry.phase) {
    case Phase::waiting:
    case Phase::half:
      entry.due = 0.0;  // the progress thread takes it from here
      break;
    case Phase::landed:
    case Phase::signalled:
    case Phase::lost:
      begin_finish(entry, entry.status, entry.quiescent, steps);
      break;
    case Phase::admitted:
    case Phase::moving_half:
    case Phase::moving:
    case Phase::signalling:
      break;
  }
}

// Under the lock: the signal, if we have it, then the record.
void FaultTransport::begin_finish(Entry& entry, Status status, bool quiescent, Steps& steps) {
  entry.status = status;
  entry.quiescent = quiescent;
  if (entry.phase != Phase::signalled && entry.phase != Phase::lost) {
    entry.take_signal();
  }
  if (entry.signal.present && !ending_ && !ending_peers_.contains(entry.op->peer)) {
    entry.phase = Phase::signalling;
    entry.finishing = true;
    late_signals_.push_back({now(), entry.op->peer, entry.op, entry.signal, status});
    steps.wake_loop = true;
    return;
  }
  const auto found = entries_.find(entry.op);
  steps.finish.push_back(std::move(found->second));
  entries_.erase(found);
}

void FaultTransport::run(Steps& steps) {
  for (Op* op : steps.post_unstoppable) {
    // Relaxed: it carries no data, and it is asked for once.
    op->stop_requested.store(false, std::memory_order_relaxed);
    inner_->post(*op);
  }
  for (Op* op : steps.post) {
    inner_->post(*op);
  }
  for (const std::unique_ptr<Op>& ghost : steps.drop) {
    inner_->release(*ghost);
  }
  for (const std::unique_ptr<Entry>& entry : steps.finish) {
    finish(*entry);
  }
  if (steps.wake_progress) {
    wake();
  }
  if (steps.wake_loop) {
    ring_loop();
  }
}

void FaultTransport::finish(Entry& entry) {
  if (entry.half != nullptr && entry.half->target != nullptr) {
    inner_->release(*entry.half);  // it was never posted, or has come back
  }
  const OpHandle handle = entry.op->handle;
  const Token token = entry.op->token;
  host_->complete(*entry.op, entry.status, entry.quiescent);
  if (entry.rule.action == Action::duplicate) {
    host_->complete_again(handle, token, entry.status);
  }
}

void FaultTransport::tell(const std::vector<RuleId>& told) {
  for (const RuleId rule : told) {
    Event event;
    event.kind = EventKind::fault;
    event.peer = rule;
    host_->raise(std::move(event));
  }
}

void FaultTransport::wake() {
  if (host_ != nullptr) {
    host_->wake_progress();
  }
}

// A moment later, lest the loop does nothing else; with a manual clock at once.
void FaultTransport::retry_soon() {
  if (config_.manual_clock) {
    ring_loop();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    retry_at_ = now() + kRetrySeconds;
  }
  arm();
}

void FaultTransport::arm() {
  const std::lock_guard lock(mutex_);
  if (config_.manual_clock || timer_fd_ < 0) {
    return;
  }
  if (retry_at_ <= now()) {
    retry_at_ = kNever;
  }
  double due = retry_at_;
  for (const auto& [op, entry] : entries_) {
    if (entry->phase == Phase::waiting) {
      due = std::min(due, entry->due);
    }
  }
  for (const LateSignal& late : late_signals_) {
    due = std::min(due, late.due);
  }
  itimerspec time{};
  if (due != kNever) {
    const double left = std::max(due - now(), 1e-9);
    time.it_value.tv_sec = static_cast<time_t>(left);
    time.it_value.tv_nsec = std::max<long>(1, static_cast<long>((left - std::floor(left)) * 1e9));
  }
  ::timerfd_settime(timer_fd_, 0, &time, nullptr);
}

// ---- coming up

void FaultTransport::complete(Op& op, Status status, bool quiescent) noexcept {
  Steps steps;
  std::vector<RuleId> told;
  bool pass = false;
  {
    const std::lock_guard lock(mutex_);
    const auto half = halves_.find(&op);
    const auto ghost = std::find_if(ghosts_.begin(), ghosts_.end(), [&op](const Ghost& g) { return g.op.get() == &op; });
    const auto found = entries_.find(&op);
    if (half != halves_.end()) {
      Entry& entry = *entries_.at(half->second);
      halves_.erase(half);
      half_moved(entry, status, quiescent, steps, told);
    } else if (ghost != ghosts_.end()) {
      told.push_back(ghost->rule);
      steps.drop.push_back(std::move(ghost->op));
      ghosts_.erase(ghost);
    } else if (found != entries_.end()) {
      moved(*found->second, status, quiescent, steps, told);
    } else {
      pass = true;
    }
  }
  if (pass) {
    host_->complete(op, status, quiescent);
    return;
  }
  run(steps);
  tell(told);
}

void FaultTransport::half_moved(Entry& entry, Status status, bool quiescent, Steps& steps, std::vector<RuleId>& told) {
  entry.op->moved_nbytes = entry.half->moved_nbytes;
  if (const auto end = ending_peers_.find(entry.op->peer); ok(status) && (ending_ || end != ending_peers_.end())) {
    status = ending_ ? Status::closed : end->second;
  }
  if (!ok(status)) {
    begin_finish(entry, status, quiescent, steps);
    return;
  }
  wait(entry, kNever, told);
  entry.phase = Phase::half;
  steps.wake_progress = true;  // a stop may have been asked for while the first half moved
}

// Under the lock: the inner transport has let go of a picked operation.
void FaultTransport::moved(Entry& entry, Status status, bool quiescent, Steps& steps, std::vector<RuleId>& told) {
  const bool keeps = ok(status) && !ending_ && !ending_peers_.contains(entry.op->peer);
  const bool holds = entry.rule.action == Action::hold && !entry.released;
  entry.status = status;
  entry.quiescent = quiescent;
  if (keeps && holds && (entry.rule.at == HoldPoint::landed || entry.rule.at == HoldPoint::signalled)) {
    entry.order = next_order_++;
    if (entry.rule.at == HoldPoint::signalled && entry.signal.present) {
      entry.phase = Phase::signalling;
      late_signals_.push_back({now(), entry.op->peer, entry.op, entry.signal, status});
      steps.wake_loop = true;
      return;
    }
    entry.phase = entry.rule.at == HoldPoint::landed ? Phase::landed : Phase::signalled;
    told.push_back(entry.rule.id);
    return;
  }
  if (keeps && entry.rule.action == Action::lose) {
    entry.phase = Phase::lost;
    entry.order = next_order_++;
    entry.signal.present = false;
    told.push_back(entry.rule.id);
    return;
  }
  entry.op->signal.present = false;  // the inner transport has sent it
  begin_finish(entry, status, quiescent, steps);
}

}  // namespace hixl_aio::fault
