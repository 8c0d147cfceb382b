// See fault_transport.h. Signals, going out and arriving.
#include "transports/fault/fault_transport.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace hixl_aio::fault {

Status FaultTransport::reserve_signal(PeerId peer) noexcept {
  const Status status = inner_->reserve_signal(peer);
  if (!config_.lossy_signals) {
    return status;
  }
  if (ok(status)) {
    inner_->unreserve_signal(peer);
  }
  return status == Status::signal_queue_full ? Status::ok : status;
}

void FaultTransport::unreserve_signal(PeerId peer) noexcept {
  if (!config_.lossy_signals) {
    inner_->unreserve_signal(peer);
  }
}

void FaultTransport::signals_taken(PeerId peer, std::uint32_t count) noexcept {
  if (!config_.lossy_signals) {
    inner_->signals_taken(peer, count);
  }
}

Status FaultTransport::send_signal(PeerId peer, std::string_view name, std::string_view payload, Status status,
                                   bool reserved) noexcept {
  double latency = 0.0;
  bool waits = false;
  {
    const std::lock_guard lock(mutex_);
    latency = latency_;
    waits = frozen_.contains(peer) || std::any_of(late_signals_.begin(), late_signals_.end(), [peer](const auto& late) {
              return late.peer == peer && late.op == nullptr;
            });
    if (const Rule* rule = ok(status) ? match(OpKind::signal, peer, 0) : nullptr; rule != nullptr) {
      return rule->status;  // whatever the rule says: a signal of its own can only be refused
    }
  }
  if (latency <= 0 && !waits) {
    return inner_->send_signal(peer, name, payload, status, reserved);
  }
  if (!reserved) {
    if (const Status place = inner_->reserve_signal(peer); !ok(place)) {
      return place;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    double due = frozen_.contains(peer) ? kNever : now() + latency;
    for (const LateSignal& earlier : late_signals_) {
      due = earlier.peer == peer && earlier.op == nullptr ? std::max(due, earlier.due) : due;  // none is overtaken
    }
    late_signals_.push_back({due, peer, nullptr, {true, std::string(name), std::string(payload)}, status});
  }
  arm();
  return Status::ok;
}

// Loop thread.
void FaultTransport::send_due_signals() {
  for (;;) {
    LateSignal late;
    {
      const std::lock_guard lock(mutex_);
      const double time = now();
      const auto due = std::find_if(late_signals_.begin(), late_signals_.end(),
                                    [time](const LateSignal& one) { return one.due <= time; });
      if (due == late_signals_.end()) {
        break;
      }
      late = std::move(*due);
      late_signals_.erase(due);
    }
    static_cast<void>(inner_->send_signal(late.peer, late.text.name, late.text.payload, late.status, true));
    if (late.op != nullptr) {
      signal_sent(*late.op);
    }
  }
  arm();
}

void FaultTransport::signal_sent(Op& op) {
  Steps steps;
  std::vector<RuleId> told;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(&op);
    if (found == entries_.end() || found->second->phase != Phase::signalling) {
      return;  // its peer went meanwhile
    }
    Entry& entry = *found->second;
    entry.signal.present = false;
    entry.phase = Phase::signalled;
    if (entry.finishing) {
      begin_finish(entry, entry.status, entry.quiescent, steps);
    } else {
      told.push_back(entry.rule.id);
    }
  }
  run(steps);
  tell(told);
}

// Between the inner transport and the core: what arrives.
class FaultTransport::Filter final : public SignalSink {
 public:
  Filter(FaultTransport& owner, SignalSink& sink) : owner_(owner), sink_(sink) {}
  void take(const SignalRecord& record) override {
    if (owner_.config_.lossy_signals) {
      owner_.inner_->signals_taken(record.peer, 1);  // whatever becomes of it: only the inner transport keeps places
    }
    int copies = 1;
    {
      const std::lock_guard lock(owner_.mutex_);
      if (owner_.frozen_.contains(record.peer)) {
        owner_.frozen_signals_[record.peer].push_back(record);
        return;
      }
      for (Rule& rule : owner_.rules_) {
        const bool fits = rule.is_for_signals() && (rule.peer == 0 || rule.peer == record.peer) &&
                          (rule.signal.empty() || rule.signal == record.name);
        if (fits && rule.picks()) {
          copies = rule.action == Action::drop_signal ? 0 : 2;
          break;
        }
      }
    }
    for (; copies > 0; --copies) {
      sink_.take(record);
    }
  }

 private:
  FaultTransport& owner_;
  SignalSink& sink_;
};

bool FaultTransport::drain_signals(SignalSink& sink, std::size_t limit) {
  send_due_signals();
  std::deque<SignalRecord> thawed;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [peer, records] : frozen_signals_) {
      if (!frozen_.contains(peer)) {
        std::move(records.begin(), records.end(), std::back_inserter(thawed));
        records.clear();
      }
    }
    std::erase_if(frozen_signals_, [](const auto& item) { return item.second.empty(); });
  }
  for (const SignalRecord& record : thawed) {
    sink.take(record);
  }
  Filter filter(*this, sink);
  return inner_->drain_signals(filter, limit);
}

void FaultTransport::drain_peer_signals(PeerId peer, SignalSink& sink) {
  std::deque<SignalRecord> kept;
  {
    const std::lock_guard lock(mutex_);
    frozen_.erase(peer);
    if (const auto found = frozen_signals_.find(peer); found != frozen_signals_.end()) {
      kept.swap(found->second);
      frozen_signals_.erase(found);
    }
  }
  for (const SignalRecord& record : kept) {
    sink.take(record);
  }
  Filter filter(*this, sink);
  inner_->drain_peer_signals(peer, filter);
}

}  // namespace hixl_aio::fault
