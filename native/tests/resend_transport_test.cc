// Two engines whose notifications get lost, repeated and reordered: the resend transport hides it from both.
#include "transports/resend/resend_transport.h"

#include <atomic>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "core/engine.h"
#include "stand_in_transport.h"

namespace hixl_aio::resend {
namespace {

using test::StandInTransport;

constexpr PeerId kOther = 7;  // what each of the two calls the other

// What one engine says goes to the other one's stand-in, or gets lost on the way.
class Wire final : public Decorator {
 public:
  explicit Wire(std::unique_ptr<StandInTransport> inner) : Decorator(std::move(inner)) {
    capabilities_.signals_lossless = false;
  }
  StandInTransport* other = nullptr;
  // In percent, by a generator with a seed.
  unsigned loses = 0;
  unsigned repeats = 0;
  unsigned reorders = 0;
  std::mt19937 random{20240229};
  bool cut = false;
  bool full = false;
  bool stopped = false;  // the other process
  bool broken = false;  // and nobody has said so yet
  std::uint64_t frames = 0;
  std::vector<std::pair<Token, bool>> disconnects;

  std::atomic<std::uint64_t> ended{0};  // operations

  Status send_signal(PeerId, std::string_view name, std::string_view payload, Status status,
                     bool reserved) noexcept override {
    CHECK(!reserved);  // such a transport keeps no places
    if (full || broken || gone_.load()) {
      return full ? Status::signal_queue_full : Status::peer_lost;
    }
    ++frames;
    if (cut || hits(loses)) {
      return Status::ok;
    }
    const SignalRecord record{kOther, 0, status, std::string(name), std::string(payload)};
    for (int copies = hits(repeats) ? 2 : 1; copies > 0; --copies) {
      late_.push_back(record);
      if (!hits(reorders)) {
        flush();
      }
    }
    return Status::ok;
  }
  // What was kept back comes after what was sent later.
  void flush() {
    for (; !late_.empty(); late_.pop_back()) {
      const SignalRecord& record = late_.back();
      other->arrive(kOther, record.name, record.payload, record.status);
    }
  }
  Status reserve_signal(PeerId) noexcept override { return gone_.load() ? Status::peer_lost : Status::ok; }
  void disconnect(Token token, PeerId peer, bool abort) override {
    disconnects.emplace_back(token, abort);
    go_down(Status::peer_closed);
    Event event;
    event.kind = EventKind::disconnected;
    event.token = token;
    event.peer = peer;
    raise(std::move(event));
  }
  bool peer_info(PeerId, PeerInfo& out) override {
    out.state = stopped ? PeerState::suspect : PeerState::connected;
    return true;
  }
  void tell_ending(Status status) { peer_ending(kOther, status); }
  // Any thread. As a transport does: the end is told at once, the event comes when all operations have ended.
  void go_down(Status status, std::uint64_t operations = 0) {
    if (gone_.exchange(true)) {
      return;
    }
    tell_ending(status);
    CHECK(test::eventually([&] { return ended.load() >= operations; }));
    Event event;
    event.kind = EventKind::peer_down;
    event.peer = kOther;
    event.status = status;
    raise(std::move(event));
  }

 private:
  bool hits(unsigned percent) { return percent > 0 && random() % 100 < percent; }
  void complete(Op& op, Status status, bool quiescent) noexcept override {
    Decorator::complete(op, status, quiescent);
    ended.fetch_add(1);
  }

  std::atomic<bool> gone_{false};
  std::vector<SignalRecord> late_;
};

struct Sink final : DrainSink {
  std::vector<SignalRecord> signals;
  std::map<Token, std::vector<CompletionRecord>> records;
  std::vector<Event> events;
  std::size_t records_before_the_end = 0;  // of the peer
  void take(const SignalRecord& record) override { signals.push_back(record); }
  void complete(const CompletionRecord& record, const Op&) override { records[record.token].push_back(record); }
  void event(Event&& event) override {
    if (event.kind == EventKind::peer_down) {
      records_before_the_end = records.size();
    }
    events.push_back(std::move(event));
  }
};

struct Node {
  StandInTransport* inner = nullptr;
  Wire* wire = nullptr;
  ResendTransport* resend = nullptr;
  std::unique_ptr<Engine> engine;
  Sink sink;

