// INV-1 under racing threads: every accepted operation yields exactly one record.
#include <array>

#include "check.h"
#include "core/engine.h"
#include "stand_in_transport.h"

namespace hixl_aio {
namespace {

using test::StandInTransport;

constexpr Token operations = 1'000'000;

// Counts the records per token.
struct Ledger {
  std::vector<std::uint8_t> seen = std::vector<std::uint8_t>(operations, 0);
  Token total = 0;
  void note(Token token) {
    ++total;
    if (token < operations && seen[token] < 255) {
      ++seen[token];
    }
  }
  void check() const {
    CHECK_EQ(total, operations);
    Token wrong = 0;
    for (const std::uint8_t count : seen) {
      wrong += count != 1 ? 1 : 0;
    }
    CHECK_EQ(wrong, 0U);
  }
};

// Passes completions to a channel, as the engine does.
struct ChannelHost final : TransportHost {
  explicit ChannelHost(CompletionChannel& channel) : channel_(channel) {}
  void complete(Op& op, Status status, bool quiescent) noexcept override {
    channel_.push({op.handle, op.token, op.nbytes, status, quiescent});
  }
  void complete_again(OpHandle, Token, Status) noexcept override {}
  void peer_ending(PeerId, Status) noexcept override {}
  void raise(Event) override {}
  void wake_progress() noexcept override {}
  int progress_fd() const noexcept override { return -1; }
  int loop_fd() const noexcept override { return channel_.fd(); }
  Reactor& reactor() noexcept override { std::abort(); }
  JobThread& jobs() noexcept override { std::abort(); }

 private:
  CompletionChannel& channel_;
};

TEST("four submitters and four completers race over a million operations: one record each, and no slot is lost") {
  constexpr std::uint32_t slots = 512;
  OpSlab slab(slots);
  CompletionChannel channel(slots);
  ChannelHost host(channel);
  StandInTransport transport;
  std::string text;
  transport.start(host, "here", text, text);
  transport.use_workers(4);
  ProgressThread progress(transport, slots);
  REQUIRE(ok(progress.start()));

  // The loop thread owns the slab, so it hands each operation to one of four threads, which submit at the same time.
  struct Submitter {
    SubmissionRing<Op*> ring{slots};
    Doorbell bell;
    std::thread thread;
  };
  std::array<Submitter, 4> submitters;
  std::atomic<bool> ending{false};
  for (Submitter& submitter : submitters) {
    submitter.thread = std::thread([&] {
      while (!ending) {
        submitter.bell.clear_and_arm();
        Op* op = nullptr;
        while (submitter.ring.try_pop(op)) {
          CHECK(progress.submit(op));
        }
        test::readable(submitter.bell.fd(), 1000);
      }
    });
  }

  Ledger ledger;
  Token next = 0;
  std::uint64_t stale = 0;
  std::array<CompletionRecord, 256> records;
  while (ledger.total < operations) {
    while (next < operations) {
      Op* op = slab.acquire();
      if (op == nullptr) {
        break;
      }
      op->token = next;
      CHECK(submitters[next % 4].ring.try_push(op));
      if (++next % 16 == 0 || next == operations) {
        for (Submitter& submitter : submitters) {
          submitter.bell.ring();
        }
      }
    }
    for (Submitter& submitter : submitters) {
      submitter.bell.ring();
    }
    if (!test::readable(channel.fd(), 20'000)) {
      test::lost_wakeup("no record in twenty seconds");
    }
    channel.prepare_drain();
    const std::size_t count = channel.pop(records.data(), records.size());
    for (std::size_t index = 0; index < count; ++index) {
      Op* op = slab.find(records[index].handle);
      if (op == nullptr || op->token != records[index].token) {
        ++stale;
        continue;
      }
      ledger.note(records[index].token);
      slab.release(*op);
    }
    if (channel.ready()) {
      channel.ring();
    }
  }
  ending = true;
  for (Submitter& submitter : submitters) {
    submitter.bell.ring();
    submitter.thread.join();
  }
  progress.stop();
  ledger.check();
  CHECK_EQ(stale, 0U);
  CHECK_EQ(slab.in_use(), 0U);
  CHECK(!channel.ready());
}

struct LedgerSink final : DrainSink {
  Ledger ledger;
  std::uint64_t wrong = 0;
  void take(const SignalRecord&) override {}
  void complete(const CompletionRecord& record, const Op& op) override {
    wrong += record.token != op.token || record.handle != op.handle || record.status != Status::ok ? 1 : 0;
    ledger.note(record.token);
  }
  void event(Event&&) override {}
};

TEST("the same through an engine: a million operations, four completers, every admitted operation is given back once") {
  auto owned = std::make_unique<StandInTransport>();
  StandInTransport& transport = *owned;
  transport.use_workers(4);
  Engine engine({.max_operations = 1024}, std::move(owned));
  std::string bound;
  std::string error;
  REQUIRE(ok(engine.start("here", bound, error)));
  LedgerSink sink;
  Token next = 0;
  while (sink.ledger.total < operations) {
    while (next < operations) {
      Op* op = engine.acquire();
      if (op == nullptr) {
        break;
      }
      op->token = next++;
      CHECK(ok(engine.submit(*op)));
    }
    if (!test::readable(engine.fd(), 20'000)) {
      test::lost_wakeup("no record in twenty seconds");
    }
    engine.drain(sink, 256);
  }
  sink.ledger.check();
  CHECK_EQ(sink.wrong, 0U);
  CHECK_EQ(transport.admitted.load(), operations);
  CHECK_EQ(transport.released.load(), operations);
  const EngineCounters counters = engine.counters();
  CHECK_EQ(counters.submitted, operations);
  CHECK_EQ(counters.completed, operations);
  CHECK_EQ(counters.drained, operations);
  CHECK_EQ(counters.in_flight, 0U);
  std::printf("     %llu operations, %llu wake-ups\n", static_cast<unsigned long long>(operations),
              static_cast<unsigned long long>(counters.wakeups));
}

}  // namespace
}  // namespace hixl_aio

HIXL_TEST_MAIN
