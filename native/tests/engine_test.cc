// The engine: bounded drains, the order of what comes up, refusals, requests to stop, fork, and an end in every state.
#include "core/engine.h"

#include <sys/wait.h>

#include <memory>

#include "check.h"
#include "stand_in_transport.h"

namespace hixl_aio {
namespace {

using test::Leftovers;
using test::StandInTransport;
using Mode = StandInTransport::Mode;

// Writes down what came, in order: "c<token>", "s<name>", "e<kind>".
struct Sink final : DrainSink {
  std::vector<CompletionRecord> completions;
  std::vector<SignalRecord> signals;
  std::vector<Event> events;
  std::vector<std::string> log;
  void take(const SignalRecord& record) override {
    signals.push_back(record);
    log.push_back("s" + record.name);
  }
  void complete(const CompletionRecord& record, const Op& op) override {
    CHECK_EQ(record.handle, op.handle);
    completions.push_back(record);
    log.push_back("c" + std::to_string(record.token));
  }
  void event(Event&& event) override {
    log.push_back("e" + std::to_string(static_cast<int>(event.kind)));
    events.push_back(std::move(event));
  }
};

struct Fixture {
  StandInTransport* transport;
  std::unique_ptr<Engine> engine;
  Sink sink;

  explicit Fixture(Mode mode = Mode::complete_at_once, bool start = true, std::uint32_t operations = 1024) {
    auto owned = std::make_unique<StandInTransport>();
    transport = owned.get();
    transport->mode = mode;
    engine = std::make_unique<Engine>(EngineConfig{.max_operations = operations}, std::move(owned));
    if (start) {
      std::string bound;
      std::string error;
      REQUIRE(ok(engine->start("here", bound, error)));
      CHECK_EQ(bound, "here");
    }
  }
  OpHandle submit(Token token, PeerId peer = 1) {
    Op* op = engine->acquire();
    REQUIRE(op != nullptr);
    op->token = token;
    op->peer = peer;
    op->nbytes = 100;
    const OpHandle handle = op->handle;
    CHECK(ok(engine->submit(*op)));
    return handle;
  }
  void submit_many(Token count) {
    for (Token token = 0; token < count; ++token) {
      submit(token);
    }
  }
  // As an event loop would: sleeps on the fd, drains, until the condition holds.
  template <typename Condition>
  void run_until(Condition condition) {
    while (!condition()) {
      REQUIRE(test::readable(engine->fd(), 10'000));
      engine->drain(sink, 256);
    }
  }
  void shut_down(Token token = 77) {
    engine->begin_shutdown(token);
    run_until([&] { return !sink.events.empty() && sink.events.back().kind == EventKind::shutdown; });
    CHECK_EQ(sink.events.back().token, token);
  }
};

Event event_of(EventKind kind, PeerId peer) {
  Event event;
  event.kind = kind;
  event.peer = peer;
  return event;
}

TEST("a drain takes at most its limit, and makes the fd readable again while something is left") {
  Fixture fixture;
  Engine& engine = *fixture.engine;
  fixture.submit_many(600);
  CHECK(test::eventually([&] { return engine.counters().completed == 600; }));
  CHECK_EQ(engine.counters().in_flight, 600U);
  CHECK(engine.drain(fixture.sink, 256));
  CHECK_EQ(fixture.sink.completions.size(), 256U);
  CHECK(test::readable(engine.fd()));
  CHECK(engine.drain(fixture.sink, 256));
  CHECK(test::readable(engine.fd()));
  CHECK(!engine.drain(fixture.sink, 256));
  CHECK(!test::readable(engine.fd()));
  CHECK_EQ(fixture.sink.completions.size(), 600U);
  CHECK_EQ(engine.counters().drained, 600U);
  CHECK_EQ(engine.counters().in_flight, 0U);
  for (Token token = 0; token < 600; ++token) {
    CHECK_EQ(fixture.sink.completions[token].token, token);
    CHECK_EQ(fixture.sink.completions[token].nbytes, 100U);
    CHECK(fixture.sink.completions[token].quiescent);
  }
}

TEST("signals are bounded per drain too") {
  Fixture fixture;
  for (int count = 0; count < 5; ++count) {
    fixture.transport->arrive(1, "n");
  }
  CHECK(fixture.engine->drain(fixture.sink, 4));
  CHECK_EQ(fixture.sink.signals.size(), 4U);
  CHECK(test::readable(fixture.engine->fd()));
  CHECK(!fixture.engine->drain(fixture.sink, 4));
  CHECK_EQ(fixture.sink.signals.size(), 5U);
}

TEST("one wake-up serves all completions that are there: a hundred of them cost one write and one drain") {
  Fixture fixture(Mode::hold);
  fixture.submit_many(100);
  CHECK(test::eventually([&] { return fixture.transport->held() == 100; }));
  const std::uint64_t before = fixture.engine->counters().wakeups;
  CHECK_EQ(fixture.transport->complete_held(), 100U);
  CHECK_EQ(fixture.engine->counters().wakeups - before, 1U);
  CHECK(test::readable(fixture.engine->fd()));
  CHECK(!fixture.engine->drain(fixture.sink, 256));
  CHECK_EQ(fixture.sink.completions.size(), 100U);
}

TEST("peer_down comes after every completion and every signal of that peer, however small the drains") {
  Fixture fixture(Mode::hold);
  fixture.submit_many(10);
  CHECK(test::eventually([&] { return fixture.transport->held() == 10; }));
  fixture.transport->complete_held(Status::peer_lost);
  for (int count = 0; count < 20; ++count) {
    fixture.transport->arrive(1, "last words");
  }
  fixture.engine->raise(event_of(EventKind::peer_down, 1));
  fixture.engine->raise(event_of(EventKind::accepted, 2));
  CHECK(fixture.engine->drain(fixture.sink, 4));
  // What announces is not held back by what ends.
  REQUIRE(fixture.sink.events.size() == 1);
  CHECK_EQ(fixture.sink.events[0].kind, EventKind::accepted);
  fixture.run_until([&] { return fixture.sink.events.size() == 2; });
  CHECK_EQ(fixture.sink.events[1].kind, EventKind::peer_down);
  CHECK_EQ(fixture.sink.completions.size(), 10U);
  CHECK_EQ(fixture.sink.signals.size(), 20U);
  CHECK_EQ(fixture.sink.log.back(), "e2");
}

TEST("the last words of a peer come before its peer_down, even when they exceed the limit") {
  Fixture fixture;
  for (int count = 0; count < 20; ++count) {
    fixture.transport->arrive(count % 2 == 0 ? 1 : 2, "word");
  }
  fixture.engine->raise(event_of(EventKind::peer_down, 1));
  CHECK(!fixture.engine->drain(fixture.sink, 4) || test::readable(fixture.engine->fd()));
  REQUIRE(fixture.sink.events.size() == 1);
  int words = 0;
  for (const SignalRecord& record : fixture.sink.signals) {
    words += record.peer == 1 ? 1 : 0;
  }
  CHECK_EQ(words, 10);
  fixture.run_until([&] { return fixture.sink.signals.size() == 20; });
}

TEST("peer_down comes in the same call as the peer's last record, if the limit allows") {
  Fixture fixture(Mode::hold);
  fixture.submit_many(10);
  CHECK(test::eventually([&] { return fixture.transport->held() == 10; }));
  fixture.transport->complete_held(Status::peer_lost);
  fixture.engine->raise(event_of(EventKind::peer_down, 1));
  CHECK(!fixture.engine->drain(fixture.sink, 10));
  CHECK_EQ(fixture.sink.completions.size(), 10U);
  CHECK_EQ(fixture.sink.events.size(), 1U);
}

// For each peer: how many of its operations are still under way. Whoever ends the last one says that the peer is gone.
struct Gone {
  static constexpr PeerId peers = 20'000;
  static constexpr int each = 5;
  std::vector<std::atomic<int>> left = std::vector<std::atomic<int>>(peers);
  static void finish(TransportHost& host, Op& op, void* context) {
    auto& gone = *static_cast<Gone*>(context);
    const PeerId peer = op.peer;
    host.complete(op, Status::peer_lost, true);
    if (gone.left[peer].fetch_sub(1) == 1) {
      host.raise(event_of(EventKind::peer_down, peer));
    }
  }
};

struct GoneSink final : DrainSink {
  std::vector<int> delivered = std::vector<int>(Gone::peers);
  PeerId gone = 0;
  int early = 0;
  void take(const SignalRecord&) override {}
  void complete(const CompletionRecord&, const Op& op) override { ++delivered[op.peer]; }
  void event(Event&& event) override {
    ++gone;
    early += delivered[event.peer] != Gone::each ? 1 : 0;
  }
};

TEST("four threads complete the operations of twenty thousand dying peers: no peer_down overtakes a record") {
  Gone state;
  for (std::atomic<int>& left : state.left) {
    left = Gone::each;
  }
  auto owned = std::make_unique<StandInTransport>();
  owned->use_workers(4);
  for (auto& worker : owned->workers) {
    worker->context = &state;
    worker->finish = &Gone::finish;
  }
  Engine engine({.max_operations = 64}, std::move(owned));
  std::string bound;
  std::string error;
  REQUIRE(ok(engine.start("here", bound, error)));
  GoneSink sink;
  PeerId peer = 0;
  int submitted = 0;
  while (sink.gone < Gone::peers) {
    while (peer < Gone::peers) {
      Op* op = engine.acquire();
      if (op == nullptr) {
        break;
      }
      op->peer = peer;
      CHECK(ok(engine.submit(*op)));
      if (++submitted == Gone::each) {
        submitted = 0;
        ++peer;
      }
    }
    REQUIRE(test::readable(engine.fd(), 20'000));
    engine.drain(sink, 3);
  }
  CHECK_EQ(sink.early, 0);
}

TEST("a refused operation moves nothing, yields no record and frees its slot; a full slab answers null") {
  Fixture fixture(Mode::complete_at_once, true, 2);
  Engine& engine = *fixture.engine;
  fixture.transport->admit_answer = Status::stale_region;
  for (int count = 0; count < 5; ++count) {
    Op* op = engine.acquire();
    REQUIRE(op != nullptr);
    CHECK_EQ(engine.submit(*op), Status::stale_region);
  }
  Op* first = engine.acquire();
  Op* second = engine.acquire();
  CHECK(first != nullptr && second != nullptr && engine.acquire() == nullptr);
  engine.discard(*first);
  engine.discard(*second);
  engine.drain(fixture.sink, 256);
  CHECK(fixture.sink.completions.empty());
  CHECK_EQ(engine.counters().submitted, 0U);
  CHECK_EQ(fixture.transport->released.load(), 0U);
}

TEST("a request to stop reaches the transport at once; a late one matches nothing") {
  Fixture fixture(Mode::hold);
  const OpHandle first = fixture.submit(1);
  const OpHandle second = fixture.submit(2);
  CHECK(test::eventually([&] { return fixture.transport->held() == 2; }));
  CHECK(fixture.engine->request_stop(second));
  fixture.run_until([&] { return fixture.sink.completions.size() == 1; });
  CHECK_EQ(fixture.sink.completions[0].token, 2U);
  CHECK_EQ(fixture.sink.completions[0].status, Status::stopped);
  CHECK(!fixture.engine->request_stop(second));
  CHECK(!fixture.engine->request_stop(0));
  CHECK_EQ(fixture.submit(3) & 0xffffffff, second & 0xffffffff);  // the slot is in use again
  CHECK(!fixture.engine->request_stop(second));                   // and still does not match (INV-9)
  CHECK(fixture.engine->request_stop(first));
  fixture.run_until([&] { return fixture.sink.completions.size() == 2; });
}

TEST("shut down while idle: one event, threads gone, submits refused, close() gives the descriptors back") {
  const Leftovers leftovers;
  Fixture fixture;
  for (const char* name : {"hixl-jobs", "hixl-control", "hixl-progress"}) {
    CHECK(!test::thread_status(name, "SigBlk").empty());
  }
  fixture.shut_down();
  CHECK(fixture.engine->closed());
  CHECK_EQ(fixture.transport->shutdowns.load(), 1);
  Op* op = fixture.engine->acquire();
  CHECK_EQ(fixture.engine->submit(*op), Status::closed);
  CHECK_EQ(fixture.engine->transfer_now(1, {}, nullptr, false), Status::closed);
  fixture.engine->close();
  fixture.engine->close();
  CHECK(leftovers.none());
  CHECK(!fixture.engine->drain(fixture.sink, 256));
}

TEST("never started: shutdown is answered, submit refused, the destructor leaves nothing") {
  const Leftovers leftovers;
  {
    Fixture untouched(Mode::hold, false);
    Fixture fixture(Mode::hold, false);
    Op* op = fixture.engine->acquire();
    CHECK_EQ(fixture.engine->submit(*op), Status::closed);
    fixture.shut_down();
    std::string bound;
    std::string error;
    CHECK_EQ(fixture.engine->start("here", bound, error), Status::closed);
  }
  CHECK(leftovers.none());
}

TEST("a start that fails says why and leaves nothing, and a second start is refused") {
  const Leftovers leftovers;
  Fixture fixture(Mode::hold, false);
  fixture.transport->start_answer = Status::address_in_use;
  std::string bound;
  std::string error;
  CHECK_EQ(fixture.engine->start("here", bound, error), Status::address_in_use);
  CHECK_EQ(error, "the stand-in was told to fail");
  CHECK_EQ(fixture.engine->start("here", bound, error), Status::closed);
  CHECK(leftovers.none());
}

TEST("operations still in the submission ring are posted before the transport ends, and each has one record") {
  Fixture fixture(Mode::hold);
  fixture.transport->gate_closed = true;
  fixture.submit_many(500);
  fixture.engine->begin_shutdown(5);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_EQ(fixture.transport->shutdowns.load(), 0);
  fixture.transport->gate_closed = false;
  fixture.run_until([&] { return !fixture.sink.events.empty(); });
  CHECK_EQ(fixture.sink.completions.size(), 500U);
  CHECK_EQ(fixture.sink.log.back(), "e7");  // the shutdown event is the last thing that comes
  CHECK_EQ(fixture.transport->posted_after_shutdown.load(), 0U);
  CHECK_EQ(fixture.transport->released.load(), 500U);
}

TEST("operations that are posted and held are ended by the transport, and each has one record before the event") {
  Fixture fixture(Mode::hold);
  fixture.submit_many(500);
  CHECK(test::eventually([&] { return fixture.transport->held() == 500; }));
  fixture.shut_down();
  CHECK_EQ(fixture.sink.completions.size(), 500U);
  CHECK_EQ(fixture.sink.completions[0].status, Status::stopped);
  CHECK_EQ(fixture.engine->counters().in_flight, 0U);
}

TEST("completed but not drained: the records are still there after the shutdown has ended everything") {
  Fixture fixture;
  fixture.submit_many(500);
  CHECK(test::eventually([&] { return fixture.engine->counters().completed == 500; }));
  fixture.engine->begin_shutdown(5);
  CHECK(test::eventually([&] { return fixture.transport->shutdowns == 1; }));
  fixture.run_until([&] { return !fixture.sink.events.empty(); });
  CHECK_EQ(fixture.sink.completions.size(), 500U);
}

TEST("two requests for shutdown get two answers, after one shutdown") {
  Fixture fixture(Mode::hold);
  fixture.submit_many(10);
  fixture.engine->begin_shutdown(1);
  fixture.engine->begin_shutdown(2);
  fixture.run_until([&] { return fixture.sink.events.size() == 2; });
  CHECK_EQ(fixture.sink.events[0].token, 1U);
  CHECK_EQ(fixture.sink.events[1].token, 2U);
  CHECK_EQ(fixture.transport->shutdowns.load(), 1);
  CHECK_EQ(fixture.sink.completions.size(), 10U);
  fixture.engine->close();
  fixture.engine->begin_shutdown(3);  // after the end: answered on the spot
  CHECK(!fixture.engine->drain(fixture.sink, 256));
  CHECK_EQ(fixture.sink.events.size(), 3U);
}

TEST("the destructor alone ends an engine in every state, and leaves no thread and no descriptor") {
  const Leftovers leftovers;
  { const Fixture idle; }
  {
    Fixture held(Mode::hold);
    held.submit_many(100);
  }
  {
    Fixture in_ring(Mode::hold);
    in_ring.transport->gate_closed = true;
    in_ring.submit_many(100);
    StandInTransport* transport = in_ring.transport;
    std::thread opener([transport] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      transport->gate_closed = false;
    });
    in_ring.engine.reset();
    opener.join();
  }
  {
    Fixture undrained;
    undrained.submit_many(100);
    CHECK(test::eventually([&] { return undrained.engine->counters().completed == 100; }));
  }
  {
    const Fixture undelivered;
    undelivered.engine->raise(event_of(EventKind::peer_down, 1));
    undelivered.engine->raise(event_of(EventKind::allocated, 1));
  }
  {
    Fixture half_way(Mode::hold);
    half_way.submit_many(100);
    half_way.engine->begin_shutdown(1);  // and nobody waits for the answer
  }
  {
    Fixture partly(Mode::hold);
    partly.submit_many(100);
    CHECK(test::eventually([&] { return partly.transport->held() == 100; }));
    partly.transport->complete_held();
    partly.engine->raise(event_of(EventKind::peer_down, 1));
    partly.engine->drain(partly.sink, 10);  // an event is held back, records are left
    CHECK(partly.sink.events.empty());
  }
  CHECK(leftovers.none());
}

TEST("shut down a hundred times with operations in every stage: one record each, then the event") {
  for (Token round = 0; round < 100; ++round) {
    Fixture fixture(round % 2 == 0 ? Mode::hold : Mode::complete_at_once);
    for (Token token = 0; token < round * 3; ++token) {
      fixture.submit(token);
      if (token % 16 == 0) {
        fixture.engine->drain(fixture.sink, 4);
      }
    }
    fixture.shut_down();
    CHECK_EQ(fixture.sink.completions.size(), round * 3);
    CHECK_EQ(fixture.transport->posted_after_shutdown.load(), 0U);
  }
}

TEST("in a forked child: descriptors closed, every call refused, the destructor returns; the parent does not notice") {
  Fixture fixture(Mode::hold);
  fixture.submit_many(10);
  CHECK(test::eventually([&] { return fixture.transport->held() == 10; }));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);  // not inherited
    const std::size_t before = test::entries("/proc/self/fd");
    Engine& engine = *fixture.engine;
    engine.abandon_after_fork();
    engine.abandon_after_fork();
    bool good = test::entries("/proc/self/fd") == before - 4;  // two doorbells, the control thread's epoll and eventfd
    good = good && engine.fd() == -1 && engine.closed() && engine.acquire() == nullptr;
    good = good && engine.transfer_now(1, {}, nullptr, false) == Status::closed && !engine.request_stop(1);
    good = good && !engine.drain(fixture.sink, 256) && engine.counters().submitted == 10;
    engine.begin_shutdown(1);
    engine.close();
    fixture.engine.reset();
    std::_Exit(good ? 0 : 1);
  }
  int status = -1;
  CHECK_EQ(::waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK_EQ(fixture.transport->complete_held(), 10U);
  fixture.run_until([&] { return fixture.sink.completions.size() == 10; });
  fixture.shut_down();
}

}  // namespace
}  // namespace hixl_aio

HIXL_TEST_MAIN
