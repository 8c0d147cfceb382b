// A decorator over any transport that makes it misbehave on demand, for tests of what stands above the seam.
//
// Everything that a plan asks for happens here, between the core and a real transport: bytes really move, or really do
// not. Nothing is random and nothing is timed unless the plan says so.
//
// Threads. Rules are matched on the loop thread (admit, drain_signals). Operations wait in `entries_`, under `mutex_`,
// which is never held while the inner transport or the core is called. What only the loop thread may do (sending a
// signal) is queued and done in `drain_signals`, which the core calls in every drain.
//
// Keeps INV-1 (each admitted operation is completed once; what is lost, when its link is torn down), INV-2 (a record
// that says "let go" is true; after the teardown of a link nothing of it is posted any more), INV-11 (a signal that was
// taken from an operation is sent after its bytes).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hixl_aio/decorator.h"
#include "transports/fault/rules.h"

namespace hixl_aio::fault {

inline constexpr double kNever = std::numeric_limits<double>::infinity();
inline constexpr RuleId kPacing = 0;  // no rule: the operation waits because of a throttle or a frozen peer

class FaultTransport final : public Decorator {
 public:
  struct Config {
    bool manual_clock = false;  // time goes on only by advance()
    bool can_stop = true;       // false: capabilities say so, and requests to stop have no effect on what is held
    bool lossy_signals = false; // capabilities say that signals may get lost, and no places are kept for them
  };

  FaultTransport(std::unique_ptr<Transport> inner, Config config);
  ~FaultTransport() override;

  // ---- the plan, any thread
  RuleId add_rule(Rule rule);
  void remove_rule(RuleId rule);  // what it holds stays held
  void clear_rules();             // all of them, with their numbers of hits
  // Operations that the rule holds now, in the order in which they were caught.
  [[nodiscard]] std::size_t caught(RuleId rule);
  [[nodiscard]] std::uint64_t hits(RuleId rule);
  // Loop thread. Lets the one at `index` go on; negative: all. Returns how many.
  std::size_t release_held(RuleId rule, std::int64_t index);
  // 0 bytes per second: as fast as it can.
  void throttle(double nbytes_per_second, double latency);
  void advance(double seconds);  // loop thread
  // Outgoing operations and arriving signals of a peer stand still.
  void freeze(PeerId peer);
  void thaw(PeerId peer);
  [[nodiscard]] std::size_t pending();  // operations that are in our hands

  // ---- Transport
  Status start(TransportHost& host, const std::string& address, std::string& bound, std::string& error) override;
  void shutdown() noexcept override;
  void abandon_after_fork() noexcept override;
  bool peer_info(PeerId peer, PeerInfo& out) override;
  Status admit(Op& op) noexcept override;
  Status transfer_now(PeerId peer, const Run& run, const SignalText* signal, bool reserved) noexcept override;
  void post(Op& op) noexcept override;
  bool progress() noexcept override;
  Status reserve_signal(PeerId peer) noexcept override;
  void unreserve_signal(PeerId peer) noexcept override;
  Status send_signal(PeerId peer, std::string_view name, std::string_view payload, Status status,
                     bool reserved) noexcept override;
  bool drain_signals(SignalSink& sink, std::size_t limit) override;
  void drain_peer_signals(PeerId peer, SignalSink& sink) override;
  void forget_peer(PeerId peer) override;
  void signals_taken(PeerId peer, std::uint32_t count) noexcept override;

 private:
  enum class Phase : std::uint8_t {
    admitted,    // not posted yet
    waiting,     // posted, before anything has moved; leaves by release, time or a stop
    moving_half, // the first half is being moved
    half,        // it has moved
    moving,      // the inner transport has all of it
    landed,      // the inner transport is done; the signal and the record are kept
    signalling,  // the loop thread will send the signal
    signalled,   // it has; the record is kept
    lost,        // the record is kept until the link is torn down
  };

  struct Entry {
    Op* op = nullptr;
    Rule rule;  // a copy
    Phase phase = Phase::admitted;
    Status status = Status::ok;
    bool quiescent = true;
    double due = 0.0;          // waiting: when to go on; infinite until released
    std::uint64_t order = 0;   // of being caught
    std::unique_ptr<Op> half;  // the first half
    SignalText signal;         // taken from the operation
    bool finishing = false;    // after the signal: the record
    bool released = false;

