// See fault_transport.h. What a plan says: rules, releases, time, throttle, frozen peers.
#include "transports/fault/fault_transport.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace hixl_aio::fault {
namespace {

bool is_waiting(const Rule& rule) noexcept {
  return rule.action == Action::hold || rule.action == Action::delay || rule.action == Action::reorder;
}

}  // namespace

RuleId FaultTransport::add_rule(Rule rule) {
  const std::lock_guard lock(mutex_);
  rule.id = next_rule_++;
  rules_.push_back(rule);
  update_active();
  return rule.id;
}

void FaultTransport::remove_rule(RuleId rule) {
  const std::lock_guard lock(mutex_);
  for (Rule& one : rules_) {
    if (one.id == rule) {
      one.count = 0;  // it stays, for its number of hits
    }
  }
  update_active();
}

void FaultTransport::clear_rules() {
  const std::lock_guard lock(mutex_);
  rules_.clear();
  update_active();
}

std::uint64_t FaultTransport::hits(RuleId rule) {
  const std::lock_guard lock(mutex_);
  for (const Rule& one : rules_) {
    if (one.id == rule) {
      return one.hits;
    }
  }
  return 0;
}

std::vector<FaultTransport::Entry*> FaultTransport::held_by(RuleId rule) {
  std::vector<Entry*> held;
  for (auto& [op, entry] : entries_) {
    const bool holds = (entry->phase == Phase::waiting && is_waiting(entry->rule)) || entry->phase == Phase::half ||
                       entry->phase == Phase::landed || entry->phase == Phase::signalled || entry->phase == Phase::lost;
    if (entry->rule.id == rule && holds && !entry->released) {
      held.push_back(entry.get());
    }
  }
  std::sort(held.begin(), held.end(), [](const Entry* a, const Entry* b) { return a->order < b->order; });
  return held;
}

std::size_t FaultTransport::caught(RuleId rule) {
  const std::lock_guard lock(mutex_);
  const auto is_ours = [rule](const Ghost& ghost) { return ghost.rule == rule && !ghost.posted; };
  return held_by(rule).size() + static_cast<std::size_t>(std::count_if(ghosts_.begin(), ghosts_.end(), is_ours));
}

std::size_t FaultTransport::pending() {
  const std::lock_guard lock(mutex_);
  return entries_.size() + ghosts_.size() + late_signals_.size();
}

std::size_t FaultTransport::release_held(RuleId rule, std::int64_t index) {
  Steps steps;
  std::size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    std::vector<Entry*> held = held_by(rule);
    std::int64_t place = 0;
    for (Entry* entry : held) {
      if (index < 0 || place == index) {
        ++count;
        let_go(*entry, steps);
      }
      ++place;
    }
    for (Ghost& ghost : ghosts_) {
      if (ghost.rule == rule && !ghost.released) {
        if (index < 0 || place == index) {
          ++count;
          ghost.released = true;
        }
        ++place;
      }
    }
  }
  run(steps);
  send_due_signals();
  if (count > 0) {
    wake();
  }
  return count;
}

void FaultTransport::throttle(double nbytes_per_second, double latency) {
  const std::lock_guard lock(mutex_);
  nbytes_per_second_ = nbytes_per_second;
  latency_ = latency;
  if (nbytes_per_second <= 0) {
    free_at_.clear();
  }
  update_active();
  if (nbytes_per_second <= 0 && latency <= 0) {
    // What is under way is not held up any longer either.
    for (auto& [op, entry] : entries_) {
      if (entry->rule.id == kPacing && entry->rule.action == Action::delay) {
        entry->due = 0.0;
      }
    }
    for (LateSignal& late : late_signals_) {
      late.due = late.due == kNever ? kNever : 0.0;
    }
    wake();
    ring_loop();
  }
}

void FaultTransport::advance(double seconds) {
  // Relaxed: whoever is woken by what follows takes the lock before it looks at the time.
  manual_nanoseconds_.fetch_add(static_cast<std::uint64_t>(seconds * 1e9), std::memory_order_relaxed);
  send_due_signals();
  wake();
}

void FaultTransport::freeze(PeerId peer) {
  const std::lock_guard lock(mutex_);
  frozen_.insert(peer);
  update_active();
}

void FaultTransport::thaw(PeerId peer) {
  {
    const std::lock_guard lock(mutex_);
    frozen_.erase(peer);
    for (auto& [op, entry] : entries_) {
      if (entry->rule.id == kPacing && entry->op->peer == peer && entry->due == kNever) {
        entry->due = 0.0;
      }
    }
    for (LateSignal& late : late_signals_) {
      if (late.peer == peer && late.due == kNever) {
        late.due = 0.0;
      }
    }
    update_active();
  }
  wake();
  ring_loop();  // for the signals that stood still
}

void FaultTransport::update_active() noexcept {
  const bool picks = std::any_of(rules_.begin(), rules_.end(),
                                 [](const Rule& rule) { return rule.count > 0 && !rule.is_for_signals(); });
  const bool paced = nbytes_per_second_ > 0 || latency_ > 0;
  active_.store(picks || paced || !frozen_.empty() || !latched_.empty(), std::memory_order_relaxed);
}

double FaultTransport::now() const noexcept {
  if (config_.manual_clock) {
    // Relaxed: a clock, it orders nothing.
    return static_cast<double>(manual_nanoseconds_.load(std::memory_order_relaxed)) * 1e-9;
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace hixl_aio::fault
