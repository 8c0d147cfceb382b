// See fault_transport.h. The way of an operation: down to the inner transport, and up again.
#include "transports/fault/fault_transport.h"

#include <sys/timerfd.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace hixl_aio::fault {
namespace {

constexpr double kRetrySeconds = 0.001;

void take_signal(Op& op, SignalText& out) {
  if (op.signal.present) {
    out = op.signal;
    op.signal.present = false;
  }
}

// Splits the first run that has two bytes: its first half goes to `part`, the rest stays. False: there is none.
bool split(Op& op, Op& part) {
  for (Run& run : op.runs) {
    const std::uint64_t nbytes = run.nbytes / 2;
    if (nbytes == 0) {
      continue;
    }
    Run first = run;
    first.nbytes = nbytes;
    part.runs.push_back(first);
    run.local += nbytes;
    run.remote_offset += nbytes;
    run.nbytes -= nbytes;
    return true;
  }
  return false;
}

}  // namespace

// ---- going down

const Rule* FaultTransport::match(OpKind kind, PeerId peer, std::uint64_t nbytes) {
  for (Rule& rule : rules_) {
    // A signal of its own is picked only by a rule that asks for signals.
    const bool same_kind = rule.kind < 0 ? kind != OpKind::signal : rule.kind == static_cast<int>(kind);
    const bool fits = !rule.is_for_signals() && same_kind && (rule.peer == 0 || rule.peer == peer) &&
                      nbytes >= rule.min_nbytes;
    if (fits && rule.picks()) {
      update_active();
      return &rule;
    }
  }
  return nullptr;
}

std::uint64_t FaultTransport::nbytes_of(const Op& op) noexcept {
  std::uint64_t nbytes = 0;
  for (const Run& run : op.runs) {
    nbytes += run.nbytes;
  }
  return nbytes;
}

Status FaultTransport::admit(Op& op) noexcept {
  Rule picked;
  bool hit = false;
  {
    const std::lock_guard lock(mutex_);
    if (latched_.contains(op.peer)) {
      picked.action = Action::latch;
      hit = true;
    } else if (const Rule* rule = match(op.kind, op.peer, nbytes_of(op))) {
      picked = *rule;
      hit = true;
    } else if (frozen_.contains(op.peer)) {
      picked.id = kPacing;
      picked.action = Action::hold;
      hit = true;
    } else if (nbytes_per_second_ > 0 || latency_ > 0) {
      picked.id = kPacing;
      picked.action = Action::delay;
      hit = true;
    }
  }
  if (!hit) {
    return inner_->admit(op);
  }
  if (picked.action == Action::refuse) {
    if (picked.status == Status::queue_full) {
      retry_soon();  // so that the core tries again: no record of ours may be under way that would make it
    }
    return picked.status;
  }
  return admit_with(picked, op);
}

Status FaultTransport::admit_with(const Rule& rule, Op& op) {
  auto entry = std::make_unique<Entry>();
  entry->op = &op;
  entry->rule = rule;
  std::unique_ptr<Op> part;
  if ((rule.action == Action::hold && rule.at == HoldPoint::half) || rule.action == Action::lie) {
    part = std::make_unique<Op>();
    part->peer = op.peer;
    part->kind = op.kind;
    if (rule.action == Action::lie) {
      part->runs = op.runs;
    } else if (!split(op, *part)) {
      entry->rule.at = HoldPoint::posted;  // there are no two halves
      part.reset();
    }
  }
  if (const Status status = inner_->admit(op); !ok(status)) {
    return status;
  }
  if (part != nullptr) {
    if (const Status status = inner_->admit(*part); !ok(status)) {
      inner_->release(op);
      return status;
    }
  }
  const std::lock_guard lock(mutex_);
  if (rule.action == Action::delay) {
    // From the call, so that the threads' own pace does not show.
    entry->due = rule.id == kPacing ? pace(op) : now() + rule.seconds;
  }
  if (part != nullptr && rule.action == Action::lie) {
    ghosts_.push_back({rule.id, next_order_++, std::move(part), false, false});
  } else {
    entry->half = std::move(part);
  }
  entries_.emplace(&op, std::move(entry));
  return Status::ok;
}

