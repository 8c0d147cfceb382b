// Two engines in one process, each link forced in turn: exact bytes, refusals, stops, signals, and regions that close
// under a writer.
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <random>

#include "host_strangers.h"

namespace hixl_aio::host {
namespace {

using test::Leftovers;
using test::Node;
using test::pattern;

constexpr std::uint64_t kMiB = 1U << 20U;

struct Settings {
  std::uint64_t chunk = kMiB;
  std::uint32_t threads = 1;
  std::uint64_t stream = UINT64_MAX;  // 0: everything that a thread copies is written past the cache
};

// `a` reaches `b` over one link only.
struct Two {
  Node a;
  Node b{test::every_link};
  PeerId at_a = 0;
  PeerId at_b = 0;
  explicit Two(LinkKind link, Settings settings = {}) : a(config(link, settings)) {
    REQUIRE(ok(a.status));
    at_a = a.connected(b);
    at_b = b.peer_of(a);
  }
  static HostConfig config(LinkKind link, Settings settings) {
    HostConfig out = test::config_of({link});
    out.chunk_nbytes = settings.chunk;
    out.copy_threads = settings.threads;
    out.stream_nbytes = settings.stream;
    return out;
  }
};

// Memory of one engine that the other one reaches, of either kind.
struct Target {
  std::vector<std::byte> own;
  RegionInfo region;
  std::shared_ptr<void> hold;
  std::byte* at = nullptr;
  Target(Node& node, LinkKind link, std::uint64_t nbytes, const std::string& label, bool allocate) {
    if (allocate || link == LinkKind::shm) {
      region = node.allocate(nbytes, Access::read_write, label);
      hold = node.transport().hold_region(region.region);
      at = region.address;
    } else {
      own.resize(nbytes);
      at = own.data();
      region = node.add(at, nbytes, Access::read_write, label);
    }
  }
};

TEST("puts and gets of every size are exact over every link and both kinds of memory, and touch nothing else") {
  const Leftovers before;
  for (const LinkKind link : test::every_link) {
    Two t(link, {.chunk = 256 * 1024, .threads = 2});
    for (const bool allocated : {true, false}) {
      const std::uint64_t room = 9 * kMiB;
      Target target(t.b, link, room, allocated ? "allocated" : "registered", allocated);
      const RegionInfo remote = t.a.remote(t.at_a, allocated ? "allocated" : "registered");
      CHECK_EQ(remote.nbytes, room);
      std::vector<std::byte> back(room);
      for (const std::uint64_t nbytes : {0UL, 1UL, 127UL, 4095UL, 4096UL, 4097UL, 65535UL, 65536UL, 65537UL, 262143UL,
                                         262144UL, 262145UL, 1048575UL, 1048577UL, 3145733UL, 8388608UL}) {
        const std::uint64_t offset = 64 + nbytes % 61;
        auto source = pattern(nbytes, nbytes);
        std::memset(target.at, 0xa5, nbytes + 256);
        CHECK_EQ(t.a.transfer(t.at_a, {Node::run(source.data(), remote, offset, nbytes)}), Status::ok);
        CHECK(test::same(target.at + offset, source.data(), nbytes));
        CHECK(test::all_bytes(target.at, offset, std::byte{0xa5}));
        CHECK(test::all_bytes(target.at + offset + nbytes, 64, std::byte{0xa5}));
        std::memset(back.data(), 0x5a, nbytes + 256);
        CHECK_EQ(t.a.transfer(t.at_a, {Node::run(back.data() + 100, remote, offset, nbytes, Direction::get)}),
                 Status::ok);
        CHECK(test::same(back.data() + 100, source.data(), nbytes));
        CHECK(test::all_bytes(back.data(), 100, std::byte{0x5a}));
        CHECK(test::all_bytes(back.data() + 100 + nbytes, 100, std::byte{0x5a}));
        // The same inline, where the link has that.
        const Run inline_run = Node::run(source.data(), remote, 0, nbytes);
        const Status status = t.a.engine().transfer_now(t.at_a, inline_run, nullptr, false);
        const bool inlines = (link == LinkKind::inproc || link == LinkKind::shm) && nbytes <= 65536;
        CHECK_EQ(status, inlines ? Status::ok : Status::would_block);
        CHECK(!inlines || test::same(target.at, source.data(), nbytes));
      }
    }
  }
  CHECK(before.none());
}

std::uint64_t available_nbytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::uint64_t kib = 0;
  while (file >> key >> kib) {
    if (key == "MemAvailable:") {
      return kib * 1024;
    }
    file.ignore(64, '\n');
  }
  return 0;
}

TEST("a single process_vm call that the kernel cuts at 0x7ffff000 bytes is resumed, to the byte") {
  if (test::sanitized || available_nbytes() < 12 * 1024 * kMiB) {
    return;  // needs 4 GiB and the patience for it
  }
  constexpr std::uint64_t kCut = 0x7ffff000;
  const std::uint64_t room = kCut + 3 * 4096;
  const auto map = [&] {
    void* at = ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(at != MAP_FAILED);
    return static_cast<std::byte*>(at);
  };
  Two t(LinkKind::cma, {.chunk = UINT64_MAX});
  std::byte* source = map();
  std::byte* target = map();
  // A word in each page says where it is.
  for (std::uint64_t at = 0; at + 8 <= room; at += 4096) {
    std::memcpy(source + at, &at, sizeof(at));
  }
  t.b.add(target, room, Access::read_write, "large");
  const RegionInfo remote = t.a.remote(t.at_a, "large");
  for (const std::uint64_t nbytes : {kCut - 1, kCut, kCut + 1, kCut + 4097}) {
    source[nbytes - 1] = std::byte{0x77};
    CHECK_EQ(t.a.transfer(t.at_a, {Node::run(source, remote, 0, nbytes)}), Status::ok);
    CHECK(target[nbytes - 1] == std::byte{0x77});
    CHECK(target[nbytes] == std::byte{0});
    CHECK(test::same(target + kCut - kMiB, source + kCut - kMiB, std::min(nbytes - kCut + kMiB, kMiB)));
  }
  CHECK(test::same(target, source, kCut + 4097));
  ::munmap(source, room);
  ::munmap(target, room);
}

TEST("batches of 5000 runs, puts and gets, over three regions and both kinds of memory, are exact over every link") {
  for (const LinkKind link : test::every_link) {
    Two t(link, {.chunk = 64 * 1024, .threads = 2});
    constexpr std::size_t kRuns = 5000;
    constexpr std::size_t kSlot = 256;
    Target targets[] = {Target(t.b, link, kRuns * kSlot, "0", true), Target(t.b, link, kRuns * kSlot, "1", false),
                        Target(t.b, link, kRuns * kSlot, "2", true)};
    RegionInfo remotes[3];
    for (int i = 0; i < 3; ++i) {
      remotes[i] = t.a.remote(t.at_a, std::to_string(i));
      auto there = pattern(kRuns * kSlot, 100 + static_cast<std::uint64_t>(i));
      std::memcpy(targets[i].at, there.data(), there.size());
    }
    auto source = pattern(kRuns * kSlot, 1);
    std::vector<std::byte> sink(kRuns * kSlot, std::byte{0x5a});
    std::vector<Run> runs;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < kRuns; ++i) {
      const std::uint64_t nbytes = i % kSlot;
      total += nbytes;
      runs.push_back(i % 2 == 0
                         ? Node::run(source.data() + i * kSlot, remotes[i % 3], i * kSlot, nbytes)
                         : Node::run(sink.data() + i * kSlot, remotes[i % 3], i * kSlot, nbytes, Direction::get));
    }
    const Node::Posted posted = t.a.post(t.at_a, runs);
    REQUIRE(ok(posted.status));
    const CompletionRecord record = t.a.wait(posted.token);
    CHECK_EQ(record.status, Status::ok);
    CHECK_EQ(record.nbytes, total);
    CHECK(record.quiescent);
    for (std::size_t i = 0; i < kRuns; ++i) {
      const std::byte* there = targets[i % 3].at + i * kSlot;
      const bool right =
          i % 2 == 0 ? test::same(there, source.data() + i * kSlot, i % kSlot)
                     : test::same(there, sink.data() + i * kSlot, i % kSlot) &&
                           test::all_bytes(sink.data() + i * kSlot + i % kSlot, kSlot - i % kSlot, std::byte{0x5a});
      if (!right) {
        CHECK_EQ(i, kRuns);
        break;
      }
    }
    for (const RunState state : t.a.states[posted.token]) {
      CHECK_EQ(state, RunState::done);
    }
  }
}

