// The cooperative link: the initiator against a target that the test plays, the service against an initiator that the
// test plays, and both against each other with real threads that sleep whenever they can.
#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <thread>

#include "host_support.h"
#include "transports/host/cooperative.h"

namespace hixl_aio::host {
namespace {

using test::Leftovers;
using test::Pair;
using test::pattern;

struct Finisher final : OpFinisher {
  std::map<Op*, Status> status;
  std::vector<Op*> order;
  void finish(Op& op) noexcept override {
    order.push_back(&op);
    if (!status.emplace(&op, settle_runs(op)).second) {
      test::give_up("an operation was finished twice");
    }
    CHECK_EQ(op.outstanding, 0U);
  }
  [[nodiscard]] bool has(const Op& op) const { return status.contains(const_cast<Op*>(&op)); }
  [[nodiscard]] Status of(const Op& op) const { return has(op) ? status.at(const_cast<Op*>(&op)) : Status::internal; }
};

// Operations over two plain buffers: ours, and the target's region 0.
struct Operations {
  Peer& peer;
  std::deque<Op> ops;
  Op& make() {
    Op& op = ops.emplace_back();
    op.target = &peer;
    return op;
  }
  static void run(Op& op, std::byte* local, std::uint64_t offset, std::uint64_t nbytes,
                  Direction direction = Direction::put, std::uint32_t region = 0, std::uint32_t generation = 1) {
    Run run;
    run.local = local;
    run.remote_offset = offset;
    run.nbytes = nbytes;
    run.region = region;
    run.generation = generation;
    run.direction = direction;
    run.link = static_cast<std::uint8_t>(LinkKind::cooperative);
    op.runs.push_back(run);
    op.nbytes += nbytes;
  }
};

// ---- the initiator, against a target that we play

struct Played {
  Pair pair{{.link = LinkKind::cooperative}};
  Finisher finisher;
  CoopInitiator initiator{finisher};
  Operations operations{*pair.a.peer, {}};
  std::vector<std::byte> memory;  // region 0 of the target