  Node(Config config, StandInTransport::Mode mode, int workers) {
    auto stand_in = std::make_unique<StandInTransport>();
    inner = stand_in.get();
    inner->mode = mode;
    if (workers > 0) {
      inner->use_workers(workers);
    }
    auto lossy = std::make_unique<Wire>(std::move(stand_in));
    wire = lossy.get();
    auto whole = std::make_unique<ResendTransport>(std::move(lossy), config);
    resend = whole.get();
    engine = std::make_unique<Engine>(EngineConfig{.max_operations = 1024, .max_strays = 0}, std::move(whole));
    std::string bound;
    std::string error;
    CHECK(ok(engine->start("here", bound, error)));
  }
  Status send(const std::string& name, const std::string& payload = "", Status status = Status::ok) {
    return resend->send_signal(kOther, name, payload, status, false);
  }
  Status put(Token token, const std::string& signal) {
    static_cast<void>(resend->reserve_signal(kOther));
    Op* op = engine->acquire();
    op->token = token;
    op->peer = kOther;
    Run run;
    run.local = reinterpret_cast<std::byte*>(0x10000);
    run.nbytes = 64;
    op->runs.push_back(run);
    op->signal.present = true;
    op->signal.name = signal;
    op->signal.payload = "p";
    return engine->submit(*op);
  }
  void drain() { engine->drain(sink, 256); }
  [[nodiscard]] std::size_t downs() const {
    std::size_t count = 0;
    for (const Event& event : sink.events) {
      count += event.kind == EventKind::peer_down ? 1U : 0U;
    }
    return count;
  }
};

struct Scene {
  Node near;
  Node far;
  explicit Scene(Config config = {.capacity = 64, .manual_clock = true},
                 StandInTransport::Mode mode = StandInTransport::Mode::complete_at_once, int workers = 0)
      : near(config, mode, workers), far(config, StandInTransport::Mode::complete_at_once, 0) {
    near.wire->other = far.inner;
    far.wire->other = near.inner;
  }
  void drain() {
    for (Node* node : {&near, &far, &near}) {
      node->drain();
    }
  }
  void advance(double seconds) {
    near.resend->advance(seconds);
    far.resend->advance(seconds);
    drain();
  }
  // Every name that has arrived at the other end, in order.
  [[nodiscard]] std::string heard() const {
    std::string text;
    for (const SignalRecord& record : far.sink.signals) {
      text += record.name;
    }
    return text;
  }
};

// Sends numbered signals both ways until `count` have arrived each way; checks each.
void exchange(Scene& s, std::uint64_t count) {
  std::uint64_t sent[2] = {0, 0};
  std::uint64_t got[2] = {0, 0};
  Node* nodes[2] = {&s.near, &s.far};
  for (std::uint64_t idle = 0; got[0] < count || got[1] < count; ++idle) {
    for (int side = 0; side < 2; ++side) {
      while (sent[side] < count &&
             ok(nodes[side]->send("n" + std::to_string(sent[side] % 10), std::to_string(sent[side] + 1)))) {
        ++sent[side];
      }
      Node& node = *nodes[1 - side];
      node.wire->flush();
      node.drain();
      for (const SignalRecord& record : node.sink.signals) {
        const std::uint64_t number = ++got[side];
        if (record.sequence != number || record.payload != std::to_string(number) || record.peer != kOther ||
            record.name != "n" + std::to_string((number - 1) % 10)) {
          test::fail(__FILE__, __LINE__,
                     "signal " + record.payload + " has sequence " + std::to_string(record.sequence) +
                         " and came as number " + std::to_string(number));
          return;
        }
        node.resend->signals_taken(kOther, 1);
        idle = 0;
      }
      node.sink.signals.clear();
    }
    nodes[0]->resend->advance(0.01);
    nodes[1]->resend->advance(0.01);
    if (idle > 100'000) {
      test::give_up("signals stopped arriving");
    }
  }
}

TEST("a hundred thousand signals each way over a wire that loses, repeats and reorders: each once, in order") {
  Scene s({.capacity = 256, .tries = 1000, .manual_clock = true});
  for (Node* node : {&s.near, &s.far}) {
    node->wire->loses = 30;
    node->wire->repeats = 10;
    node->wire->reorders = 20;
  }
  s.far.wire->random.seed(1);
  exchange(s, 100'000);
  s.near.wire->loses = s.far.wire->loses = 0;
  for (int turn = 0; turn < 10; ++turn) {
    s.advance(1.0);
  }
  CHECK_EQ(s.near.resend->pending() + s.far.resend->pending(), 0U);
  CHECK_EQ(s.near.downs() + s.far.downs(), 0U);
  const std::uint64_t before = s.near.wire->frames + s.far.wire->frames;
  s.advance(10.0);
  CHECK_EQ(s.near.wire->frames + s.far.wire->frames, before);  // who has nothing to say is silent
}

TEST("without losses each signal is sent once, and acknowledged once per drain") {
  Scene s;
  for (int number = 0; number < 50; ++number) {
    CHECK(ok(s.near.send("s")));
  }
  s.drain();
  CHECK_EQ(s.far.sink.signals.size(), 50U);
  CHECK_EQ(s.near.wire->frames, 50U);
  CHECK_EQ(s.far.wire->frames, 1U);
  CHECK_EQ(s.near.resend->pending(), 0U);
}

TEST("a filled gap lets all of it come, yet one drain takes no more than it may") {
  Scene s;
  s.near.wire->cut = true;
  CHECK(ok(s.near.send("a")));
  s.near.wire->cut = false;
  for (int number = 0; number < 20; ++number) {
    CHECK(ok(s.near.send("b")));
  }
  s.drain();
  CHECK_EQ(s.heard(), "");
  s.near.resend->advance(0.03);
  s.near.drain();
  for (const std::size_t expected : {8U, 16U, 21U}) {
    CHECK_EQ(s.far.engine->drain(s.far.sink, 8), expected < 21);
    CHECK_EQ(s.heard(), ("a" + std::string(20, 'b')).substr(0, expected));
  }
}

TEST("a full queue refuses and loses nothing; the places come back when the application takes, also if that news is lost") {
  Scene s({.capacity = 3, .manual_clock = true});
  for (const char* name : {"a", "b", "c"}) {
    CHECK(ok(s.near.send(name)));
  }
  CHECK_EQ(s.near.send("x"), Status::signal_queue_full);  // not acknowledged
  s.drain();
  CHECK_EQ(s.near.resend->pending(), 0U);
  CHECK_EQ(s.near.send("x"), Status::signal_queue_full);  // not read
  s.drain();
  s.far.resend->signals_taken(kOther, 1);
  s.far.drain();
  s.near.drain();
  CHECK(ok(s.near.resend->reserve_signal(kOther)));
  CHECK_EQ(s.near.resend->reserve_signal(kOther), Status::signal_queue_full);
  s.near.resend->unreserve_signal(kOther);
  CHECK(ok(s.near.send("d")));
  s.drain();
  s.far.wire->cut = true;
  s.far.resend->signals_taken(kOther, 3);
  s.far.drain();
  s.far.wire->cut = false;
  s.near.drain();
  CHECK_EQ(s.near.send("e"), Status::signal_queue_full);  // which asks again
  s.drain();
  for (const char* name : {"e", "f", "g"}) {
    CHECK(ok(s.near.send(name)));
  }
  CHECK_EQ(s.near.send("x"), Status::signal_queue_full);
  s.drain();
  CHECK_EQ(s.heard(), "abcdefg");
}

TEST("a target with fewer places than its sender believes takes no more than it has room for, and gets the rest later") {
  Scene s;
  Node narrow({.capacity = 2, .manual_clock = true}, StandInTransport::Mode::complete_at_once, 0);
  s.near.wire->other = narrow.inner;
  narrow.wire->other = s.near.inner;
  for (const char* name : {"a", "b", "c", "d"}) {
    CHECK(ok(s.near.send(name)));
  }
  std::string heard;
  for (int turn = 0; turn < 8; ++turn) {
    narrow.drain();
    CHECK(narrow.sink.signals.size() <= 2);
    for (const SignalRecord& record : narrow.sink.signals) {
      heard += record.name;
      narrow.resend->signals_taken(kOther, 1);
    }
    narrow.sink.signals.clear();
    s.near.resend->advance(1.0);
    s.near.drain();
  }
  CHECK_EQ(heard, "abcd");
}

TEST("no room on the wire is no loss: it is sent when there is room") {
  Scene s;
  s.near.wire->full = true;
  CHECK(ok(s.near.send("a")));
  CHECK(ok(s.near.send("b")));
  s.near.wire->full = false;
  s.near.drain();
  s.drain();
  CHECK_EQ(s.heard(), "ab");
}

TEST("timeouts double up to a limit; a peer that stays silent is taken for broken, and the link is torn down once") {
  Scene s({.capacity = 64, .first_timeout = 1.0, .longest_timeout = 4.0, .tries = 5, .manual_clock = true});
  s.near.wire->cut = true;
  CHECK(ok(s.near.send("a")));
  // After 1, then 2, then 4 seconds each.
  for (const std::uint64_t frames : {1U, 2U, 2U, 3U, 3U, 3U, 3U, 4U, 4U, 4U, 4U, 5U, 5U, 5U, 5U, 6U}) {
    CHECK_EQ(s.near.wire->frames, frames);
    s.advance(1.0);
  }
  CHECK_EQ(s.near.downs(), 0U);
  s.advance(3.0);
  s.advance(3.0);
  CHECK_EQ(s.near.wire->disconnects.size(), 1U);
  CHECK(s.near.wire->disconnects.front().second);  // an abort
  CHECK_EQ(s.near.sink.events.size(), 1U);         // and no answer to a request that nobody made
  CHECK_EQ(s.near.sink.events.front().kind, EventKind::peer_down);
  CHECK_EQ(s.near.sink.events.front().status, Status::peer_lost);
  CHECK(s.near.sink.events.front().text.find("acknowledged no signal after 0 in 5 tries") != std::string::npos);
  CHECK_EQ(s.near.send("b"), Status::peer_lost);
  s.near.resend->forget_peer(kOther);
  CHECK_EQ(s.near.resend->pending(), 0U);
}

TEST("whoever answers is not broken, however long one signal takes") {
  Scene s({.capacity = 64, .first_timeout = 1.0, .longest_timeout = 1.0, .tries = 3, .manual_clock = true});
  CHECK(ok(s.near.send("a")));
  s.drain();
  for (int turn = 0; turn < 20; ++turn) {
    s.near.wire->cut = true;
    CHECK(ok(turn == 0 ? s.near.send("b") : Status::ok));
    s.advance(1.0);
    s.near.wire->cut = false;
    s.far.resend->signals_taken(kOther, 0);  // it says where it is
    s.drain();
  }
  CHECK_EQ(s.near.downs(), 0U);
  s.advance(1.0);
  CHECK_EQ(s.heard(), "ab");
}

TEST("a process that is stopped is silent, and not broken") {
  Scene s({.capacity = 64, .first_timeout = 1.0, .longest_timeout = 1.0, .tries = 3, .manual_clock = true});
  s.near.wire->cut = s.near.wire->stopped = true;
  CHECK(ok(s.near.send("a")));
  for (int turn = 0; turn < 20; ++turn) {
    s.advance(1.0);
  }
  CHECK_EQ(s.near.downs(), 0U);
  s.near.wire->cut = s.near.wire->stopped = false;
  s.near.resend->advance(1.0);  // the first look after it goes on
  s.near.drain();
  CHECK_EQ(s.near.downs(), 0U);
}

TEST("a peer that goes down: what was kept is dropped, bound operations end once, nothing is sent any more") {
  Scene s({.capacity = 64, .manual_clock = true}, StandInTransport::Mode::hold);
  s.near.wire->cut = true;
  CHECK(ok(s.near.send("a")));
  CHECK(ok(s.near.put(1, "s")));
  CHECK(ok(s.near.put(2, "t")));
  CHECK(test::eventually([&] { return s.near.inner->held() == 2; }));
  s.near.inner->complete_held();  // landed, and the loop has not looked yet
  CHECK(ok(s.near.put(3, "u")));
  CHECK(test::eventually([&] { return s.near.inner->held() == 1; }));
  s.near.wire->tell_ending(Status::peer_lost);
  CHECK_EQ(s.near.engine->counters().completed, 2U);  // now, whenever the loop looks
  s.near.inner->complete_held();
  CHECK_EQ(s.near.engine->counters().completed, 3U);
  s.near.wire->go_down(Status::peer_lost);
  s.near.drain();
  for (const Token token : {1, 2, 3}) {
    CHECK_EQ(s.near.sink.records[token].size(), 1U);
    CHECK_EQ(s.near.sink.records[token].front().status, Status::peer_lost);
  }
  CHECK_EQ(s.near.downs(), 1U);
  CHECK_EQ(s.near.send("b"), Status::peer_lost);
  s.near.resend->forget_peer(kOther);
  CHECK_EQ(s.near.resend->pending(), 0U);
  CHECK_EQ(s.near.inner->admitted.load(), s.near.inner->released.load());
}

TEST("the last words of a peer that goes: up to the first gap") {
  Scene s;
  for (const char* name : {"a", "b", "c", "d"}) {
    s.near.wire->cut = name[0] == 'c';
    CHECK(ok(s.near.send(name)));
  }
  s.far.wire->go_down(Status::peer_lost);
  s.far.drain();
  CHECK_EQ(s.heard(), "ab");
  CHECK_EQ(s.far.downs(), 1U);
  s.far.resend->forget_peer(kOther);
  CHECK_EQ(s.far.resend->pending(), 0U);
}

TEST("an orderly disconnect waits for acknowledgements, but not for ever, and an abort not at all") {
  for (const int way : {0, 1, 2, 3}) {
    Scene s({.capacity = 64, .linger = 0.5, .manual_clock = true});
    s.near.wire->cut = true;
    CHECK(ok(s.near.send("a")));
    s.near.resend->disconnect(41, kOther, way == 2);
    s.drain();
    CHECK_EQ(s.near.wire->disconnects.size(), way == 2 ? 1U : 0U);
    CHECK_EQ(s.near.send("b"), way == 2 ? Status::peer_lost : Status::peer_closed);
    if (way == 0) {
      s.near.wire->cut = false;
      s.advance(0.03);
      CHECK_EQ(s.heard(), "a");
    } else if (way == 1) {
      s.advance(0.4);
      CHECK(s.near.wire->disconnects.empty());
      s.advance(0.2);
    } else if (way == 3) {
      s.near.resend->disconnect(42, kOther, true);  // somebody has lost patience
      s.drain();
      CHECK_EQ(s.near.sink.events.size(), 3U);
    }
    CHECK_EQ(s.near.wire->disconnects.front().first, 41U);
    s.drain();
    CHECK_EQ(s.near.sink.events.at(1).kind, EventKind::disconnected);
    CHECK_EQ(s.near.sink.events.at(1).token, 41U);
  }
}

TEST("a disconnect that waits is answered when the peer goes by itself") {
  Scene s;
  s.near.wire->cut = true;
  CHECK(ok(s.near.send("a")));
  s.near.resend->disconnect(41, kOther, false);
  s.near.wire->go_down(Status::peer_lost);
  s.near.drain();
  s.near.resend->forget_peer(kOther);
  s.near.drain();
  CHECK_EQ(s.near.sink.events.back().kind, EventKind::disconnected);
  CHECK_EQ(s.near.sink.events.back().token, 41U);
}

TEST("a bound signal is sent after its bytes and before its record; in the negative form if they did not move") {
  for (const Status status : {Status::ok, Status::failed}) {
    Scene s({.capacity = 64, .manual_clock = true}, StandInTransport::Mode::hold);
    CHECK(ok(s.near.put(1, "s")));
    CHECK(test::eventually([&] { return s.near.inner->held() == 1; }));
    s.drain();
    CHECK_EQ(s.near.wire->frames, 0U);
    s.near.inner->complete_held(status);
    CHECK_EQ(s.near.wire->frames, 0U);  // not from here: the loop thread sends
    s.near.drain();
    CHECK_EQ(s.near.wire->frames, 1U);
    CHECK(s.near.sink.records.empty());
    s.drain();
    CHECK_EQ(s.near.sink.records[1].size(), 1U);
    CHECK_EQ(s.near.sink.records[1].front().status, status);
    CHECK_EQ(s.far.sink.signals.size(), 1U);
    CHECK_EQ(s.far.sink.signals.front().name, "s");
    CHECK_EQ(s.far.sink.signals.front().payload, "p");
    CHECK_EQ(s.far.sink.signals.front().status, status);
    CHECK_EQ(s.near.inner->sent.load(), 0U);
    CHECK_EQ(s.near.resend->pending(), 0U);
  }
}

TEST("an operation whose signal cannot be sent any more did not succeed") {
  Scene s({.capacity = 64, .manual_clock = true}, StandInTransport::Mode::hold);
  CHECK(ok(s.near.put(1, "s")));
  CHECK(test::eventually([&] { return s.near.inner->held() == 1; }));
  s.near.wire->broken = true;
  s.near.inner->complete_held();
  s.drain();
  CHECK_EQ(s.near.sink.records[1].size(), 1U);
  CHECK_EQ(s.near.sink.records[1].front().status, Status::peer_lost);
}

TEST("an inline transfer sends its signal itself; what the inner transport refuses takes no number") {
  Scene s;
  const SignalText text{true, "s", "p"};
  CHECK(ok(s.near.resend->reserve_signal(kOther)));
  CHECK_EQ(s.near.engine->transfer_now(kOther, Run{.nbytes = 100}, &text, true), Status::would_block);
  CHECK(ok(s.near.engine->transfer_now(kOther, Run{.nbytes = 8}, &text, true)));
  CHECK(ok(s.near.engine->transfer_now(kOther, Run{.nbytes = 8}, nullptr, false)));
  s.near.inner->admit_answer.store(Status::stale_region);
  CHECK_EQ(s.near.put(1, "t"), Status::stale_region);
  CHECK(ok(s.near.resend->send_signal(kOther, "t", "", Status::stale_region, true)));  // as the core does then
  s.drain();
  CHECK_EQ(s.heard(), "st");
  CHECK_EQ(s.far.sink.signals.back().sequence, 2U);
}

TEST("a signal is checked before anything moves: the frame's number takes a part of the payload") {
  Scene s;
  const std::uint32_t most = s.near.resend->capabilities().max_signal_payload;
  CHECK_EQ(most, kMaxSignalNbytes - kHeaderNbytes);
  CHECK(s.near.resend->capabilities().signals_lossless);
  CHECK(!s.near.wire->capabilities().signals_lossless);
  CHECK(ok(s.near.send(std::string(kMaxSignalNbytes, 'n'), std::string(most, 'p'))));
  for (const auto& [name, payload] : {std::pair(std::string("n"), std::string(most + 1, 'p')),
                                      std::pair(std::string(kMaxSignalNbytes + 1, 'n'), std::string()),
                                      std::pair(std::string(), std::string("p"))}) {
    CHECK_EQ(s.near.send(name, payload), Status::invalid_argument);
    const SignalText text{true, name, payload};
    CHECK_EQ(s.near.engine->transfer_now(kOther, Run{.nbytes = 8}, &text, true), Status::invalid_argument);
    Op* op = s.near.engine->acquire();
    op->peer = kOther;
    op->signal.present = true;
    op->signal.name = name;
    op->signal.payload = payload;
    CHECK_EQ(s.near.engine->submit(*op), Status::invalid_argument);
  }
  s.drain();
  CHECK_EQ(s.far.sink.signals.size(), 1U);
  CHECK_EQ(s.near.inner->posted.load(), 0U);
}

TEST("a frame that no engine sends ends the link") {
  const std::string zeros(8, '\0');
  const std::string far_away(8, '\x7f');
  for (const auto& [name, payload] : {
           std::pair(std::string("s"), std::string("short")), std::pair(std::string("s"), zeros),
           std::pair(std::string(), zeros),                   // half an acknowledgement
           std::pair(std::string(), far_away + far_away),     // of what was not sent
           std::pair(std::string(), zeros + far_away),        // too many places
       }) {
    Scene s;
    s.near.inner->arrive(kOther, name, payload);
    s.near.drain();
    CHECK_EQ(s.near.wire->disconnects.size(), 1U);
    CHECK_EQ(s.near.sink.events.front().status, Status::peer_lost);
    CHECK(s.near.sink.events.front().text.find("damaged") != std::string::npos);
    CHECK(s.near.sink.signals.empty());
  }
}

TEST("the real clock wakes the loop by itself") {
  Scene s({.capacity = 64, .first_timeout = 0.005});
  s.near.wire->cut = true;
  CHECK(ok(s.near.send("a")));
  s.near.wire->cut = false;
  CHECK(test::eventually([&] {
    for (Node* node : {&s.near, &s.far}) {
      if (test::readable(node->engine->fd())) {
        node->drain();
      }
    }
    return s.near.resend->pending() == 0;
  }));
  CHECK_EQ(s.heard(), "a");
  CHECK(s.near.wire->frames >= 2);
}

TEST("bound signals of operations that end on other threads, over a bad wire: each once, in order, one record each") {
  constexpr Token count = test::sanitized ? 3000 : 20'000;
  Scene s({.capacity = 256, .first_timeout = 0.001, .longest_timeout = 0.002, .tries = 100'000},
          StandInTransport::Mode::workers, 3);
  s.near.wire->loses = s.far.wire->loses = 20;
  s.near.wire->repeats = 10;
  std::map<std::string, int> names;
  std::uint64_t got = 0;
  Token next = 1;
  const bool all = test::eventually([&] {
    while (next <= count && ok(s.near.resend->reserve_signal(kOther))) {
      s.near.resend->unreserve_signal(kOther);
      CHECK(ok(s.near.put(next, std::to_string(next))));
      ++next;
    }
    s.drain();
    for (const SignalRecord& record : s.far.sink.signals) {
      CHECK_EQ(record.sequence, ++got);
      ++names[record.name];
      s.far.resend->signals_taken(kOther, 1);
    }
    s.far.sink.signals.clear();
    return got == count && s.near.resend->pending() == 0;
  });
  CHECK(all);
  CHECK_EQ(names.size(), count);
  CHECK_EQ(s.near.sink.records.size(), count);
  for (const auto& [token, records] : s.near.sink.records) {
    CHECK_EQ(records.size(), 1U);
  }
  CHECK_EQ(s.near.inner->admitted.load(), s.near.inner->released.load());
}

TEST("a peer goes down while its operations end on other threads: one record each, all before the news of the end") {
  constexpr int rounds = test::sanitized ? 50 : 300;
  constexpr Token width = 60;
  for (int round = 0; round < rounds; ++round) {
    Scene s({.capacity = 64}, StandInTransport::Mode::workers, 3);
    std::thread ends([&, after = static_cast<std::uint64_t>(round) % width] {
      CHECK(test::eventually([&] { return s.near.wire->ended.load() >= after; }));
      s.near.wire->go_down(Status::peer_lost, width);
    });
    for (Token token = 1; token <= width; ++token) {
      CHECK(ok(s.near.put(token, "s")));
      s.near.drain();
    }
    const bool told = test::eventually([&] {
      s.near.drain();
      return s.near.downs() == 1;
    });
    CHECK(told);
    CHECK_EQ(s.near.sink.records_before_the_end, width);
    for (const auto& [token, records] : s.near.sink.records) {
      CHECK_EQ(records.size(), 1U);
    }
    ends.join();
    s.near.resend->forget_peer(kOther);
    CHECK_EQ(s.near.resend->pending(), 0U);
    CHECK_EQ(s.near.inner->admitted.load(), s.near.inner->released.load());
  }
}

TEST("the end of an engine ends what has landed and what has not: one record each, and nothing is left") {
  const test::Leftovers leftovers;
  {
    Scene s({.capacity = 64}, StandInTransport::Mode::hold);
    s.near.wire->cut = true;
    CHECK(ok(s.near.send("a")));
    CHECK(ok(s.near.put(1, "s")));
    CHECK(test::eventually([&] { return s.near.inner->held() == 1; }));
    s.near.inner->complete_held();
    CHECK(ok(s.near.put(2, "t")));
    CHECK(test::eventually([&] { return s.near.inner->held() == 1; }));
    s.near.engine->begin_shutdown(99);
    CHECK(test::eventually([&] {
      s.near.drain();
      return !s.near.sink.events.empty();
    }));
    CHECK_EQ(s.near.sink.records[1].size(), 1U);
    CHECK_EQ(s.near.sink.records[2].size(), 1U);
    CHECK_EQ(s.near.sink.records[2].front().status, Status::stopped);
    CHECK_EQ(s.near.inner->admitted.load(), s.near.inner->released.load());
  }
  CHECK(leftovers.none());
}

}  // namespace
}  // namespace hixl_aio::resend

HIXL_TEST_MAIN