TEST("a signal bound to an operation is there only after all of its bytes, over every link") {
  for (const LinkKind link : test::every_link) {
    Two t(link, {.chunk = 32 * 1024, .threads = 4, .stream = 0});  // such stores are the least ordered ones
    const std::uint64_t nbytes = 300'000;
    Target target(t.b, link, nbytes, "target", false);
    const RegionInfo remote = t.a.remote(t.at_a, "target");
    std::vector<std::byte> source(nbytes);
    for (int round = 1; round <= (test::sanitized ? 60 : 300); ++round) {
      std::memset(source.data(), round % 251, nbytes);
      t.b.signals.clear();
      const Node::Posted posted = t.a.post(t.at_a, {Node::run(source.data(), remote, 0, nbytes)}, "landed");
      REQUIRE(ok(posted.status));
      CHECK(t.b.arrives("landed"));
      if (test::thread_sanitized) {
        // The ring lies in two mappings: it does not see that the signal orders the bytes.
        (void)t.a.wait(posted.token);
      }
      if (!CHECK(test::all_bytes(target.at, nbytes, static_cast<std::byte>(round % 251)))) {
        break;
      }
      CHECK_EQ(t.b.signals[0].status, Status::ok);
      CHECK_EQ(t.b.signals[0].peer, t.at_b);
      CHECK_EQ(t.b.signals[0].payload, "bound");
      CHECK_EQ(t.a.wait(posted.token).status, Status::ok);
    }
    CHECK_EQ(t.a.transfer(t.at_a, {}, "nothing but a signal"), Status::ok);
    CHECK(t.b.arrives("nothing but a signal"));
  }
}