  explicit Played(std::size_t nbytes = 4 * kCoopSlotNbytes) : memory(nbytes) {}
  ChannelHeader& header() { return pair.b.owned->header(); }
  // Answers one slot as a service would, without its checks. False: none is waiting.
  bool answer(Status status = Status::ok) {
    const std::uint64_t completed = header().coop_completed.load();
    if (completed == header().coop_submitted.load()) {
      return false;
    }
    CoopSlot& slot = pair.b.owned->coop_slot(completed);
    std::uint64_t at = 0;
    for (std::uint32_t i = 0; i < slot.run_count; ++i) {
      const CoopRun& run = slot.runs[i];
      REQUIRE(at + run.nbytes <= kCoopSlotNbytes && run.offset + run.nbytes <= memory.size());
      if (ok(status)) {
        slot.direction == 0 ? std::memcpy(memory.data() + run.offset, slot.data + at, run.nbytes)
                            : std::memcpy(slot.data + at, memory.data() + run.offset, run.nbytes);
      }
      slot.run_status[i] = static_cast<std::uint8_t>(status);
      at += run.nbytes;
    }
    header().coop_completed.store(completed + 1);
    return true;
  }
  void advance() {
    while (initiator.advance()) {
    }
  }
  void settle() {
    advance();
    while (answer()) {
      advance();
    }
  }
};

TEST("a small put enqueued while a large one fills the ring ends with the slots that were under way and one more") {
  Played p(64 * kCoopSlotNbytes);
  auto from = pattern(p.memory.size(), 1);
  Op& large = p.operations.make();
  Operations::run(large, from.data(), 0, from.size());
  p.initiator.enqueue(large);
  p.advance();
  Op& small = p.operations.make();
  Operations::run(small, from.data(), 5, 128);
  p.initiator.enqueue(small);
  p.advance();
  std::size_t answers = 0;
  while (!p.finisher.has(small) && p.answer()) {
    ++answers;
    p.advance();
  }
  CHECK(answers <= kCoopSlots + 1);
  CHECK(p.finisher.has(small) && !p.finisher.has(large));
  p.settle();
  CHECK(p.finisher.has(large));
}

TEST("large operations share the slots, and none of them waits for another's end") {
  Played p(64 * kCoopSlotNbytes);
  auto from = pattern(p.memory.size(), 1);
  for (int i = 0; i < 4; ++i) {
    Op& op = p.operations.make();
    Operations::run(op, from.data(), 0, 16 * kCoopSlotNbytes);
    p.initiator.enqueue(op);
  }
  p.advance();
  for (int answers = 0; answers < 32; ++answers) {
    CHECK(p.answer());
    p.advance();
  }
  for (const Op& op : p.operations.ops) {
    CHECK(op.moved_nbytes >= 4 * kCoopSlotNbytes);
  }
  p.settle();
  CHECK_EQ(p.finisher.order.size(), 4U);
}

TEST("empty runs anywhere, directions mixed: every operation ends without a further call") {
  const std::vector<std::vector<std::pair<Direction, std::uint64_t>>> shapes = {
      {},
      {{Direction::put, 0}},
      {{Direction::put, 0}, {Direction::get, 0}},
      {{Direction::put, 0}, {Direction::get, 100}},
      {{Direction::get, 0}, {Direction::put, 100}},
      {{Direction::put, 100}, {Direction::get, 0}, {Direction::put, 0}},
      {{Direction::put, 0}, {Direction::get, 0}, {Direction::put, 0}, {Direction::get, 5}, {Direction::put, 0}},
      {{Direction::get, 7}, {Direction::put, 0}, {Direction::get, 7}, {Direction::put, 7}},
  };
  for (std::size_t others = 0; others < 3; ++others) {  // alone, and behind operations of the same kind
    for (const auto& shape : shapes) {
      Played p;
      auto local = pattern(1000, 1);
      for (std::size_t i = 0; i <= others; ++i) {
        Op& op = p.operations.make();
        for (const auto& [direction, nbytes] : shape) {
          Operations::run(op, local.data(), 0, nbytes, direction);
        }
        p.initiator.enqueue(op);
      }
      p.settle();
      for (const Op& op : p.operations.ops) {
        CHECK_EQ(p.finisher.of(op), Status::ok);
        CHECK(std::all_of(op.runs.begin(), op.runs.end(), [](const Run& run) { return run.state == RunState::done; }));
      }
    }
  }
}

TEST("a peer that goes down ends what is in slots and what waits, in one call, with its reason") {
  Played p(64 * kCoopSlotNbytes);
  auto local = pattern(p.memory.size(), 1);
  for (int i = 0; i < 20; ++i) {
    Op& op = p.operations.make();
    Operations::run(op, local.data(), 0, i % 2 == 0 ? 4 * kCoopSlotNbytes : 100,
                    i % 3 == 0 ? Direction::get : Direction::put);
    p.initiator.enqueue(op);
  }
  p.advance();
  p.answer();
  p.answer();
  CHECK(p.pair.a.peer->mark_down(Status::peer_lost));
  p.initiator.advance();
  CHECK_EQ(p.finisher.order.size(), 20U);
  CHECK_EQ(p.finisher.of(p.operations.ops.back()), Status::peer_lost);
  // Late answers find nobody.
  while (p.answer()) {
  }
  p.advance();
  Op& late = p.operations.make();
  Operations::run(late, local.data(), 0, 10);
  p.initiator.enqueue(late);
  p.initiator.advance();
  CHECK_EQ(p.finisher.of(late), Status::peer_lost);
  CHECK_EQ(p.finisher.order.size(), 21U);
}

TEST("a stop ends an operation when its slots are answered, and one without a slot at once") {
  Played p(64 * kCoopSlotNbytes);
  auto local = pattern(p.memory.size(), 1);
  Op& under_way = p.operations.make();
  Operations::run(under_way, local.data(), 0, p.memory.size());
  p.initiator.enqueue(under_way);
  p.advance();
  Op& waiting = p.operations.make();
  Operations::run(waiting, local.data(), 0, 100);
  p.initiator.enqueue(waiting);
  Op& other = p.operations.make();
  Operations::run(other, local.data(), 0, 100);
  p.initiator.enqueue(other);
  p.advance();
  under_way.stop_requested.store(true);
  waiting.stop_requested.store(true);
  p.advance();
  CHECK_EQ(p.finisher.of(waiting), Status::stopped);
  CHECK(!p.finisher.has(under_way));
  CHECK(!p.finisher.has(other));
  std::size_t answers = 0;
  while (!p.finisher.has(under_way) && p.answer()) {
    ++answers;
    p.advance();
  }
  CHECK_EQ(answers, kCoopSlots);
  CHECK_EQ(p.finisher.of(under_way), Status::stopped);
  CHECK_EQ(under_way.runs[0].state, RunState::stopped);
  CHECK_EQ(under_way.moved_nbytes, kCoopSlots * std::uint64_t{kCoopSlotNbytes});
  p.settle();
  CHECK_EQ(p.finisher.of(other), Status::ok);
}

TEST("a region that went stale fails its runs and no others") {
  Played p;
  auto local = pattern(3000, 1);
  Op& op = p.operations.make();
  Operations::run(op, local.data(), 0, 1000, Direction::put);
  Operations::run(op, local.data() + 1000, 1000, 1000, Direction::get);
  Operations::run(op, local.data() + 2000, 2000, 1000, Direction::put);
  p.initiator.enqueue(op);
  p.advance();
  CHECK(p.answer());
  CHECK(p.answer(Status::stale_region));
  p.settle();
  CHECK_EQ(p.finisher.of(op), Status::stale_region);
  CHECK_EQ(op.runs[0].state, RunState::done);
  CHECK_EQ(op.runs[1].state, RunState::stale);
  CHECK_EQ(op.runs[2].state, RunState::done);
  CHECK_EQ(op.moved_nbytes, 2000U);
  CHECK(test::same(p.memory.data() + 2000, local.data() + 2000, 1000));
}

TEST("whatever a target writes into counters and answers, every operation ends once and nothing leaves its bounds") {
  std::mt19937_64 random(3);
  for (int round = 0; round < (test::sanitized ? 60 : 300); ++round) {
    Played p(2 * kCoopSlotNbytes);
    auto local = pattern(p.memory.size(), 1);
    for (int i = 0; i < 6; ++i) {
      Op& op = p.operations.make();
      for (std::size_t n = random() % 5 + 1; n > 0; --n) {
        Operations::run(op, local.data(), random() % 1000, random() % 100'000,
                        random() % 2 == 0 ? Direction::put : Direction::get);
      }
      p.initiator.enqueue(op);
    }
    for (int i = 0; i < 10; ++i) {
      p.initiator.advance();
      CoopSlot& slot = p.pair.b.owned->coop_slot(random());
      slot.run_count = static_cast<std::uint32_t>(random());
      slot.direction = static_cast<std::uint32_t>(random());
      for (std::uint8_t& status : slot.run_status) {
        status = random() % 2 == 0 ? std::uint8_t{0} : static_cast<std::uint8_t>(random());
      }
      p.header().coop_submitted.store(random() % 3 == 0 ? random() : random() % 20);
      p.header().coop_completed.store(random() % 3 == 0 ? random() : random() % 20);
    }
    CHECK(p.pair.a.peer->mark_down(Status::peer_lost));
    p.initiator.advance();
    CHECK_EQ(p.finisher.order.size(), 6U);
  }
}

// ---- the service, against an initiator that we play

struct Served {
  RegionTable table{64};
  CoopService service{table};
  std::unique_ptr<Pair> pair;
  std::vector<std::byte> memory = std::vector<std::byte>(kCoopSlotNbytes + 64, std::byte{0xa5});
  std::uint64_t submitted = 0;

