// See fault_transport.h. The way of an operation down to the inner transport: which rule picks it, and where it waits.
#include "transports/fault/fault_transport.h"

#include <algorithm>
#include <utility>

namespace hixl_aio::fault {
namespace {

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
      entry.take_signal();
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

}  // namespace hixl_aio::fault