TEST("what cannot be done is refused at the submission, with its reason, without a record and without a byte moved") {
  for (const LinkKind link : test::every_link) {
    Two t(link);
    Target target(t.b, link, 1000, "target", false);
    std::memset(target.at, 0xa5, 1000);
    const RegionInfo read_only = t.b.allocate(1000, Access::read, "read");
    const RegionInfo write_only = t.b.allocate(1000, Access::write, "write");
    const RegionInfo local = t.b.allocate(1000, Access::local, "local");
    const RegionInfo remote = t.a.remote(t.at_a, "target");
    std::vector<std::byte> mine(2000, std::byte{1});
    const auto refused = [&](const Run& run) {
      const Status status = t.a.transfer(t.at_a, {Node::run(mine.data(), remote, 0, 10), run});
      const Status inlined = t.a.engine().transfer_now(t.at_a, run, nullptr, false);
      CHECK(inlined == status || inlined == Status::would_block);
      return status;
    };
    CHECK_EQ(refused(Node::run(mine.data(), remote, 1, 1000)), Status::out_of_bounds);
    CHECK_EQ(refused(Node::run(mine.data(), remote, UINT64_MAX, 2)), Status::out_of_bounds);
    CHECK_EQ(refused(Node::run(mine.data(), t.a.remote(t.at_a, "read"), 0, 10)), Status::access_denied);
    CHECK_EQ(refused(Node::run(mine.data(), t.a.remote(t.at_a, "write"), 0, 10, Direction::get)),
             Status::access_denied);
    RegionInfo stale = remote;
    ++stale.generation;
    CHECK_EQ(refused(Node::run(mine.data(), stale, 0, 10)), Status::stale_region);
    RegionInfo guessed = local;  // a number that we were never told
    CHECK_EQ(refused(Node::run(mine.data(), guessed, 0, 10)), Status::stale_region);
    RegionInfo unseen;
    CHECK(!t.a.transport().find_region(t.at_a, "local", unseen));
    CHECK(!t.a.transport().find_region(t.at_a, "nothing", unseen));
    CHECK(!t.a.transport().find_region(999, "target", unseen));
    CHECK_EQ(t.a.transfer(999, {Node::run(mine.data(), remote, 0, 10)}), Status::not_connected);
    CHECK_EQ(t.a.transport().reserve_signal(999), Status::not_connected);
    CHECK_EQ(t.a.signal(999, "x"), Status::not_connected);
    CHECK(t.a.records.empty());
    CHECK(test::all_bytes(target.at, 1000, std::byte{0xa5}));
    CHECK_EQ(read_only.access, Access::read);
    CHECK_EQ(write_only.access, Access::write);
    CHECK_EQ(t.a.engine().counters().in_flight, 0U);
    for (int i = 0; i < 3000; ++i) {  // more than there are slots: each refusal gives its slot back
      CHECK_EQ(t.a.transfer(t.at_a, {Node::run(mine.data(), stale, 0, 10)}), Status::stale_region);
    }
  }
}