  Served() {
    REQUIRE(ok(service.open()));
    pair = std::make_unique<Pair>(test::PairSettings{.link = LinkKind::cooperative, .service_fd = service.fd()});
    add(Access::read_write);
    add(Access::read);
    add(Access::write);
    add(Access::local);
    service.add_peer(pair->b.peer);
    REQUIRE(ok(service.start()));
    REQUIRE(ok(service.start()));
  }
  ~Served() { service.stop(); }
  RegionInfo add(Access access, std::uint64_t nbytes = kCoopSlotNbytes) {
    RegionSpec spec;
    spec.address = memory.data() + 32;
    spec.nbytes = nbytes;
    spec.access = access;
    RegionInfo info;
    std::string error;
    REQUIRE(ok(table.add(spec, nullptr, info, error)));
    return info;
  }
  Channel& ours() { return pair->a.peer->out(); }
  CoopSlot& slot() { return ours().coop_slot(submitted); }
  void hand_over(std::uint64_t count = 1) {
    (void)table.count();  // its lock orders what we did to the memory before what the service does
    submitted += count;
    ours().header().coop_submitted.store(submitted);
    ring();
  }
  void ring() {
    if (ours().header().coop_service_armed.exchange(0) == 1) {
      pair->a.peer->ring_service();
    }
  }
  bool answered() {
    return test::eventually([&] { return ours().header().coop_completed.load() == submitted; }) && table.count() > 0;
  }
  // One slot with one run.
  std::uint8_t claim(const CoopRun& run, std::uint32_t direction = 0) {
    CoopSlot& s = slot();
    s.run_count = 1;
    s.direction = direction;
    s.runs[0] = run;
    s.run_status[0] = 0xcc;
    std::memset(s.data, 0x11, 1000);
    hand_over();
    CHECK(answered());
    return s.run_status[0];
  }
  bool untouched() { return test::all_bytes(memory.data(), memory.size(), std::byte{0xa5}); }
};

constexpr std::uint8_t status_byte(Status status) { return static_cast<std::uint8_t>(status); }

TEST("the service copies what is allowed, exactly") {
  Served s;
  CHECK_EQ(s.claim({10, 100, 0, 1}), status_byte(Status::ok));
  CHECK(test::all_bytes(s.memory.data() + 42, 100, std::byte{0x11}));
  CHECK(test::all_bytes(s.memory.data(), 42, std::byte{0xa5}));
  CHECK(test::all_bytes(s.memory.data() + 142, 1000, std::byte{0xa5}));
  CHECK_EQ(s.claim({9, 102, 0, 1}, 1), status_byte(Status::ok));
  const std::byte* back = s.ours().coop_slot(s.submitted - 1).data;
  CHECK(back[0] == std::byte{0xa5} && back[101] == std::byte{0xa5} && test::all_bytes(back + 1, 100, std::byte{0x11}));
  CHECK(back[102] == std::byte{0x11});  // as it was
}

TEST("the service refuses every claim that the owner's table does not bear out, and touches nothing") {
  Served s;
  const std::uint64_t end = kCoopSlotNbytes;
  CHECK_EQ(s.claim({0, 8, 77, 1}), status_byte(Status::stale_region));
  CHECK_EQ(s.claim({0, 8, UINT32_MAX, UINT32_MAX}), status_byte(Status::stale_region));
  CHECK_EQ(s.claim({0, 8, 0, 0}), status_byte(Status::stale_region));
  CHECK_EQ(s.claim({0, 8, 0, 2}), status_byte(Status::stale_region));
  CHECK_EQ(s.claim({end, 1, 0, 1}), status_byte(Status::out_of_bounds));
  CHECK_EQ(s.claim({end - 7, 8, 0, 1}), status_byte(Status::out_of_bounds));
  CHECK_EQ(s.claim({UINT64_MAX - 3, 8, 0, 1}), status_byte(Status::out_of_bounds));
  CHECK_EQ(s.claim({0, end + 1, 0, 1}), status_byte(Status::out_of_bounds));
  CHECK_EQ(s.claim({0, UINT64_MAX, 0, 1}), status_byte(Status::out_of_bounds));
  CHECK_EQ(s.claim({1, UINT64_MAX, 0, 1}), status_byte(Status::out_of_bounds));
  CHECK_EQ(s.claim({0, 8, 1, 1}, 0), status_byte(Status::access_denied));
  CHECK_EQ(s.claim({0, 8, 2, 1}, 1), status_byte(Status::access_denied));
  CHECK_EQ(s.claim({0, 8, 3, 1}, 0), status_byte(Status::access_denied));
  CHECK_EQ(s.claim({0, 8, 3, 1}, 1), status_byte(Status::access_denied));
  CHECK(s.untouched());
  CHECK_EQ(s.claim({end, 0, 0, 1}), status_byte(Status::ok));
  CHECK(s.untouched());
  OwnRegion own;
  CHECK(s.table.revoke(0, own));
  CHECK_EQ(s.claim({0, 8, 0, 1}), status_byte(Status::stale_region));
  CHECK(s.table.service_idle(0));
  (void)s.table.free(0, 1);
  CHECK_EQ(s.claim({0, 8, 0, 1}), status_byte(Status::stale_region));
  CHECK(s.untouched());
  const RegionInfo again = s.add(Access::read_write);
  CHECK_EQ(again.region, 0U);
  CHECK_EQ(again.generation, 2U);
  CHECK_EQ(s.claim({0, 8, 0, 1}), status_byte(Status::stale_region));
  CHECK(s.untouched());
  CHECK_EQ(s.claim({0, 8, 0, 2}), status_byte(Status::ok));
}

TEST("a run that does not fit the slot is refused, and a run count beyond the cap is cut") {
  Served s;
  CoopSlot& first = s.slot();
  first.run_count = 3;
  first.direction = 0;
  first.runs[0] = {0, kCoopSlotNbytes - 8, 0, 1};
  first.runs[1] = {0, 9, 0, 1};
  first.runs[2] = {0, 8, 0, 1};
  s.hand_over();
  CHECK(s.answered());
  CHECK_EQ(first.run_status[0], status_byte(Status::ok));
  CHECK_EQ(first.run_status[1], status_byte(Status::out_of_bounds));
  CHECK_EQ(first.run_status[2], status_byte(Status::ok));
  for (const std::uint32_t count : {kCoopRuns, kCoopRuns + 1, 1U << 20U, UINT32_MAX}) {
    CoopSlot& slot = s.slot();
    slot.run_count = count;
    for (CoopRun& run : slot.runs) {
      run = {1, 1, 0, 1};
    }
    std::memset(slot.run_status, 0xcc, sizeof(slot.run_status));
    s.hand_over();
    CHECK(s.answered());
    CHECK(std::all_of(std::begin(slot.run_status), std::end(slot.run_status),
                      [](std::uint8_t each) { return each == 0; }));
    CHECK_EQ(slot.runs[0].offset, 1U);  // the byte behind the answers is not one of them
  }
}

TEST("counters that no engine writes are not followed, and the service lives on for others") {
  Served s;
  Pair other({.link = LinkKind::cooperative, .service_fd = s.service.fd()});
  s.service.add_peer(other.b.peer);
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    s.ours().header().coop_submitted.store(i % 2 == 0 ? random() | (1ULL << 40U) : UINT64_MAX - random() % 100);
    s.ours().header().coop_completed.store(random());
    s.pair->a.peer->ring_service();
  }
  ChannelHeader& header = other.a.peer->out().header();
  for (std::uint64_t count = 1; count <= 100; ++count) {
    CoopSlot& slot = other.a.peer->out().coop_slot(count - 1);
    slot.run_count = 1;
    slot.direction = 0;
    slot.runs[0] = {0, 8, 0, 1};
    header.coop_submitted.store(count);
    if (header.coop_service_armed.exchange(0) == 1) {
      other.a.peer->ring_service();
    }
    CHECK(test::eventually([&] { return header.coop_completed.load() == count; }));
  }
}

TEST("claims that change while the service reads them never lead it out of the region or the slot") {
  Served s;
  std::atomic<bool> end{false};
  std::thread vandal([&] {
    std::mt19937_64 random(1);
    while (!end.load(std::memory_order_relaxed)) {
      for (std::uint64_t i = 0; i < kCoopSlots; ++i) {
        CoopSlot& slot = s.ours().coop_slot(i);
        // As another process would: no order, no agreement.
        __atomic_store_n(&slot.run_count, random() % 2 == 0 ? 1U : UINT32_MAX, __ATOMIC_RELAXED);
        __atomic_store_n(&slot.direction, static_cast<std::uint32_t>(random() % 3), __ATOMIC_RELAXED);
        for (CoopRun& run : slot.runs) {
          __atomic_store_n(&run.nbytes, random() % 2 == 0 ? 8ULL : UINT64_MAX - 8, __ATOMIC_RELAXED);
          __atomic_store_n(&run.offset, random() % 2 == 0 ? 0ULL : UINT64_MAX - 8, __ATOMIC_RELAXED);
          __atomic_store_n(&run.region, 0U, __ATOMIC_RELAXED);
          __atomic_store_n(&run.generation, 1U, __ATOMIC_RELAXED);
        }
      }
    }
  });
  for (int i = 0; i < (test::sanitized ? 3000 : 20'000); ++i) {
    s.hand_over();
    CHECK(s.answered());
  }
  end.store(true);
  vandal.join();
  CHECK(test::all_bytes(s.memory.data(), 32, std::byte{0xa5}));
  CHECK(test::all_bytes(s.memory.data() + s.memory.size() - 32, 32, std::byte{0xa5}));
}

TEST("a region is not idle while the service copies, and after it is idle the service writes no more") {
  Served s;
  std::atomic<bool> end{false};
  std::atomic<std::uint32_t> generation{1};
  // The played initiator writes without a pause, under whatever generation there is.
  std::thread writer([&] {
    while (!end.load()) {
      while (s.submitted - s.ours().header().coop_completed.load() == kCoopSlots) {
        if (end.load()) {
          return;
        }
        std::this_thread::yield();
      }
      CoopSlot& slot = s.slot();
      slot.run_count = 1;
      slot.direction = 0;
      slot.runs[0] = {0, 4096, 0, generation.load()};
      s.hand_over();
    }
  });
  for (int round = 0; round < (test::sanitized ? 100 : 300); ++round) {
    OwnRegion own;
    REQUIRE(s.table.revoke(0, own));
    while (!s.table.service_idle(0)) {
      std::this_thread::yield();
    }
    (void)s.table.free(0, own.info.generation);
    std::memset(s.memory.data(), 0xee, s.memory.size());
    for (int look = 0; look < 3; ++look) {
      std::this_thread::yield();
      if (!test::all_bytes(s.memory.data(), s.memory.size(), std::byte{0xee})) {
        test::give_up("the service wrote into a region that was closed");
      }
    }
    const RegionInfo info = s.add(Access::read_write);
    REQUIRE(info.region == 0);
    generation.store(info.generation);
    const std::uint64_t seen = s.ours().header().coop_completed.load();
    while (s.ours().header().coop_completed.load() - seen < kCoopSlots + 1) {
      std::this_thread::yield();
    }
  }
  end.store(true);
  writer.join();
}

// ---- both halves, with threads that sleep

struct Both {
  RegionTable table{64};
  CoopService service{table};
  std::unique_ptr<Pair> pair;
  Finisher finisher;
  CoopInitiator initiator{finisher};
  std::unique_ptr<Operations> operations;
  std::vector<std::byte> memory;

  explicit Both(std::size_t nbytes) : memory(nbytes, std::byte{0xa5}) {
    REQUIRE(ok(service.open()));
    pair = std::make_unique<Pair>(test::PairSettings{.link = LinkKind::cooperative, .service_fd = service.fd()});
    RegionSpec spec;
    spec.address = memory.data();
    spec.nbytes = memory.size();
    spec.access = Access::read_write;
    RegionInfo info;
    std::string error;
    REQUIRE(ok(table.add(spec, nullptr, info, error)));
    service.add_peer(pair->b.peer);
    REQUIRE(ok(service.start()));
    operations = std::make_unique<Operations>(Operations{*pair->a.peer, {}});
  }
  ~Both() { service.stop(); }
  // As the progress thread does: clear, advance until nothing moves, sleep.
  void run_until_ended(std::size_t count) {
    CHECK_EQ(table.count(), 1U);  // takes the table's lock: what we did happens before what the service does
    while (finisher.order.size() < count) {
      std::uint64_t rings = 0;
      (void)!::read(pair->a.progress.get(), &rings, sizeof(rings));
      if (initiator.advance()) {
        continue;
      }
      if (!test::readable(pair->a.progress.get(), 10'000)) {
        test::lost_wakeup("the initiator sleeps, and so does the service");
      }
    }
    CHECK_EQ(table.count(), 1U);  // and the other way round
  }
};

TEST("puts and gets of 0, 1, a slot and its neighbours, and many slots are exact, with their neighbourhood intact") {
  const std::uint64_t slot = kCoopSlotNbytes;
  for (const std::uint64_t nbytes :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4095}, slot / 2, slot / 2 + 1, slot - 1, slot, slot + 1,
        2 * slot - 1, 8 * slot, 8 * slot + 1, 9 * slot, 37 * slot + 12345}) {
    Both b(nbytes + 64);
    auto from = pattern(nbytes, nbytes);
    Op& put = b.operations->make();
    Operations::run(put, from.data(), 32, nbytes);
    b.initiator.enqueue(put);
    b.run_until_ended(1);
    CHECK_EQ(b.finisher.of(put), Status::ok);
    CHECK_EQ(put.moved_nbytes, nbytes);
    CHECK(test::same(b.memory.data() + 32, from.data(), nbytes));
    CHECK(test::all_bytes(b.memory.data(), 32, std::byte{0xa5}));
    CHECK(test::all_bytes(b.memory.data() + 32 + nbytes, 32, std::byte{0xa5}));
    std::vector<std::byte> back(nbytes + 64, std::byte{0x5a});
    Op& get = b.operations->make();
    Operations::run(get, back.data() + 32, 32, nbytes, Direction::get);
    b.initiator.enqueue(get);
    b.run_until_ended(2);
    CHECK_EQ(b.finisher.of(get), Status::ok);
    CHECK(test::same(back.data() + 32, from.data(), nbytes));
    CHECK(test::all_bytes(back.data(), 32, std::byte{0x5a}));
    CHECK(test::all_bytes(back.data() + 32 + nbytes, 32, std::byte{0x5a}));
  }
}

TEST("100000 small runs, puts and gets mixed, land where they belong") {
  constexpr std::size_t kRuns = 100'000;
  constexpr std::size_t kStride = 64;
  Both b(2 * kRuns * kStride);
  auto source = pattern(kRuns * kStride, 1);
  std::vector<std::byte> sink(kRuns * kStride, std::byte{0x5a});
  // The upper half of the region is what the gets read; the lower half is where the puts land.
  auto upper = pattern(kRuns * kStride, 2);
  std::memcpy(b.memory.data() + kRuns * kStride, upper.data(), upper.size());
  std::mt19937_64 random(1);
  std::vector<std::size_t> order(kRuns);
  for (std::size_t i = 0; i < kRuns; ++i) {
    order[i] = i;
  }
  std::shuffle(order.begin(), order.end(), random);
  Op& op = b.operations->make();
  for (const std::size_t i : order) {
    const std::uint64_t nbytes = i % 61;
    if (i % 3 == 0) {
      Operations::run(op, sink.data() + i * kStride, kRuns * kStride + i * kStride, nbytes, Direction::get);
    } else {
      Operations::run(op, source.data() + i * kStride, i * kStride, nbytes, Direction::put);
    }
  }
  b.initiator.enqueue(op);
  b.run_until_ended(1);
  CHECK_EQ(b.finisher.of(op), Status::ok);
  for (std::size_t i = 0; i < kRuns; ++i) {
    const std::uint64_t nbytes = i % 61;
    const std::byte* there = b.memory.data() + i * kStride;
    const std::byte* here = sink.data() + i * kStride;
    const bool right =
        i % 3 == 0
            ? test::same(here, upper.data() + i * kStride, nbytes) && test::all_bytes(there, kStride, std::byte{0xa5})
            : test::same(there, source.data() + i * kStride, nbytes) && test::all_bytes(here, kStride, std::byte{0x5a});
    if (!right || !test::all_bytes(there + nbytes, kStride - nbytes, std::byte{0xa5}) ||
        !test::all_bytes(here + nbytes, kStride - nbytes, std::byte{0x5a})) {
      CHECK_EQ(i, kRuns);
      break;
    }
  }
}

TEST("two sleepers: 100000 rounds of one small put each, the initiator and the service asleep in between") {
  Both b(4096);
  const std::uint64_t rounds = 100'000;
  auto from = pattern(64, 1);
  std::deque<Op> ops(1);
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    Op& op = ops[0];
    op.target = b.pair->a.peer.get();
    op.runs.clear();
    op.status = Status::ok;
    op.next_run = 0;
    op.next_offset = 0;
    op.moved_nbytes = 0;
    std::memcpy(from.data(), &round, sizeof(round));
    Operations::run(op, from.data(), 8, 64, round % 2 == 0 ? Direction::put : Direction::get);
    b.finisher.status.clear();
    b.finisher.order.clear();
    b.initiator.enqueue(op);
    b.run_until_ended(1);
    if (!CHECK_EQ(b.finisher.of(op), Status::ok)) {
      break;
    }
  }
}

