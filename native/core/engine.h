// One engine: slab, submission ring, progress thread, control thread, jobs thread, completion channel and a transport.
//
// Everything public is called on the loop thread unless it says otherwise. Native threads never call into the caller
// (INV-3): they push records and events and ring `fd()`.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/completion_channel.h"
#include "core/event_queue.h"
#include "core/job_thread.h"
#include "core/op_slab.h"
#include "core/progress_thread.h"
#include "core/reactor.h"
#include "hixl_aio/transport.h"

namespace hixl_aio {

struct EngineConfig {
  std::uint32_t max_operations = 65536;  // slots of the slab: accepted and not yet drained
  std::uint32_t max_strays = 0;          // room for records that repeat others, of a transport that cannot rule them out
};

// What one drain gives to the caller.
class DrainSink : public SignalSink {
 public:
  // `op` is still valid: the slot is released when this returns.
  virtual void complete(const CompletionRecord& record, const Op& op) = 0;
  virtual void event(Event&& event) = 0;

 protected:
  ~DrainSink() = default;
};

struct EngineCounters {
  std::uint64_t submitted = 0;
  std::uint64_t completed = 0;  // records pushed by native threads, whether or not they were drained
  std::uint64_t drained = 0;
  std::uint64_t inline_done = 0;
  std::uint64_t strays = 0;   // records that matched no operation
  std::uint64_t wakeups = 0;  // writes to the eventfd by this engine's threads
  std::uint32_t in_flight = 0;
};

class Engine final : public TransportHost {
 public:
  Engine(EngineConfig config, std::unique_ptr<Transport> transport);
  ~Engine();  // shuts down if nobody did; joins native threads, which never need the caller's locks
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Status start(const std::string& address, std::string& bound, std::string& error);

  // An operation to fill; null when the slab is full (queue_full). Pass it to submit or discard.
  Op* acquire() noexcept;
  void discard(Op& op) noexcept;
  // Admits and hands the operation over. Not ok: refused, nothing moved, the slot is free again. ok: one record follows.
  // `refused_run`: of a refusal that is about a run, which one.
  Status submit(Op& op, std::size_t* refused_run = nullptr) noexcept;
  // Whole operation inline; see Transport::transfer_now.
  Status transfer_now(PeerId peer, const Run& run, const SignalText* signal, bool reserved) noexcept;
  // The same with an operation of many runs. True: it is done and its slot given back. False: submit it.
  bool batch_now(Op& op) noexcept;
  // False: no such operation any more.
  bool request_stop(OpHandle handle) noexcept;

  // Reads the eventfd, re-arms, takes at most `limit` records plus signals and events; writes the fd itself if some are
  // left (INV-8) and returns true then.
  bool drain(DrainSink& sink, std::size_t limit);

  // Ends everything on the jobs thread; an Event of kind shutdown follows. Further submits are refused with `closed`.
  void begin_shutdown(Token token);
  // In a forked child: close descriptors and forget the threads.
  void abandon_after_fork() noexcept;

  [[nodiscard]] int fd() const noexcept;
  [[nodiscard]] Transport& transport() noexcept;
  [[nodiscard]] EngineCounters counters() const noexcept;  // any thread
  [[nodiscard]] bool closed() const noexcept;

  // TransportHost
  void complete(Op& op, Status status, bool quiescent) noexcept override;
  void complete_again(OpHandle handle, Token token, Status status) noexcept override;
  void peer_ending(PeerId /*peer*/, Status /*status*/) noexcept override {}
  void raise(Event event) override;
  void wake_progress() noexcept override;
  int progress_fd() const noexcept override;
  int loop_fd() const noexcept override;
  Reactor& reactor() noexcept override;
  JobThread& jobs() noexcept override;

  // After the shutdown event: joins the jobs thread and closes the descriptors. Ends everything first if nobody did, and
  // may block then. Idempotent; the destructor does the same.
  void close() noexcept;

 private:
  // An event that ends something (a peer, a region, the engine): it waits until every record that was pushed before it
  // was raised has been delivered.
  struct HeldEvent {
    Event event;
    std::uint64_t after;  // position in the completion channel
  };

  void end_everything() noexcept;
  std::size_t drain_completions(DrainSink& sink, std::size_t limit);
  void drain_events(DrainSink& sink);
  bool deliver_held(DrainSink& sink);

  const std::uint32_t max_strays_;
  OpSlab slab_;
  CompletionChannel channel_;
  std::deque<HeldEvent> held_;

  // In the order of their dependence: the transport goes first at the end. On the heap, because a forked child must
  // forget them: a mutex inside may be held by a thread that does not exist there.
  std::unique_ptr<EventQueue> events_;
  std::unique_ptr<JobThread> jobs_;
  std::unique_ptr<Reactor> reactor_;
  std::unique_ptr<ProgressThread> progress_;
  std::unique_ptr<Transport> transport_;

  bool started_ = false;
  bool closed_ = false;     // submits are refused
  bool ended_ = false;      // close() has run
  bool abandoned_ = false;  // we are a forked child

  // Written by the loop thread only, read by any: relaxed, they are statistics and order nothing.
  std::atomic<std::uint64_t> submitted_{0};
  std::atomic<std::uint64_t> inline_done_{0};
  std::atomic<std::uint64_t> strays_{0};  // records that matched nothing
  // Records of complete_again that lie in the channel. Relaxed: the ring's own room is what counts, this only keeps
  // enough of it for the others.
  std::atomic<std::uint32_t> strays_in_channel_{0};
};

}  // namespace hixl_aio