TEST("memory that no allowed link reaches is refused as such") {
  Two t(LinkKind::shm);
  std::vector<std::byte> memory(100);
  t.b.add(memory.data(), 100, Access::read_write, "registered");
  std::vector<std::byte> mine(100);
  CHECK_EQ(t.a.transfer(t.at_a, {Node::run(mine.data(), t.a.remote(t.at_a, "registered"), 0, 100)}), Status::no_link);
}

TEST("a stop ends a large operation early, says so, and its record means that nothing is written any more") {
  for (const LinkKind link : test::every_link) {
    Two t(link, {.chunk = 64 * 1024, .threads = 2, .stream = 0});
    const std::uint64_t nbytes = 64 * kMiB;
    Target target(t.b, link, nbytes, "target", false);
    const RegionInfo remote = t.a.remote(t.at_a, "target");
    std::vector<std::byte> source(nbytes);
    int stopped = 0;
    for (int round = 0; round < 20; ++round) {
      std::memset(source.data(), round + 1, nbytes);
      const Node::Posted posted = t.a.post(t.at_a, {Node::run(source.data(), remote, 0, nbytes)}, "end");
      REQUIRE(ok(posted.status));
      for (const auto start = std::chrono::steady_clock::now();
           std::chrono::steady_clock::now() - start < std::chrono::microseconds(100 * round);) {
      }
      t.a.engine().request_stop(posted.handle);
      const CompletionRecord record = t.a.wait(posted.token);
      CHECK(record.status == Status::stopped || record.status == Status::ok);
      CHECK(record.quiescent);
      if (record.status == Status::stopped) {
        ++stopped;
        CHECK(record.nbytes < nbytes);
        CHECK_EQ(t.a.states[posted.token][0], RunState::stopped);
        std::memset(target.at, 0xee, nbytes);
        for (int look = 0; look < 3; ++look) {
          std::this_thread::yield();
          CHECK(test::all_bytes(target.at, nbytes / 8, std::byte{0xee}));
        }
      }
      CHECK(t.b.arrives("end"));  // the negative form
      CHECK_EQ(t.b.signals.back().status, record.status);
      t.b.signals.clear();
    }
    CHECK(stopped > 0);
    CHECK(!t.a.engine().request_stop(12345));
  }
}

// Writers that never pause against a region that closes and opens again in a loop.
void close_under_a_writer(LinkKind link, bool allocated) {
  // Operations that write the same bytes at the same time are our own race, not the engine's.
  Two t(link, {.chunk = 16 * 1024, .threads = test::thread_sanitized ? 1U : 2U});
  const std::uint64_t nbytes = 128 * 1024;
  auto source = pattern(nbytes, 1);
  std::vector<std::byte> memory(nbytes);
  std::uint64_t written = 0;
  std::uint64_t stale = 0;
  const int rounds = test::sanitized ? 30 : 100;
  for (int round = 0; round < rounds; ++round) {
    std::shared_ptr<void> hold;
    RegionInfo region;
    std::byte* at = memory.data();
    if (allocated) {
      region = t.b.allocate(nbytes, Access::read_write, "target");
      hold = t.b.transport().hold_region(region.region);
      at = region.address;
    } else {
      region = t.b.add(at, nbytes, Access::read_write, "target");
    }
    RegionInfo remote;
    REQUIRE(Node::until([&] {
      return t.a.transport().find_region(t.at_a, "target", remote) && remote.generation == region.generation &&
             remote.region == region.region;
    }));
    std::vector<Token> tokens;
    const auto fill = [&] {
      while (t.a.engine().counters().in_flight < 8) {
        const Node::Posted posted = t.a.post(t.at_a, {Node::run(source.data(), remote, 0, nbytes)});
        if (!ok(posted.status)) {
          CHECK_EQ(posted.status, Status::stale_region);
          return;
        }
        tokens.push_back(posted.token);
      }
    };
    // Into the writing, at different moments.
    for (int i = 0; i <= round % 5; ++i) {
      fill();
      Node::until([&] { return t.a.engine().counters().in_flight < 4; }, 1);
    }
    fill();
    const Token closing = t.b.token();
    t.b.transport().close_region(closing, region.region, 10);
    while (t.b.find(EventKind::region_closed, closing) == nullptr) {
      fill();
      Node::pump();
    }
    CHECK_EQ(t.b.find(EventKind::region_closed, closing)->status, Status::ok);
    std::memset(at, 0xee, nbytes);
    fill();
    for (int look = 0; look < 5; ++look) {
      std::this_thread::yield();
      if (!test::all_bytes(at, nbytes, std::byte{0xee})) {
        test::give_up("a byte was written into a region that was closed");
      }
    }
    for (const Token token : tokens) {
      const Status status = t.a.wait(token).status;
      written += status == Status::ok ? 1 : 0;
      stale += status == Status::stale_region ? 1 : 0;
      CHECK(status == Status::ok || status == Status::stale_region);
    }
    CHECK(test::all_bytes(at, nbytes, std::byte{0xee}));
    t.a.events.clear();
    t.b.events.clear();
    t.a.records.clear();
    t.a.states.clear();
  }
  CHECK(written > 0);
  CHECK(stale > 0);
}

