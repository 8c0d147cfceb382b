// A stand-in for a transport, for tests of the core only: it moves no bytes and does what the test tells it to.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/doorbell.h"
#include "core/submission_ring.h"
#include "check.h"
#include "hixl_aio/transport.h"

namespace hixl_aio::test {

// A thread that completes operations, as a copy thread would.
class Worker {
 public:
  Worker() : ring_(1 << 17), thread_([this] { run(); }) {}
  ~Worker() { end(); }
  // Ends what was given, then the thread. Idempotent.
  void end() noexcept {
    if (thread_.joinable()) {
      stopping_.store(true);
      bell_.ring();
      thread_.join();
    }
  }
  void give(Op* op, TransportHost* host) noexcept {
    host_.store(host);
    if (!ring_.try_push(op)) {
      give_up("a worker of the stand-in has too much to do");
    }
    bell_.ring();
  }
  // Called for each operation instead of host.complete, if set before the first one.
  void (*finish)(TransportHost& host, Op& op, void* context) = nullptr;
  void* context = nullptr;

 private:
  void run() {
    for (;;) {
      bell_.clear_and_arm();
      const bool stopping = stopping_.load();
      Op* op = nullptr;
      while (ring_.try_pop(op)) {
        TransportHost& host = *host_.load();
        if (finish != nullptr) {
          finish(host, *op, context);
        } else {
          host.complete(*op, Status::ok, true);
        }
      }
      if (stopping) {
        return;
      }
      readable(bell_.fd(), -1);
    }
  }

  SubmissionRing<Op*> ring_;
  Doorbell bell_;
  std::atomic<TransportHost*> host_{nullptr};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

class StandInTransport final : public Transport {
 public:
  // What happens to a posted operation.
  enum class Mode { complete_at_once, hold, workers };

  // Set before the engine starts.
  Mode mode = Mode::complete_at_once;
  Status start_answer = Status::ok;
  std::vector<std::unique_ptr<Worker>> workers;
  // Any time.
  std::atomic<Status> admit_answer{Status::ok};
  std::atomic<bool> gate_closed{false};  // post() waits while it is set, and with it the progress thread

  std::atomic<std::uint64_t> admitted{0};
  std::atomic<std::uint64_t> released{0};
  std::atomic<std::uint64_t> posted{0};
  std::atomic<std::uint64_t> progressed{0};
  std::atomic<std::uint64_t> posted_after_shutdown{0};
  std::atomic<std::uint64_t> sent{0};  // signals of their own
  std::atomic<Status> last_sent_status{Status::ok};
  std::atomic<int> shutdowns{0};
  TransportHost* host = nullptr;

  ~StandInTransport() override { workers.clear(); }

  void use_workers(int count) {
    mode = Mode::workers;
    for (int index = 0; index < count; ++index) {
      workers.push_back(std::make_unique<Worker>());
    }
  }

  // Completes what is held; returns how many.
  std::size_t complete_held(Status status = Status::ok) {
    std::vector<Op*> ops;
    {
      const std::lock_guard lock(mutex_);
      ops.swap(held_);
    }
    for (Op* op : ops) {
      host->complete(*op, status, true);
    }
    return ops.size();
  }
  std::size_t held() {
    const std::lock_guard lock(mutex_);
    return held_.size();
  }
  // A signal arrives from a peer, which writes the loop's eventfd itself.
  void arrive(PeerId peer, const std::string& name, const std::string& payload = "", Status status = Status::ok) {
    {
      const std::lock_guard lock(mutex_);
      SignalRecord record;
      record.peer = peer;
      record.sequence = ++sequence_;
      record.status = status;
      record.name = name;
      record.payload = payload;
      signals_.push_back(std::move(record));
      signals_waiting_.store(signals_.size());
    }
    const std::uint64_t one = 1;
    static_cast<void>(!::write(host->loop_fd(), &one, sizeof one));
  }

