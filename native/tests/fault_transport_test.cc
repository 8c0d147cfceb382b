// The fault transport between the core and a stand-in: every rule does what it says, each operation is completed once.
#include "transports/fault/fault_transport.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "check.h"
#include "core/engine.h"
#include "stand_in_transport.h"

namespace hixl_aio::fault {
namespace {

using test::StandInTransport;

struct Sink final : DrainSink {
  std::map<Token, std::vector<CompletionRecord>> records;
  std::vector<Token> order;
  std::vector<std::string> signals;
  std::vector<RuleId> told;
  void take(const SignalRecord& record) override { signals.push_back(record.name); }
  void complete(const CompletionRecord& record, const Op&) override {
    records[record.token].push_back(record);
    order.push_back(record.token);
  }
  void event(Event&& event) override {
    if (event.kind == EventKind::fault) {
      told.push_back(event.peer);
    }
  }
};

// An engine over a fault transport over a stand-in.
struct Scene {
  StandInTransport* inner = nullptr;
  FaultTransport* faults = nullptr;
  std::unique_ptr<Engine> engine;
  Sink sink;
  Token next_token = 1;
  std::map<Token, OpHandle> handles;

  explicit Scene(StandInTransport::Mode mode = StandInTransport::Mode::complete_at_once,
                 FaultTransport::Config config = {.manual_clock = true, .can_stop = true}, int workers = 0) {
    auto stand_in = std::make_unique<StandInTransport>();
    inner = stand_in.get();
    inner->mode = mode;
    if (workers > 0) {
      inner->use_workers(workers);
    }
    auto decorated = std::make_unique<FaultTransport>(std::move(stand_in), config);
    faults = decorated.get();
    engine = std::make_unique<Engine>(EngineConfig{.max_operations = 1024, .max_strays = 16}, std::move(decorated));
    std::string bound;
    std::string error;
    CHECK(ok(engine->start("here", bound, error)));
  }