TEST("no byte lands outside a live generation while a peer writes in a loop, over every link") {
  for (const LinkKind link : test::every_link) {
    if (link == LinkKind::inproc && test::thread_sanitized) {
      continue;  // the pins lie in two mappings, the bytes in one: it would miss what orders them
    }
    close_under_a_writer(link, true);
    if (link != LinkKind::shm) {
      close_under_a_writer(link, false);
    }
  }
}

TEST("closing under a long chunk says busy in time, may be asked again, and two requests close one region") {
  for (const LinkKind link : {LinkKind::inproc, LinkKind::shm, LinkKind::cma}) {
    Two t(link, {.chunk = UINT64_MAX});
    const std::uint64_t nbytes = 256 * kMiB;
    Target target(t.b, link, nbytes, "target", true);
    const RegionInfo remote = t.a.remote(t.at_a, "target");
    std::vector<std::byte> source(nbytes);
    std::vector<Run> runs(8, Node::run(source.data(), remote, 0, nbytes));
    const Node::Posted posted = t.a.post(t.at_a, runs);
    REQUIRE(ok(posted.status));
    CHECK(test::eventually([&] { return t.a.engine().counters().in_flight == 1; }));
    bool was_busy = false;
    // Until the copy is under way, and then while it is, the answer comes in time.
    const auto start = std::chrono::steady_clock::now();
    const Event first = t.b.close_region(target.region.region, 0.0005);
    CHECK(test::seconds_since(start) < 2);
    was_busy = first.status == Status::region_busy;
    if (was_busy) {
      CHECK(first.text.find(std::to_string(target.region.region)) != std::string::npos);
      const Token one = t.b.token();
      const Token two = t.b.token();
      t.b.transport().close_region(one, target.region.region, 30);
      t.b.transport().close_region(two, target.region.region, 30);
      CHECK_EQ(t.b.answer(EventKind::region_closed, one, 30).status, Status::ok);
      // The number may be given out again at once; the second request must not close its new bearer.
      const RegionInfo next = t.b.allocate(1000, Access::read_write, "next");
      CHECK_EQ(t.b.answer(EventKind::region_closed, two, 30).status, Status::ok);
      const RegionInfo seen = t.a.remote(t.at_a, "next");
      CHECK_EQ(seen.region, next.region);
      CHECK_EQ(t.a.transfer(t.at_a, {Node::run(source.data(), seen, 0, 1000)}), Status::ok);
    }
    CHECK(t.a.wait(posted.token, 60).status != Status::internal);
    CHECK_EQ(t.b.close_region(4000).status, Status::not_registered);
  }
}