TEST("bursts of every length up to twice the ring end, whoever sleeps at that moment") {
  Both b(kCoopSlotNbytes);
  auto from = pattern(kCoopSlotNbytes, 1);
  for (int round = 0; round < (test::sanitized ? 2000 : 10'000); ++round) {
    b.operations->ops.clear();
    b.finisher.status.clear();
    b.finisher.order.clear();
    const std::size_t burst = 1 + static_cast<std::size_t>(round) % (2 * kCoopSlots);
    for (std::size_t i = 0; i < burst; ++i) {
      Op& op = b.operations->make();
      Operations::run(op, from.data(), 0, 200,
                      (i + static_cast<std::size_t>(round)) % 2 == 0 ? Direction::put : Direction::get);
      b.initiator.enqueue(op);
      if (round % 3 == 0) {
        b.initiator.advance();
      }
    }
    b.run_until_ended(burst);
  }
}

TEST("a service stops with slots unanswered, forgets its peers, and leaves no thread or descriptor") {
  const Leftovers before;
  for (int round = 0; round < 50; ++round) {
    Served s;
    s.ours().header().coop_submitted.store(static_cast<std::uint64_t>(round) % (kCoopSlots + 1));
    s.ring();
    if (round % 2 == 0) {
      s.service.remove_peer(s.pair->b.peer->id);
    }
    s.service.stop();
    s.service.stop();
  }
  CHECK(before.none());
}

}  // namespace
}  // namespace hixl_aio::host

HIXL_TEST_MAIN