Status FaultTransport::transfer_now(PeerId peer, const Run& run, const SignalText* signal, bool reserved) noexcept {
  if (active_.load(std::memory_order_relaxed)) {
    return Status::would_block;  // so that it comes by as an operation
  }
  return inner_->transfer_now(peer, run, signal, reserved);
}

void FaultTransport::post(Op& op) noexcept {
  Steps steps;
  std::vector<RuleId> told;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(&op);
    if (found != entries_.end()) {
      begin(*found->second, steps, told);
    } else {
      steps.post.push_back(&op);
    }
  }
  run(steps);
  tell(told);
  arm();
}

// When the throttled link has carried the operation.
double FaultTransport::pace(const Op& op) {
  double& free_at = free_at_[op.peer];
  const double cost = nbytes_per_second_ > 0 ? static_cast<double>(nbytes_of(op)) / nbytes_per_second_ : 0.0;
  free_at = std::max(now(), free_at) + cost;
  return free_at + latency_;
}

// Under the lock: a picked operation has been posted.
void FaultTransport::begin(Entry& entry, Steps& steps, std::vector<RuleId>& told) {
  Op& op = *entry.op;
  if (ending_peers_.contains(op.peer)) {
    entry.phase = Phase::moving;  // the inner transport fails it, touching nothing
    steps.post.push_back(&op);
    return;
  }
  switch (entry.rule.action) {
    case Action::hold:
      begin_hold(entry, steps, told);
      break;
    case Action::delay:
      wait(entry, entry.due, told);
      break;
    case Action::reorder:
      wait(entry, kNever, told);
      reverse_window(entry.rule, steps);
      break;
    case Action::latch:
      latched_.insert(op.peer);
      update_active();
      begin_finish(entry, Status::failed, false, steps);
      break;
    case Action::fail:
    case Action::lie:
      begin_finish(entry, entry.rule.status, entry.rule.action == Action::fail && entry.rule.quiescent, steps);
      if (entry.rule.action == Action::lie) {
        told.push_back(entry.rule.id);
      }
      break;
    case Action::lose:
    case Action::duplicate:
    case Action::refuse:
    case Action::drop_signal:
    case Action::duplicate_signal:
      entry.phase = Phase::moving;
      steps.post.push_back(&op);
      break;
  }
}

void FaultTransport::begin_hold(Entry& entry, Steps& steps, std::vector<RuleId>& told) {
  switch (entry.rule.at) {
    case HoldPoint::posted:
      wait(entry, kNever, told);
      break;
    case HoldPoint::half:
      entry.phase = Phase::moving_half;
      halves_.emplace(entry.half.get(), entry.op);
      steps.post.push_back(entry.half.get());
      break;
    case HoldPoint::landed:
    case HoldPoint::signalled:
      take_signal(*entry.op, entry.signal);
      entry.phase = Phase::moving;
      steps.post.push_back(entry.op);
      break;
  }
}

void FaultTransport::wait(Entry& entry, double due, std::vector<RuleId>& told) {
  entry.phase = Phase::waiting;
  entry.due = due;
  entry.order = next_order_++;
  if (due == kNever && entry.rule.id != kPacing) {
    told.push_back(entry.rule.id);
  }
}

void FaultTransport::reverse_window(const Rule& rule, Steps& steps) {
  std::vector<Entry*> held = held_by(rule.id);
  if (held.empty() || held.size() + left_windows_[rule.id] < rule.window) {
    return;
  }
  for (auto entry = held.rbegin(); entry != held.rend(); ++entry) {
    (*entry)->phase = Phase::moving;
    steps.post.push_back((*entry)->op);
  }
}

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
    take_signal(*entry.op, entry.signal);
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