TEST("regions made, closed and renamed after the connect are seen by the peer; refresh waits for what is on its way") {
  for (const LinkKind link : {LinkKind::inproc, LinkKind::shm, LinkKind::cooperative}) {
    Two t(link);
    RegionInfo seen;
    for (int round = 0; round < 50; ++round) {
      const RegionInfo region = t.b.allocate(round % 5 == 0 ? 2 * kMiB : 5000, Access::read_write, "kv");
      CHECK_EQ(t.a.refresh(t.at_a), Status::ok);
      CHECK(t.a.transport().find_region(t.at_a, "kv", seen));
      CHECK(seen.generation == region.generation && seen.region == region.region && seen.nbytes == region.nbytes);
      std::vector<std::byte> mine(5000, static_cast<std::byte>(round));
      CHECK_EQ(t.a.transfer(t.at_a, {Node::run(mine.data(), seen, 0, 5000)}), Status::ok);
      CHECK_EQ(t.b.close_region(region.region).status, Status::ok);
      CHECK_EQ(t.a.transfer(t.at_a, {Node::run(mine.data(), seen, 0, 10)}), Status::stale_region);
      CHECK_EQ(t.a.refresh(t.at_a), Status::ok);
      CHECK(!t.a.transport().find_region(t.at_a, "kv", seen));
    }
    CHECK_EQ(t.a.refresh(999), Status::not_connected);
  }
}

TEST("labels that are taken or too long, sizes that cannot be had and too many regions are refused with a text") {
  HostConfig config = test::config_of(test::every_link);
  config.max_regions = 10;
  Node a(config);
  REQUIRE(ok(a.status));
  const auto allocate = [&](std::uint64_t nbytes, const std::string& label) {
    const Token token = a.token();
    a.transport().allocate(token, RegionSpec{nbytes, nullptr, MemoryKind::shared, Access::read_write, label});
    const Event event = a.answer(EventKind::allocated, token);
    CHECK(ok(event.status) || !event.text.empty());
    return event;
  };
  const Event first = allocate(100, "kv");
  CHECK_EQ(first.status, Status::ok);
  CHECK_EQ(allocate(100, "kv").status, Status::invalid_argument);
  CHECK_EQ(allocate(100, std::string(256, 'x')).status, Status::invalid_argument);
  CHECK_EQ(allocate(100, std::string(255, 'x')).status, Status::ok);
  CHECK_EQ(allocate(std::uint64_t{1} << 45U, "").status, Status::resource_exhausted);
  CHECK_EQ(allocate(std::uint64_t{1} << 60U, "").status, Status::resource_exhausted);
  CHECK_EQ(allocate(UINT64_MAX, "").status, Status::resource_exhausted);
  for (int i = 0; i < 8; ++i) {
    CHECK_EQ(allocate(0, "").status, Status::ok);
  }
  CHECK_EQ(allocate(0, "").status, Status::resource_exhausted);
  CHECK_EQ(a.close_region(first.region.region).status, Status::ok);
  const Event again = allocate(100, "kv");
  CHECK_EQ(again.status, Status::ok);
  CHECK_EQ(again.region.region, first.region.region);
  CHECK(again.region.generation != first.region.generation);
  CHECK(test::all_bytes(again.region.address, 100, std::byte{0}));
}

TEST("settings out of range are refused at the start") {
  const auto status_with = [](void (*change)(HostConfig&)) {
    HostConfig config = test::config_of(test::every_link);
    change(config);
    Node node(config);
    CHECK(ok(node.status) || !node.error.empty());
    return node.status;
  };
  CHECK_EQ(status_with([](HostConfig&) {}), Status::ok);
  CHECK_EQ(status_with([](HostConfig& c) { c.copy_threads = 0; }), Status::invalid_argument);
  CHECK_EQ(status_with([](HostConfig& c) { c.chunk_nbytes = 0; }), Status::invalid_argument);
  CHECK_EQ(status_with([](HostConfig& c) { c.max_regions = 0; }), Status::invalid_argument);
  CHECK_EQ(status_with([](HostConfig& c) { c.max_regions = kMaxRegionsLimit + 1; }), Status::invalid_argument);
  CHECK_EQ(status_with([](HostConfig& c) { c.signal_capacity = 0; }), Status::invalid_argument);
  CHECK_EQ(status_with([](HostConfig& c) { c.signal_capacity = kSignalCapacityLimit + 1; }), Status::invalid_argument);
}

