// What a peer tells us of its memory: nothing is believed that its own descriptors and the bounds do not bear out.
#include <sys/mman.h>
#include <sys/resource.h>

#include "host_support.h"
#include "transports/host/memory.h"

namespace hixl_aio::host {
namespace {

using test::Leftovers;
using test::Pair;

constexpr std::uint64_t kMiB = 1U << 20U;

// The owner's side is played: segments, frames and generations as an engine would have them.
struct Fixture {
  Pair pair;
  std::vector<std::shared_ptr<Segment>> segments;

  explicit Fixture(LinkKind shared = LinkKind::shm, LinkKind host = LinkKind::none)
      : pair({.max_regions = 64, .link = shared, .host_link = host}) {}
  Peer& peer() { return *pair.a.peer; }
  Segment& segment(std::uint32_t id, SegmentClass kind = SegmentClass::writable, std::uint64_t nbytes = kMiB) {
    Status status = Status::ok;
    std::string error;
    segments.push_back(Segment::create(id, kind, nbytes, status, error));
    REQUIRE(segments.back());
    return *segments.back();
  }
  static SegmentFrame frame(const Segment& segment) { return {segment.id(), segment.kind(), segment.nbytes()}; }
  bool add(const Segment& segment) { return peer().add_segment(frame(segment), test::copy_of(segment.fd())); }
  void open(std::uint32_t region, std::uint32_t generation) {
    pair.b.owned->entry(region).generation.store(generation);
  }
  static RegionFrame region(std::uint32_t id, const Segment& segment, std::uint64_t offset, std::uint64_t nbytes) {
    RegionFrame out;
    out.region = id;
    out.generation = 1;
    out.kind = MemoryKind::shared;
    out.access = segment.kind() == SegmentClass::readable ? Access::read : Access::read_write;
    out.segment = segment.id();
    out.segment_offset = offset;
    out.nbytes = nbytes;
    out.address = reinterpret_cast<std::uintptr_t>(segment.base()) + offset;
    out.label = "r" + std::to_string(id);
    return out;
  }
  Status resolve(std::uint32_t region, std::uint32_t generation, std::uint64_t offset, std::uint64_t nbytes,
                 Direction direction = Direction::put, Run* out = nullptr) {
    Run run;
    run.region = region;
    run.generation = generation;
    run.remote_offset = offset;
    run.nbytes = nbytes;
    run.direction = direction;
    const std::lock_guard lock(peer().directory_mutex);
    std::size_t at = 0;
    const Status status = peer().resolve({&run, 1}, at);
    if (out != nullptr) {
      *out = run;
    }
    return status;
  }
};

std::size_t mappings(const std::string& of) {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find(of) != std::string::npos ? 1 : 0;
  }
  return count;
}

TEST("a run is resolved to the place in our mapping where the owner sees the same bytes") {
  Fixture f;
  Segment& segment = f.segment(7);
  CHECK(f.add(segment));
  CHECK(f.peer().add_region(Fixture::region(3, segment, 4096, 1000)));
  f.open(3, 1);
  Run run;
  CHECK_EQ(f.resolve(3, 1, 10, 990, Direction::put, &run), Status::ok);
  CHECK_EQ(static_cast<LinkKind>(run.link), LinkKind::shm);
  run.remote[989] = std::byte{5};
  CHECK(segment.base()[4096 + 999] == std::byte{5});
  CHECK_EQ(f.resolve(3, 1, 1000, 0), Status::ok);
}

TEST("bounds, rights, generations and region numbers are checked before anything moves") {
  Fixture f;
  Segment& writable = f.segment(1);
  Segment& readable = f.segment(2, SegmentClass::readable);
  CHECK(f.add(writable) && f.add(readable));
  CHECK(f.peer().add_region(Fixture::region(0, writable, 0, 1000)));
  CHECK(f.peer().add_region(Fixture::region(1, readable, 0, 1000)));
  RegionFrame write_only = Fixture::region(2, writable, 2000, 1000);
  write_only.access = Access::write;
  CHECK(f.peer().add_region(write_only));
  for (std::uint32_t region = 0; region < 3; ++region) {
    f.open(region, 1);
  }
  CHECK_EQ(f.resolve(0, 1, 0, 1001), Status::out_of_bounds);
  CHECK_EQ(f.resolve(0, 1, 1001, 0), Status::out_of_bounds);
  CHECK_EQ(f.resolve(0, 1, 1, UINT64_MAX), Status::out_of_bounds);
  CHECK_EQ(f.resolve(0, 1, UINT64_MAX, 1), Status::out_of_bounds);
  CHECK_EQ(f.resolve(0, 1, UINT64_MAX, UINT64_MAX), Status::out_of_bounds);
  CHECK_EQ(f.resolve(1, 1, 0, 1, Direction::put), Status::access_denied);
  CHECK_EQ(f.resolve(1, 1, 0, 1, Direction::get), Status::ok);
  CHECK_EQ(f.resolve(2, 1, 0, 1, Direction::get), Status::access_denied);
  CHECK_EQ(f.resolve(0, 2, 0, 1), Status::stale_region);
  CHECK_EQ(f.resolve(0, 0, 0, 1), Status::stale_region);
  CHECK_EQ(f.resolve(9, 0, 0, 0), Status::stale_region);
  for (const std::uint32_t region : {3U, 63U, 64U, 65U, 1U << 20U, UINT32_MAX}) {
    CHECK_EQ(f.resolve(region, 1, 0, 1), Status::stale_region);
  }
  f.open(0, 0);  // the owner has closed it, its message is on the way
  CHECK_EQ(f.resolve(0, 1, 0, 1), Status::stale_region);
  f.open(0, 2);
  CHECK_EQ(f.resolve(0, 2, 0, 1), Status::stale_region);  // opened anew, not announced yet
  f.open(0, 1);
  CHECK_EQ(f.resolve(0, 1, 0, 1), Status::ok);
  CHECK(f.peer().mark_down(Status::peer_lost));
  CHECK_EQ(f.resolve(0, 1, 0, 1), Status::peer_lost);
}

TEST("segments that could shrink, are smaller than announced, empty or announced twice are refused") {
  const Leftovers before;
  {
    Fixture f;
    Segment& segment = f.segment(1);
    SegmentFrame frame = Fixture::frame(segment);
    frame.nbytes = 0;
    CHECK(!f.peer().add_segment(frame, test::copy_of(segment.fd())));
    frame.nbytes = segment.nbytes() + 1;
    CHECK(!f.peer().add_segment(frame, test::copy_of(segment.fd())));
    frame.nbytes = UINT64_MAX;
    CHECK(!f.peer().add_segment(frame, test::copy_of(segment.fd())));
    frame = Fixture::frame(segment);
    UniqueFd unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(::ftruncate(unsealed.get(), static_cast<off_t>(segment.nbytes())) == 0);
    CHECK(!f.peer().add_segment(frame, std::move(unsealed)));
    CHECK(!f.peer().add_segment(frame, test::event_fd()));
    CHECK(f.add(segment));
    CHECK(!f.add(segment));
    CHECK_EQ(mappings("hixl-aio-segment"), 2U);  // the owner's and ours
    f.peer().drop_segment(1);
    f.peer().drop_segment(1);
    f.peer().drop_segment(99);
    CHECK_EQ(mappings("hixl-aio-segment"), 1U);
    CHECK(f.add(segment));
  }
  CHECK(before.none());
  CHECK_EQ(mappings("hixl-aio-segment"), 0U);
}

TEST("a readable segment is mapped read-only, and no region in it may grant writing") {
  Fixture f;
  Segment& segment = f.segment(1, SegmentClass::readable);
  CHECK(f.add(segment));
  RegionFrame lie = Fixture::region(0, segment, 0, 100);
  lie.access = Access::read_write;
  CHECK(!f.peer().add_region(lie));
  lie.access = Access::write;
  CHECK(!f.peer().add_region(lie));
  // Announced as writable: the seal refuses the mapping, so nothing in it can be reached, and nobody crashes later.
  Segment& other = f.segment(2, SegmentClass::readable);
  SegmentFrame frame = Fixture::frame(other);
  frame.kind = SegmentClass::writable;
  CHECK(f.peer().add_segment(frame, test::copy_of(other.fd())));
  RegionFrame region = Fixture::region(1, other, 0, 100);
  region.access = Access::read_write;
  CHECK(f.peer().add_region(region));
  f.open(1, 1);
  CHECK_EQ(f.resolve(1, 1, 0, 1), Status::no_link);
}

TEST("regions beyond their segment, in an unknown one, beyond the table or around the address space are refused") {
  Fixture f;
  Segment& segment = f.segment(1);
  CHECK(f.add(segment));
  CHECK(f.peer().add_region(Fixture::region(0, segment, 0, kMiB)));
  CHECK(f.peer().add_region(Fixture::region(63, segment, kMiB, 0)));
  CHECK(!f.peer().add_region(Fixture::region(1, segment, 0, kMiB + 1)));
  CHECK(!f.peer().add_region(Fixture::region(1, segment, 1, kMiB)));
  CHECK(!f.peer().add_region(Fixture::region(1, segment, kMiB + 1, 0)));
  CHECK(!f.peer().add_region(Fixture::region(1, segment, UINT64_MAX, 1)));
  CHECK(!f.peer().add_region(Fixture::region(1, segment, 1, UINT64_MAX)));
  CHECK(!f.peer().add_region(Fixture::region(64, segment, 0, 1)));
  CHECK(!f.peer().add_region(Fixture::region(UINT32_MAX, segment, 0, 1)));
  RegionFrame wraps = Fixture::region(1, segment, 0, 100);
  wraps.address = UINT64_MAX - 50;
  CHECK(!f.peer().add_region(wraps));
  RegionFrame unknown = Fixture::region(1, segment, 0, 100);
  unknown.segment = 2;
  CHECK(!f.peer().add_region(unknown));
}

TEST("labels follow the regions that are announced, replaced, taken back and unmapped") {
  Fixture f;
  Segment& segment = f.segment(1);
  CHECK(f.add(segment));
  RegionInfo info;
  RegionFrame kv = Fixture::region(1, segment, 0, 100);
  kv.label = "kv";
  CHECK(f.peer().add_region(kv));
  CHECK(f.peer().find("kv", info));
  CHECK_EQ(info.region, 1U);
  CHECK_EQ(info.nbytes, 100U);
  CHECK(info.address == nullptr);  // the owner's address is nobody's business
  RegionFrame moved = Fixture::region(2, segment, 0, 200);
  moved.label = "kv";
  CHECK(f.peer().add_region(moved));
  CHECK(f.peer().find("kv", info));
  CHECK_EQ(info.region, 2U);
  f.peer().drop_region(1, 1);  // the old bearer goes, the label stays
  CHECK(f.peer().find("kv", info));
  CHECK_EQ(info.region, 2U);
  f.peer().drop_region(2, 9);  // another life of that region
  CHECK(f.peer().find("kv", info));
  f.peer().drop_region(2, 1);
  CHECK(!f.peer().find("kv", info));
  CHECK(f.peer().add_region(moved));
  RegionFrame renamed = moved;
  renamed.label = "other";
  renamed.generation = 2;
  CHECK(f.peer().add_region(renamed));
  CHECK(!f.peer().find("kv", info));
  CHECK(f.peer().find("other", info));
  CHECK_EQ(info.generation, 2U);
  // Two regions claim one label; when the second bearer is renamed, the first one's claim must not take it along.
  CHECK(f.peer().add_region(kv));
  RegionFrame thief = Fixture::region(3, segment, 0, 100);
  thief.label = "kv";
  CHECK(f.peer().add_region(thief));
  RegionFrame again = kv;
  again.label = "first";
  again.generation = 2;
  CHECK(f.peer().add_region(again));
  CHECK(f.peer().find("kv", info));
  CHECK_EQ(info.region, 3U);
  f.peer().drop_segment(1);
  for (const char* label : {"kv", "other", "first", ""}) {
    CHECK(!f.peer().find(label, info));
  }
  f.peer().drop_region(40, 0);
  f.peer().drop_region(UINT32_MAX, 0);
}

TEST("memory that cannot be mapped here is reached by the other link, or by none, and costs no connection") {
  for (const LinkKind host : {LinkKind::none, LinkKind::cma, LinkKind::cooperative}) {
    Fixture f(LinkKind::shm, host);
    Segment& segment = f.segment(1);
    // Without its descriptor, as after a process ran out of them.
    CHECK(f.peer().add_segment(Fixture::frame(segment), UniqueFd()));
    CHECK(!f.peer().add_segment(Fixture::frame(segment), UniqueFd()));
    CHECK(f.peer().add_region(Fixture::region(0, segment, 64, 100)));
    f.open(0, 1);
    Run run;
    CHECK_EQ(f.resolve(0, 1, 1, 1, Direction::put, &run), host == LinkKind::none ? Status::no_link : Status::ok);
    if (host != LinkKind::none) {
      CHECK_EQ(static_cast<LinkKind>(run.link), host);
    }
    if (host == LinkKind::cma) {
      CHECK_EQ(run.remote, segment.base() + 65);
    }
    f.peer().drop_segment(1);
    CHECK_EQ(f.resolve(0, 1, 1, 1), Status::stale_region);
  }
}

TEST("an inline copy moves exactly its bytes and leaves no pin; other links and stale regions are not touched") {
  Fixture f;
  Segment& segment = f.segment(1);
  CHECK(f.add(segment));
  CHECK(f.peer().add_region(Fixture::region(0, segment, 128, 256)));
  f.open(0, 1);
  auto source = test::pattern(256, 1);
  std::memset(segment.base(), 0xa5, 1024);
  Run run;
  run.local = source.data();
  run.generation = 1;
  run.remote_offset = 8;
  run.nbytes = 240;
  CHECK_EQ(f.peer().copy_now({&run, 1}), Status::ok);
  CHECK(test::same(segment.base() + 136, source.data(), 240));
  CHECK(test::all_bytes(segment.base(), 136, std::byte{0xa5}));
  CHECK(test::all_bytes(segment.base() + 376, 100, std::byte{0xa5}));
  std::vector<std::byte> back(240);
  run.direction = Direction::get;
  run.local = back.data();
  CHECK_EQ(f.peer().copy_now({&run, 1}), Status::ok);
  CHECK(test::same(back.data(), source.data(), 240));
  run.nbytes = 0;
  run.local = nullptr;
  CHECK_EQ(f.peer().copy_now({&run, 1}), Status::ok);
  CHECK_EQ(f.pair.b.owned->entry(0).pins.load(), 0U);
  f.open(0, 2);
  CHECK_EQ(f.peer().copy_now({&run, 1}), Status::stale_region);
  Fixture cma(LinkKind::cma, LinkKind::cma);
  RegionFrame host;
  host.generation = 1;
  host.access = Access::read_write;
  host.nbytes = 10;
  host.address = reinterpret_cast<std::uintptr_t>(source.data());
  CHECK(cma.peer().add_region(host));
  cma.open(0, 1);
  Run other{.local = source.data(), .nbytes = 10, .generation = 1};
  CHECK_EQ(cma.peer().copy_now({&other, 1}), Status::would_block);
}

TEST("an inline batch moves all of its runs or none, and leaves no pin, wherever the one that cannot be done stands") {
  for (std::size_t bad = 0; bad <= 4; ++bad) {
    Fixture f;
    Segment& segment = f.segment(1);
    CHECK(f.add(segment));
    for (std::uint32_t region = 0; region < 3; ++region) {
      CHECK(f.peer().add_region(Fixture::region(region, segment, region * 512, 512)));
      f.open(region, 1);
    }
    std::memset(segment.base(), 0xa5, 2048);
    auto source = test::pattern(4 * 100, 1);
    std::vector<Run> runs;
    for (std::uint32_t i = 0; i < 4; ++i) {
      Run& run = runs.emplace_back();
      run.local = source.data() + i * 100;
      run.region = i / 2;  // neighbours share one, and the last two are in another
      run.remote_offset = i * 100;
      run.nbytes = 100;
      run.generation = 1;
    }
    if (bad < 4) {
      runs[bad].generation = 2;  // of a region that was opened anew
      CHECK_EQ(f.peer().copy_now(runs), Status::stale_region);
      CHECK(test::all_bytes(segment.base(), 2048, std::byte{0xa5}));
    } else {
      CHECK_EQ(f.peer().copy_now(runs), Status::ok);
      CHECK(test::same(segment.base(), source.data(), 200));
      CHECK(test::same(segment.base() + 512 + 200, source.data() + 200, 200));
    }
    for (std::uint32_t region = 0; region < 3; ++region) {
      CHECK_EQ(f.pair.b.owned->entry(region).pins.load(), 0U);
    }
  }
}

TEST("a peer's segment that is mapped ahead, part by part, faults no page at its first use, and keeps its bytes") {
  for (const SegmentClass kind : {SegmentClass::writable, SegmentClass::readable}) {
    Fixture f;
    constexpr std::uint64_t size = 8U << 20U;
    Segment& segment = f.segment(1, kind, size);
    std::memset(segment.base(), 0x5a, size);
    CHECK(f.add(segment));
    CHECK(f.peer().add_region(Fixture::region(0, segment, 0, size)));
    f.open(0, 1);
    std::uint64_t at = 0;
    std::size_t steps = 0;
    do {
      at = f.peer().prefault_segment(1, at, 3U << 20U);
      ++steps;
    } while (at != 0);
    CHECK_EQ(steps, 3U);
    CHECK_EQ(f.peer().prefault_segment(2, 0, size), 0U);  // no such segment
    CHECK_EQ(f.peer().prefault_segment(1, size, size), 0U);
    Run run;
    CHECK_EQ(f.resolve(0, 1, 0, size, Direction::get, &run), Status::ok);
    rusage before{};
    rusage after{};
    getrusage(RUSAGE_THREAD, &before);
    CHECK(test::all_bytes(run.remote, size, std::byte{0x5a}));
    getrusage(RUSAGE_THREAD, &after);
    // Of 2048 pages. A sanitizer touches memory of its own as well.
    CHECK(test::sanitized || after.ru_minflt - before.ru_minflt < 16);
  }
}

}  // namespace
}  // namespace hixl_aio::host

HIXL_TEST_MAIN