    // Keeps the bound signal back, so that the inner transport does not send it.
    void take_signal() {
      if (op->signal.present) {
        signal = op->signal;
        op->signal.present = false;
      }
    }
  };
  // The bytes of an operation that was reported as failed.
  struct Ghost {
    RuleId rule = 0;
    std::uint64_t order = 0;
    std::unique_ptr<Op> op;
    bool released = false;
    bool posted = false;
  };
  struct LateSignal {
    double due = 0.0;
    PeerId peer = 0;
    Op* op = nullptr;  // whose signal it is; null: one of its own
    SignalText text;
    Status status = Status::ok;
  };
  using Entries = std::unordered_map<Op*, std::unique_ptr<Entry>>;
  // What is done when the lock has been given back.
  struct Steps {
    std::vector<Op*> post;                       // to the inner transport; on the progress thread only
    std::vector<Op*> post_unstoppable;           // the same, as if nobody had asked for a stop
    std::vector<std::unique_ptr<Op>> drop;       // ghosts that are over
    std::vector<std::unique_ptr<Entry>> finish;  // entries that are over: complete them
    bool wake_progress = false;
    bool wake_loop = false;
  };
  class Filter;

  // TransportHost, called by the inner transport
  void complete(Op& op, Status status, bool quiescent) noexcept override;
  void raise(Event event) override;
  void peer_ending(PeerId peer, Status status) noexcept override;

  [[nodiscard]] double now() const noexcept;
  [[nodiscard]] static std::uint64_t nbytes_of(const Op& op) noexcept;
  Status admit_with(const Rule& rule, Op& op);
  void run(Steps& steps);
  void finish(Entry& entry);
  void tell(const std::vector<RuleId>& told);
  void send_due_signals();
  void signal_sent(Op& op);
  void end_peer(PeerId peer, Status status);
  void arm();
  void retry_soon();
  void wake();

  // Under the lock. `told` collects the rules that have caught something.
  [[nodiscard]] const Rule* match(OpKind kind, PeerId peer, std::uint64_t nbytes);
  [[nodiscard]] std::vector<Entry*> held_by(RuleId rule);
  [[nodiscard]] double pace(const Op& op);
  void update_active() noexcept;
  void begin(Entry& entry, Steps& steps, std::vector<RuleId>& told);
  void begin_hold(Entry& entry, Steps& steps, std::vector<RuleId>& told);
  void wait(Entry& entry, double due, std::vector<RuleId>& told);
  void reverse_window(const Rule& rule, Steps& steps);
  void collect(Steps& steps);
  void let_go(Entry& entry, Steps& steps);
  void half_moved(Entry& entry, Status status, bool quiescent, Steps& steps, std::vector<RuleId>& told);
  void moved(Entry& entry, Status status, bool quiescent, Steps& steps, std::vector<RuleId>& told);
  void begin_finish(Entry& entry, Status status, bool quiescent, Steps& steps);
  void drop_ghosts(PeerId peer, Steps& steps);

  const Config config_;
  int timer_fd_ = -1;

  // Whether the inline way is closed. Relaxed: rules are added on the loop thread, which also reads this.
  std::atomic<bool> active_{false};
  std::atomic<std::uint64_t> manual_nanoseconds_{0};

  std::mutex mutex_;  // everything below
  std::vector<Rule> rules_;
  RuleId next_rule_ = 1;
  Entries entries_;
  std::unordered_map<Op*, Op*> halves_;  // a first half that is moving -> its operation
  std::vector<Ghost> ghosts_;
  std::deque<LateSignal> late_signals_;
  std::uint64_t next_order_ = 0;
  std::set<PeerId> latched_;
  std::set<PeerId> frozen_;
  std::map<PeerId, Status> ending_peers_;
  std::map<PeerId, std::deque<SignalRecord>> frozen_signals_;
  std::map<PeerId, double> free_at_;  // when the throttled link has carried what it was given
  double nbytes_per_second_ = 0.0;
  double latency_ = 0.0;
  double retry_at_ = std::numeric_limits<double>::infinity();
  std::map<RuleId, std::uint32_t> left_windows_;  // operations that ended before their window was full
  bool ending_ = false;
};

}  // namespace hixl_aio::fault