TEST("thousands of operations of all kinds between three engines end once each, with the right bytes") {
  HostConfig config = test::config_of({LinkKind::shm, LinkKind::cma});
  config.copy_threads = 4;
  config.chunk_nbytes = 10'000;
  Node a(config);
  Node b({LinkKind::cooperative});
  Node c(test::every_link);
  Node* nodes[] = {&a, &b, &c};
  std::vector<std::byte> memory[3];
  PeerId peers[3][3] = {};
  RegionInfo remotes[3][3];
  for (int i = 0; i < 3; ++i) {
    memory[i].resize(3 * 100'000);
    nodes[i]->add(memory[i].data(), memory[i].size(), Access::read_write, "memory");
  }
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) {
      peers[i][j] = nodes[i]->connected(*nodes[j]);
      remotes[i][j] = nodes[i]->remote(peers[i][j], "memory");
    }
  }
  std::mt19937_64 random(1);
  std::vector<std::byte> sources[3];
  std::vector<std::pair<int, Token>> tokens;
  std::uint64_t posted_count[3] = {};
  for (int i = 0; i < 3; ++i) {
    sources[i] = pattern(100'000, static_cast<std::uint64_t>(i) + 1);
  }
  const int rounds = test::sanitized ? 1500 : 6000;
  for (int round = 0; round < rounds; ++round) {
    const int i = static_cast<int>(random() % 3);
    const int j = static_cast<int>(random() % 3);
    // Into the part of the target that is ours, so that every order of the writers gives one result.
    const std::uint64_t nbytes = random() % (round % 10 == 0 ? 100'000 : 500);
    const std::uint64_t offset = random() % (100'000 - nbytes + 1);
    const Node::Posted posted =
        nodes[i]->post(peers[i][j], {Node::run(sources[i].data() + offset, remotes[i][j],
                                               static_cast<std::uint64_t>(i) * 100'000 + offset, nbytes)});
    if (posted.status == Status::queue_full) {
      Node::until([&] { return nodes[i]->engine().counters().in_flight < 500; });
      continue;
    }
    REQUIRE(ok(posted.status));
    tokens.emplace_back(i, posted.token);
    ++posted_count[i];
  }
  for (int i = 0; i < 3; ++i) {  // the whole, so that the result is known
    for (int j = 0; j < 3; ++j) {
      CHECK_EQ(nodes[i]->transfer(peers[i][j], {Node::run(sources[i].data(), remotes[i][j],
                                                          static_cast<std::uint64_t>(i) * 100'000, 100'000)}),
               Status::ok);
    }
  }
  for (const auto& [i, token] : tokens) {
    CHECK_EQ(nodes[i]->wait(token).status, Status::ok);
  }
  for (int i = 0; i < 3; ++i) {
    CHECK_EQ(nodes[i]->records.size(), posted_count[i] + 3);
    for (int j = 0; j < 3; ++j) {
      CHECK(test::same(memory[j].data() + i * 100'000, sources[i].data(), 100'000));
    }
  }
}

TEST("a peer that floods us with signals does not starve the others") {
  Node target(test::every_link);
  Node flood(test::every_link);
  Node quiet(test::every_link);
  const PeerId to_flood = flood.connected(target);  // the first place
  const PeerId to_quiet = quiet.connected(target);
  CHECK(ok(quiet.signal(to_quiet, "first")));
  CHECK(target.arrives("first"));
  for (int i = 0; i < 2; ++i) {
    for (int n = 0; n < 3000; ++n) {
      CHECK(ok(flood.signal(to_flood, "flood")));
    }
    CHECK(ok(quiet.signal(to_quiet, "quiet")));
    int drains = 0;
    while (target.signals_named("quiet") == 0 && drains < 100) {
      target.engine().drain(target, 256);
      ++drains;
      while (ok(flood.signal(to_flood, "flood"))) {  // the flood goes on
      }
    }
    CHECK(drains <= 3);
    CHECK(Node::until([&] { return target.signals_named("flood") >= 4096; }));
    Node::until([] { return false; }, 0.01);
    target.signals.clear();
  }
}

TEST("a signal that is too long is refused before a byte moves and before a place is taken") {
  Two t(LinkKind::inproc);
  Target target(t.b, LinkKind::inproc, 100, "target", false);
  const RegionInfo remote = t.a.remote(t.at_a, "target");
  const std::string too_long(kMaxSignalText + 1, 'x');
  std::vector<std::byte> mine(100, std::byte{1});
  for (int i = 0; i < 5000; ++i) {  // more than there are places
    CHECK_EQ(t.a.signal(t.at_a, too_long), Status::invalid_argument);
    CHECK_EQ(t.a.signal(t.at_a, "name", too_long), Status::invalid_argument);
  }
  const SignalText text{true, "name", too_long};
  const Run run = Node::run(mine.data(), remote, 0, 100);
  CHECK_EQ(t.a.engine().transfer_now(t.at_a, run, &text, true), Status::invalid_argument);
  CHECK_EQ(t.a.transfer(t.at_a, {run}, too_long.c_str()), Status::invalid_argument);
  t.a.transport().unreserve_signal(t.at_a);
  CHECK(test::all_bytes(target.at, 100, std::byte{0}));
  CHECK(ok(t.a.signal(t.at_a, std::string(kMaxSignalText, 'n'), std::string(kMaxSignalText, 'p'))));
  CHECK(t.b.arrives(std::string(kMaxSignalText, 'n')));
  CHECK_EQ(t.b.signals.size(), 1U);
}

TEST("the 4097th unread signal is refused at the sender, and a place that was not used can be given back") {
  Node target(test::every_link);
  Node sender(test::every_link);
  target.take_signals = false;
  const PeerId peer = sender.connected(target);
  for (int i = 0; i < 4096; ++i) {
    CHECK(ok(sender.signal(peer, "s")));
  }
  CHECK_EQ(sender.signal(peer, "s"), Status::signal_queue_full);
  CHECK(target.arrives("s", 4096));
  CHECK_EQ(sender.transport().reserve_signal(peer), Status::signal_queue_full);
  target.transport().signals_taken(target.peer_of(sender), 1);
  CHECK_EQ(sender.transport().reserve_signal(peer), Status::ok);
  CHECK_EQ(sender.signal(peer, "s"), Status::signal_queue_full);
  sender.transport().unreserve_signal(peer);
  CHECK_EQ(sender.signal(peer, "s"), Status::ok);
  CHECK(target.arrives("s", 4097));
}

TEST("a peer's memory for which no descriptor is left is reached over another link; the connection stays") {
  Node a(test::every_link);
  test::Stranger s;
  REQUIRE(s.join(a.address));
  REQUIRE(Node::until([&] { return a.find_peer(EventKind::accepted, 1) != nullptr; }));
  Status status = Status::ok;
  std::string error;
  const auto segment = Segment::create(1, SegmentClass::writable, 8192, status, error);
  Writer announce;
  announce.type(FrameType::segment)
      .put(std::uint32_t{1})
      .put(static_cast<std::uint8_t>(SegmentClass::writable))
      .put(std::uint64_t{8192});
  RegionFrame region;
  region.generation = 1;
  region.kind = MemoryKind::shared;
  region.access = Access::read_write;
  region.segment = 1;
  region.nbytes = 100;
  region.address = reinterpret_cast<std::uintptr_t>(segment->base());
  region.label = "there";
  Writer regions;
  regions.type(FrameType::regions).put(std::uint16_t{1});
  region.encode(regions);
  rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &old) == 0);
  rlimit low = old;
  low.rlim_cur = 3;
  s.channel->entry(0).generation.store(1);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  s.send(announce.bytes(), {segment->fd()});
  s.send(regions);
  Writer sync;
  sync.type(FrameType::sync).put(std::uint64_t{7});
  s.send(sync);
  Frame frame;
  bool answered = false;
  while (!answered && s.receive(frame)) {
    answered = test::Stranger::type(frame) == FrameType::sync_ack;
  }
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &old) == 0);
  CHECK(answered);
  std::vector<std::byte> mine(100, std::byte{9});
  CHECK_EQ(a.transfer(1, {Node::run(mine.data(), a.remote(1, "there"), 0, 100)}), Status::ok);  // by process_vm
  CHECK(test::all_bytes(segment->base(), 100, std::byte{9}));
  s.socket.reset();
  CHECK(Node::until([&] { return a.find_peer(EventKind::peer_down, 1) != nullptr; }));
}

}  // namespace
}  // namespace hixl_aio::host

HIXL_TEST_MAIN
