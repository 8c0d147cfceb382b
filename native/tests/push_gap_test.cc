// What comes up in which order when a producer is preempted in the middle of a push (INV-1, INV-8).
//
// Between taking a place in the ring and publishing it there is a gap of a few instructions; everything pushed behind it
// is complete and cannot be taken yet. No stress meets it reliably, so this program stops a producer in it.
#include "check.h"
#include "core/engine.h"
#include "stand_in_transport.h"

namespace hixl_aio {

namespace {
thread_local bool stops_in_gap = false;
std::atomic<bool> in_gap{false};
std::atomic<bool> may_leave{false};
}  // namespace

void push_gap() noexcept {
  if (stops_in_gap) {
    in_gap = true;
    while (!may_leave) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

namespace {

struct Sink final : DrainSink {
  std::vector<Token> tokens;
  std::vector<EventKind> events;
  void take(const SignalRecord&) override {}
  void complete(const CompletionRecord& record, const Op&) override { tokens.push_back(record.token); }
  void event(Event&& event) override { events.push_back(event.kind); }
};

TEST("a peer_down is held back while the peer's record is hidden behind a producer in the middle of a push") {
  auto owned = std::make_unique<test::StandInTransport>();
  test::StandInTransport& transport = *owned;
  transport.mode = test::StandInTransport::Mode::hold;
  Engine engine({}, std::move(owned));
  std::string bound;
  std::string error;
  REQUIRE(ok(engine.start("here", bound, error)));
  Sink sink;
  auto submit = [&](Token token) {
    Op* op = engine.acquire();
    op->token = token;
    CHECK(ok(engine.submit(*op)));
    CHECK(test::eventually([&] { return transport.held() == 1; }));
  };

  // A thread completes operation 1 and stops in the middle of it.
  submit(1);
  std::thread slow([&] {
    stops_in_gap = true;
    transport.complete_held();
  });
  CHECK(test::eventually([&] { return in_gap.load(); }));
  // Operation 2 is completed behind it, and then its peer is gone.
  submit(2);
  transport.complete_held();
  Event down;
  down.kind = EventKind::peer_down;
  engine.raise(std::move(down));

  // The ring looks empty and is not.
  for (int look = 0; look < 3; ++look) {
    engine.drain(sink, 256);
    CHECK(sink.tokens.empty());
    CHECK(sink.events.empty());
  }
  // Nothing spins meanwhile: whoever is in the middle of a push has its own ring to do, and does it.
  CHECK(!test::readable(engine.fd()));
  may_leave = true;
  if (!test::readable(engine.fd(), 10'000)) {
    test::lost_wakeup("the producer left the gap in silence");
  }
  engine.drain(sink, 256);
  CHECK(sink.tokens == (std::vector<Token>{1, 2}));
  CHECK(sink.events == (std::vector<EventKind>{EventKind::peer_down}));
  slow.join();
}

}  // namespace
}  // namespace hixl_aio

HIXL_TEST_MAIN