  // Transport
  [[nodiscard]] const Capabilities& capabilities() const noexcept override { return capabilities_; }
  Status start(TransportHost& owner, const std::string& address, std::string& bound, std::string& error) override {
    host = &owner;
    bound = address;
    if (!ok(start_answer)) {
      error = "the stand-in was told to fail";
    }
    return start_answer;
  }
  void shutdown() noexcept override {
    ending_.store(true);
    // Asks the progress thread to end what is held, as a transport may whose links are its own.
    if (shutdowns.load() == 0 && host != nullptr && held() > 0) {
      host->wake_progress();
      if (!eventually([&] { return held() == 0; })) {
        fail(__FILE__, __LINE__, "the progress thread did not end what was posted");
      }
    }
    // As the seam asks for: a worker's last completion may be drained, and the engine closed, before it has left the call.
    for (const std::unique_ptr<Worker>& worker : workers) {
      worker->end();
    }
    shutdowns.fetch_add(1);
  }
  void abandon_after_fork() noexcept override {}
  void connect(Token, const std::string&, double) override {}
  void disconnect(Token, PeerId, bool) override {}
  void refresh(Token, PeerId) override {}
  void allocate(Token, const RegionSpec&) override {}
  void register_memory(Token, const RegionSpec&) override {}
  void close_region(Token, std::uint32_t, double) override {}
  bool find_region(PeerId, std::string_view, RegionInfo&) override { return false; }
  bool peer_info(PeerId, PeerInfo&) override { return false; }
  std::shared_ptr<void> hold_region(std::uint32_t) override { return {}; }

  Status admit(Op& op) noexcept override {
    const Status answer = admit_answer.load();
    if (ok(answer)) {
      admitted.fetch_add(1);
      op.target = this;
    }
    return answer;
  }
  void release(Op& op) noexcept override {
    if (op.target == this) {
      op.target = nullptr;
      released.fetch_add(1);
    } else {
      fail(__FILE__, __LINE__, "released what was not admitted, or twice");
    }
  }
  Status transfer_now(PeerId, const Run& run, const SignalText*, bool) noexcept override {
    return run.nbytes <= 64 ? Status::ok : Status::would_block;
  }
  void post(Op& op) noexcept override {
    while (gate_closed.load()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (shutdowns.load() != 0) {
      posted_after_shutdown.fetch_add(1);
    }
    const std::uint64_t number = posted.fetch_add(1);
    switch (mode) {
      case Mode::complete_at_once:
        host->complete(op, Status::ok, true);
        break;
      case Mode::hold: {
        const std::lock_guard lock(mutex_);
        held_.push_back(&op);
        break;
      }
      case Mode::workers:
        workers[number % workers.size()]->give(&op, host);
        break;
    }
  }
  bool progress() noexcept override {
    progressed.fetch_add(1);
    if (mode != Mode::hold) {
      return false;
    }
    // Honours requests to stop. Completes under the lock, so that held() is 0 only when all have been completed.
    const std::lock_guard lock(mutex_);
    const std::size_t stopped = std::erase_if(held_, [&](Op* op) {
      const bool stop = ending_.load() || op->stop_requested.load(std::memory_order_relaxed);
      if (stop) {
        host->complete(*op, Status::stopped, true);
      }
      return stop;
    });
    return stopped > 0;
  }

  Status reserve_signal(PeerId) noexcept override { return Status::ok; }
  void unreserve_signal(PeerId) noexcept override {}
  Status send_signal(PeerId, std::string_view, std::string_view, Status status, bool) noexcept override {
    last_sent_status.store(status);
    sent.fetch_add(1);
    return Status::ok;
  }
  bool drain_signals(SignalSink& sink, std::size_t limit) override {
    if (signals_waiting_.load() == 0) {
      return false;
    }
    const std::lock_guard lock(mutex_);
    for (; limit > 0 && !signals_.empty(); --limit) {
      sink.take(signals_.front());
      signals_.pop_front();
    }
    signals_waiting_.store(signals_.size());
    return !signals_.empty();
  }
  void drain_peer_signals(PeerId peer, SignalSink& sink) override {
    const std::lock_guard lock(mutex_);
    std::deque<SignalRecord> others;
    for (SignalRecord& record : signals_) {
      if (record.peer == peer) {
        sink.take(record);
      } else {
        others.push_back(std::move(record));
      }
    }
    signals_.swap(others);
    signals_waiting_.store(signals_.size());
  }
  void forget_peer(PeerId /*peer*/) override {}
  void signals_taken(PeerId, std::uint32_t) noexcept override {}

 private:
  Capabilities capabilities_;
  std::atomic<bool> ending_{false};
  std::mutex mutex_;
  std::vector<Op*> held_;
  std::deque<SignalRecord> signals_;
  std::atomic<std::size_t> signals_waiting_{0};
  std::uint64_t sequence_ = 0;
};

}  // namespace hixl_aio::test