  Status put(Token token, PeerId peer = 1, std::uint64_t nbytes = 64, const char* signal = nullptr) {
    Op* op = engine->acquire();
    op->token = token;
    op->peer = peer;
    op->kind = OpKind::put;
    Run run;
    run.local = reinterpret_cast<std::byte*>(0x10000);
    run.nbytes = nbytes;
    op->runs.push_back(run);
    op->signal.present = signal != nullptr;
    if (signal != nullptr) {
      op->signal.name = signal;
    }
    handles[token] = op->handle;
    return engine->submit(*op);
  }
  void drain() { engine->drain(sink, 256); }
  [[nodiscard]] bool has(Token token) {
    drain();
    return !sink.records[token].empty();
  }
  [[nodiscard]] bool gets(Token token) {
    return test::eventually([&] { return has(token); });
  }
  [[nodiscard]] bool catches(RuleId rule, std::size_t count = 1) {
    return test::eventually([&] { return faults->caught(rule) == count; });
  }
  RuleId rule(Rule rule) { return faults->add_rule(std::move(rule)); }
};

TEST("without a rule everything passes, and inline transfers stay inline") {
  Scene s;
  CHECK(ok(s.put(1)));
  CHECK(s.gets(1));
  CHECK(ok(s.engine->transfer_now(1, Run{.nbytes = 8}, nullptr, false)));
  CHECK_EQ(s.faults->pending(), 0U);
}

TEST("a held operation moves nothing until it is released, and is told of once") {
  Scene s;
  const RuleId hold = s.rule({.skip = 1});
  CHECK_EQ(s.engine->transfer_now(1, Run{.nbytes = 8}, nullptr, false), Status::would_block);
  CHECK(ok(s.put(1)));
  CHECK(ok(s.put(2)));
  CHECK(ok(s.put(3)));
  CHECK(s.gets(1));
  CHECK(s.gets(3));
  CHECK(s.catches(hold));
  CHECK(!s.has(2));
  CHECK_EQ(s.inner->posted.load(), 2U);
  CHECK_EQ(s.faults->release_held(hold, -1), 1U);
  CHECK(s.gets(2));
  CHECK_EQ(s.inner->posted.load(), 3U);
  CHECK(s.sink.told == std::vector<RuleId>{hold});
  CHECK_EQ(s.faults->hits(hold), 1U);
  CHECK_EQ(s.faults->release_held(hold, -1), 0U);
  CHECK(ok(s.engine->transfer_now(1, Run{.nbytes = 8}, nullptr, false)));
}

TEST("a held operation that is asked to stop ends as stopped, unless it cannot be") {
  for (const bool can_stop : {true, false}) {
    Scene s(StandInTransport::Mode::complete_at_once, {.manual_clock = true, .can_stop = can_stop});
    const RuleId hold = s.rule({});
    CHECK(ok(s.put(1)));
    CHECK(s.catches(hold));
    CHECK(s.engine->request_stop(s.handles[1]));
    if (can_stop) {
      CHECK(s.gets(1));
      CHECK_EQ(s.sink.records[1].front().status, Status::stopped);
    } else {
      s.faults->release_held(hold, 0);
      CHECK(s.gets(1));
      CHECK_EQ(s.sink.records[1].front().status, Status::ok);
    }
  }
}

TEST("held at half: the first half is an operation of its own, the rest follows on release") {
  Scene s;
  const RuleId hold = s.rule({.at = HoldPoint::half});
  CHECK(ok(s.put(1, 1, 101)));
  CHECK(s.catches(hold));
  CHECK_EQ(s.inner->posted.load(), 1U);
  CHECK(!s.has(1));
  s.faults->release_held(hold, -1);
  CHECK(s.gets(1));
  CHECK_EQ(s.inner->posted.load(), 2U);
  CHECK_EQ(s.inner->released.load(), 2U);
  CHECK_EQ(s.faults->pending(), 0U);
}

TEST("held when it has landed, or when its signal is out: the record waits") {
  for (const HoldPoint at : {HoldPoint::landed, HoldPoint::signalled}) {
    Scene s;
    const RuleId hold = s.rule({.at = at});
    CHECK(ok(s.put(1, 1, 64, "done")));
    CHECK(test::eventually([&] {
      s.drain();
      return s.faults->caught(hold) == 1;
    }));
    CHECK_EQ(s.inner->posted.load(), 1U);
    CHECK(!s.has(1));
    CHECK_EQ(s.inner->sent.load(), at == HoldPoint::landed ? 0U : 1U);
    s.faults->release_held(hold, -1);
    CHECK_EQ(s.inner->sent.load(), 1U);
    CHECK(s.has(1));  // within the call: nothing else has to happen
    CHECK_EQ(s.sink.records[1].front().status, Status::ok);
  }
}

TEST("a failure moves nothing and sends the negative signal first; a latch fails what follows, not quiescent") {
  Scene s;
  s.rule({.action = Action::fail, .status = Status::failed});
  CHECK(ok(s.put(1, 1, 64, "done")));
  CHECK(s.gets(1));
  CHECK_EQ(s.sink.records[1].front().status, Status::failed);
  CHECK(s.sink.records[1].front().quiescent);
  CHECK_EQ(s.inner->sent.load(), 1U);
  CHECK_EQ(s.inner->last_sent_status.load(), Status::failed);
  s.rule({.action = Action::latch, .peer = 2});
  for (const Token token : {2, 3, 4}) {
    CHECK(ok(s.put(token, token == 4 ? 3 : 2)));
    CHECK(s.gets(token));
    CHECK_EQ(s.sink.records[token].front().status, token == 4 ? Status::ok : Status::failed);
    CHECK_EQ(s.sink.records[token].front().quiescent, token == 4);
  }
  CHECK_EQ(s.inner->posted.load(), 1U);
}

TEST("a lie: the record says failed and not quiescent, the bytes move when it is released") {
  Scene s;
  const RuleId lie = s.rule({.action = Action::lie});
  CHECK(ok(s.put(1)));
  CHECK(s.gets(1));
  CHECK_EQ(s.sink.records[1].front().status, Status::failed);
  CHECK(!s.sink.records[1].front().quiescent);
  CHECK_EQ(s.inner->posted.load(), 0U);
  CHECK_EQ(s.faults->caught(lie), 1U);
  CHECK_EQ(s.faults->release_held(lie, -1), 1U);
  CHECK(test::eventually([&] { return s.faults->pending() == 0; }));
  CHECK_EQ(s.inner->posted.load(), 1U);
  CHECK_EQ(s.inner->released.load(), 2U);
}

TEST("a lost record comes when it is released, or when its link is torn down; a repeated one matches nothing") {
  Scene s;
  const RuleId lose = s.rule({.action = Action::lose, .count = 2});
  CHECK(ok(s.put(1, 1)));
  CHECK(ok(s.put(2, 2)));
  CHECK(s.catches(lose, 2));
  CHECK(!s.has(1));
  s.faults->release_held(lose, 0);
  CHECK(s.gets(1));
  Event down;
  down.kind = EventKind::peer_down;
  down.peer = 2;
  s.inner->host->peer_ending(2, Status::peer_lost);
  s.inner->host->raise(std::move(down));
  CHECK(s.gets(2));
  CHECK_EQ(s.sink.records[2].front().status, Status::lost);
  s.rule({.action = Action::duplicate});
  CHECK(ok(s.put(3)));
  CHECK(s.gets(3));
  CHECK(test::eventually([&] {
    s.drain();
    return s.engine->counters().strays == 1;
  }));
  CHECK_EQ(s.sink.records[3].size(), 1U);
  CHECK_EQ(s.engine->counters().in_flight, 0U);
}

TEST("a window is posted in reverse; a refusal is the answer of submit") {
  Scene s;
  s.rule({.action = Action::reorder, .count = 3, .window = 3});
  for (const Token token : {1, 2, 3}) {
    CHECK(ok(s.put(token)));
  }
  for (const Token token : {1, 2, 3}) {
    CHECK(s.gets(token));
  }
  CHECK((s.sink.order == std::vector<Token>{3, 2, 1}));
  s.rule({.action = Action::refuse, .status = Status::queue_full});
  CHECK_EQ(s.put(4), Status::queue_full);
  CHECK(test::readable(s.engine->fd()));  // so that whoever was refused tries again
  CHECK(ok(s.put(5)));
  CHECK(s.gets(5));
}

TEST("time goes on only as it is told: a delay, and a throttled link") {
  Scene s;
  s.rule({.action = Action::delay, .seconds = 1.0});
  CHECK(ok(s.put(1)));
  CHECK(test::eventually([&] { return s.faults->pending() == 1; }));
  s.faults->advance(0.5);
  CHECK(!s.has(1));
  s.faults->advance(0.6);
  CHECK(s.gets(1));
  s.faults->throttle(100.0, 1.0);
  CHECK(ok(s.put(2, 1, 100)));
  CHECK(ok(s.put(3, 1, 100)));
  CHECK(test::eventually([&] { return s.faults->pending() == 2; }));
  s.faults->advance(2.1);  // carried after 1 s, there after 2 s
  CHECK(s.gets(2));
  CHECK(!s.has(3));
  s.faults->advance(1.0);
  CHECK(s.gets(3));
}

TEST("the real clock wakes the transport by itself") {
  Scene s(StandInTransport::Mode::complete_at_once, {});
  s.rule({.action = Action::delay, .seconds = 0.02});
  CHECK(ok(s.put(1)));
  CHECK(s.gets(1));
}

TEST("arriving signals are dropped, doubled, or stand still with their peer") {
  Scene s;
  s.rule({.action = Action::drop_signal, .signal = "a"});
  s.rule({.action = Action::duplicate_signal, .signal = "b"});
  s.inner->arrive(1, "a");
  s.inner->arrive(1, "b");
  s.inner->arrive(1, "a");
  s.drain();
  CHECK((s.sink.signals == std::vector<std::string>{"b", "b", "a"}));
  s.sink.signals.clear();
  s.faults->freeze(2);
  s.inner->arrive(2, "c");
  s.inner->arrive(1, "d");
  CHECK(ok(s.put(1, 2)));
  CHECK(ok(s.put(2, 1)));
  CHECK(s.gets(2));
  CHECK(!s.has(1));
  CHECK((s.sink.signals == std::vector<std::string>{"d"}));
  s.faults->thaw(2);
  CHECK(s.gets(1));
  CHECK((s.sink.signals == std::vector<std::string>{"d", "c"}));
}

TEST("the end of a peer, or of the engine, ends all that was kept: one record each") {
  for (const bool whole_engine : {false, true}) {
    Scene s;
    for (const HoldPoint at : {HoldPoint::posted, HoldPoint::half, HoldPoint::landed, HoldPoint::signalled}) {
      s.rule({.at = at});
    }
    s.rule({.action = Action::lose});
    s.rule({.action = Action::lie});
    for (Token token = 1; token <= 6; ++token) {
      CHECK(ok(s.put(token, 1, 64, token == 6 ? nullptr : "s")));
    }
    CHECK(s.gets(6));
    CHECK(test::eventually([&] {
      s.drain();
      return s.faults->caught(1) + s.faults->caught(2) + s.faults->caught(3) + s.faults->caught(4) + s.faults->caught(5) ==
             5;
    }));
    if (whole_engine) {
      s.engine->begin_shutdown(99);
    } else {
      s.inner->host->peer_ending(1, Status::peer_lost);
    }
    for (Token token = 1; token <= 5; ++token) {
      CHECK(s.gets(token));
      CHECK_EQ(s.sink.records[token].size(), 1U);
      CHECK(s.sink.records[token].front().quiescent);
    }
    CHECK(test::eventually([&] { return s.faults->pending() == 0; }));
    CHECK_EQ(s.inner->admitted.load(), s.inner->released.load());
  }
}

TEST("a hundred thousand operations under many rules, with workers and stops: one record each, nothing is left") {
  constexpr int rounds = test::sanitized ? 100 : 500;
  constexpr Token width = 200;
  Scene s(StandInTransport::Mode::workers, {}, 3);
  Token next = 1;
  for (int round = 0; round < rounds; ++round) {
    std::vector<RuleId> rules;
    for (const HoldPoint at : {HoldPoint::posted, HoldPoint::half, HoldPoint::landed, HoldPoint::signalled}) {
      rules.push_back(s.rule({.at = at, .skip = 3, .count = 15}));
    }
    for (const Action action : {Action::delay, Action::fail, Action::lie, Action::lose, Action::duplicate}) {
      rules.push_back(s.rule({.action = action, .skip = 3, .count = 15, .seconds = 0.0001}));
    }
    const Token end = next + width;
    for (; next < end; ++next) {
      CHECK(ok(s.put(next, static_cast<PeerId>(next % 3 + 1), next % 100, next % 2 == 0 ? "s" : nullptr)));
      if (next % 5 == 0) {
        s.engine->request_stop(s.handles[next]);
      }
      if (next % 7 == 0) {
        s.faults->release_held(rules[next % rules.size()], 0);
      }
    }
    const bool all = test::eventually([&] {
      for (const RuleId rule : rules) {
        s.faults->release_held(rule, -1);
      }
      s.drain();
      return s.sink.order.size() == next - 1 && s.faults->pending() == 0;
    });
    if (!all) {
      test::give_up("an operation under a rule did not end");
    }
    s.faults->clear_rules();
  }
  for (const auto& [token, records] : s.sink.records) {
    CHECK_EQ(records.size(), 1U);
  }
  CHECK_EQ(s.inner->admitted.load(), s.inner->released.load());
}

}  // namespace
}  // namespace hixl_aio::fault

HIXL_TEST_MAIN
