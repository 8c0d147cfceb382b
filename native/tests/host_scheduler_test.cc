// The copy scheduler, driven step by step without a thread, then by four threads at once.
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <random>
#include <thread>

#include "host_support.h"

namespace hixl_aio::host {
namespace {

using test::Pair;
using test::pattern;

constexpr std::uint64_t kChunk = 4096;

struct Finisher final : OpFinisher {
  std::vector<Op*> ended;
  std::map<Op*, Status> status;
  void finish(Op& op) noexcept override {
    ended.push_back(&op);
    CHECK(status.emplace(&op, settle_runs(op)).second);
  }
  [[nodiscard]] bool has(const Op& op) const { return status.contains(const_cast<Op*>(&op)); }
  [[nodiscard]] Status of(const Op& op) const { return status.at(const_cast<Op*>(&op)); }
};

// Memory on both sides, and operations over it whose runs are resolved as admit() would.
struct Fixture {
  Pair pair;
  Finisher finisher;
  CopyScheduler scheduler;
  std::deque<Op> ops;
  LinkKind link;

  explicit Fixture(LinkKind kind = LinkKind::inproc, std::uint64_t chunk = kChunk, std::uint64_t stream = UINT64_MAX)
      : pair({.link = kind}), scheduler(finisher, chunk, stream), link(kind) {
    for (std::uint32_t region = 0; region < 16; ++region) {
      open(region, 1);
    }
  }
  void open(std::uint32_t region, std::uint32_t generation) {
    pair.b.owned->entry(region).generation.store(generation, std::memory_order_seq_cst);
  }
  Op& op() {
    Op& made = ops.emplace_back();
    made.target = pair.a.peer.get();
    return made;
  }
  void run(Op& op, std::byte* local, std::byte* remote, std::uint64_t nbytes, Direction direction = Direction::put,
           std::uint32_t region = 0) const {
    Run run;
    run.local = local;
    run.remote = remote;
    run.nbytes = nbytes;
    run.region = region;
    run.generation = 1;
    run.direction = direction;
    run.link = static_cast<std::uint8_t>(link);
    op.runs.push_back(run);
    op.nbytes += nbytes;
  }
  void enqueue(Op& op) { scheduler.enqueue(op); }
  std::size_t steps_until(const Op& op) {
    std::size_t steps = 0;
    while (!finisher.has(op)) {
      ++steps;
      if (!scheduler.step()) {
        CHECK(!"nothing left to do, and the operation has not ended");
        break;
      }
    }
    return steps;
  }
  void run_dry() {
    while (scheduler.step()) {
    }
    for (std::uint32_t region = 0; region < 16; ++region) {
      CHECK_EQ(pair.b.owned->entry(region).pins.load(), 0U);
    }
  }
};

TEST("a 128-byte put enqueued during a large put to the same peer ends within two steps") {
  for (std::size_t steps_before = 0; steps_before < 9; ++steps_before) {
    Fixture f;
    auto from = pattern(1024 * kChunk, 1);
    std::vector<std::byte> to(from.size());
    auto small_from = pattern(128, 2);
    std::vector<std::byte> small_to(128);
    Op& large = f.op();
    f.run(large, from.data(), to.data(), from.size());
    f.enqueue(large);
    for (std::size_t i = 0; i < steps_before; ++i) {
      CHECK(f.scheduler.step());
    }
    Op& small = f.op();
    f.run(small, small_from.data(), small_to.data(), 128);
    f.enqueue(small);
    CHECK(f.steps_until(small) <= 2);
    CHECK(small_to == small_from);
    CHECK(!f.finisher.has(large));
    f.run_dry();
    CHECK_EQ(f.finisher.of(large), Status::ok);
    CHECK(to == from);
  }
}

TEST("a small put ends within two steps however many large ones wait") {
  for (std::size_t steps_before = 0; steps_before < 5; ++steps_before) {
    Fixture f;
    auto from = pattern(8 * kChunk, 1);
    std::vector<std::vector<std::byte>> to(100, std::vector<std::byte>(from.size()));
    for (auto& destination : to) {
      Op& large = f.op();
      f.run(large, from.data(), destination.data(), from.size());
      f.enqueue(large);
    }
    for (std::size_t i = 0; i < steps_before; ++i) {
      f.scheduler.step();
    }
    std::vector<std::byte> small_to(128);
    Op& small = f.op();
    f.run(small, from.data(), small_to.data(), 128);
    f.enqueue(small);
    CHECK(f.steps_until(small) <= 2);
    f.run_dry();
    for (const auto& destination : to) {
      CHECK(destination == from);
    }
    CHECK_EQ(f.finisher.ended.size(), 101U);
  }
}

TEST("an endless stream of small puts does not starve a large one: it gets every other step") {
  Fixture f;
  auto from = pattern(64 * kChunk, 1);
  std::vector<std::byte> to(from.size());
  std::vector<std::byte> small_to(128);
  Op& large = f.op();
  f.run(large, from.data(), to.data(), from.size());
  f.enqueue(large);
  std::size_t steps = 0;
  while (!f.finisher.has(large) && steps < 1000) {
    for (int i = 0; i < 2; ++i) {
      Op& small = f.op();
      f.run(small, from.data(), small_to.data(), 128);
      f.enqueue(small);
    }
    CHECK(f.scheduler.step());
    ++steps;
  }
  CHECK(steps <= 2 * 64 + 2);
  CHECK(to == from);
  f.run_dry();
}

TEST("large puts share the steps: none waits until another has ended") {
  Fixture f;
  auto from = pattern(16 * kChunk, 1);
  std::vector<std::byte> to_first(from.size());
  std::vector<std::byte> to_second(from.size());
  Op& first = f.op();
  f.run(first, from.data(), to_first.data(), from.size());
  f.enqueue(first);
  Op& second = f.op();
  f.run(second, from.data(), to_second.data(), from.size());
  f.enqueue(second);
  CHECK_EQ(f.steps_until(first), 31U);
  CHECK_EQ(f.steps_until(second), 1U);
}

TEST("a stop takes effect at the next chunk: status stopped, whole runs done, the cut one and the rest stopped") {
  Fixture f;
  auto from = pattern(12 * kChunk, 1);
  std::vector<std::byte> to(from.size());
  Op& op = f.op();
  for (std::size_t i = 0; i < 4; ++i) {
    f.run(op, from.data() + i * 3 * kChunk, to.data() + i * 3 * kChunk, 3 * kChunk);
  }
  f.enqueue(op);
  for (int i = 0; i < 4; ++i) {
    f.scheduler.step();
  }
  op.stop_requested.store(true);
  CHECK_EQ(f.steps_until(op), 1U);
  CHECK_EQ(f.finisher.of(op), Status::stopped);
  CHECK_EQ(op.runs[0].state, RunState::done);
  CHECK_EQ(op.runs[1].state, RunState::stopped);
  CHECK_EQ(op.runs[2].state, RunState::stopped);
  CHECK_EQ(op.runs[3].state, RunState::stopped);
  CHECK_EQ(op.moved_nbytes, 4 * kChunk);
  CHECK(test::same(to.data(), from.data(), 4 * kChunk));
  CHECK(test::all_bytes(to.data() + 4 * kChunk, 8 * kChunk, std::byte{0}));
  CHECK(!f.scheduler.step());
}

TEST("a stop before the first chunk moves nothing; one after the last chunk changes nothing") {
  Fixture f;
  auto from = pattern(2 * kChunk, 1);
  std::vector<std::byte> to(from.size());
  Op& early = f.op();
  f.run(early, from.data(), to.data(), from.size());
  early.stop_requested.store(true);
  f.enqueue(early);
  f.run_dry();
  CHECK_EQ(f.finisher.of(early), Status::stopped);
  CHECK_EQ(early.runs[0].state, RunState::stopped);
  CHECK_EQ(early.moved_nbytes, 0U);
  CHECK(test::all_bytes(to.data(), to.size(), std::byte{0}));
  Op& late = f.op();
  f.run(late, from.data(), to.data(), from.size());
  f.enqueue(late);
  f.run_dry();
  late.stop_requested.store(true);
  CHECK(!f.scheduler.step());
  CHECK_EQ(f.finisher.of(late), Status::ok);
}

TEST("a region that goes stale in the middle fails only its runs, the rest are done") {
  Fixture f;
  auto from = pattern(8 * kChunk, 1);
  std::vector<std::byte> to(from.size());
  Op& op = f.op();
  for (std::uint32_t i = 0; i < 4; ++i) {  // regions 0, 1, 0, 1
    f.run(op, from.data() + i * 2 * kChunk, to.data() + i * 2 * kChunk, 2 * kChunk, Direction::put, i % 2);
  }
  f.enqueue(op);
  for (int i = 0; i < 3; ++i) {
    f.scheduler.step();
  }
  f.open(1, 0);
  f.run_dry();
  CHECK_EQ(f.finisher.of(op), Status::stale_region);
  CHECK_EQ(op.runs[0].state, RunState::done);
  CHECK_EQ(op.runs[1].state, RunState::stale);
  CHECK_EQ(op.runs[2].state, RunState::done);
  CHECK_EQ(op.runs[3].state, RunState::stale);
  CHECK(test::same(to.data(), from.data(), 3 * kChunk));
  CHECK(test::all_bytes(to.data() + 3 * kChunk, kChunk, std::byte{0}));
  CHECK(test::same(to.data() + 4 * kChunk, from.data() + 4 * kChunk, 2 * kChunk));
  CHECK(test::all_bytes(to.data() + 6 * kChunk, 2 * kChunk, std::byte{0}));
  CHECK_EQ(op.moved_nbytes, 5 * kChunk);
}

TEST("a region that was opened anew is as stale as a closed one") {
  Fixture f;
  auto from = pattern(kChunk, 1);
  std::vector<std::byte> to(from.size());
  f.open(0, 2);
  Op& op = f.op();
  f.run(op, from.data(), to.data(), from.size());
  f.enqueue(op);
  f.run_dry();
  CHECK_EQ(f.finisher.of(op), Status::stale_region);
  CHECK(test::all_bytes(to.data(), to.size(), std::byte{0}));
}

TEST("a peer that goes down fails what was not copied, with the reason, in one step an operation") {
  Fixture f;
  auto from = pattern(8 * kChunk, 1);
  std::vector<std::byte> to(from.size());
  Op& half = f.op();
  for (std::size_t i = 0; i < 4; ++i) {
    f.run(half, from.data() + i * 2 * kChunk, to.data() + i * 2 * kChunk, 2 * kChunk);
  }
  f.enqueue(half);
  for (int i = 0; i < 3; ++i) {
    f.scheduler.step();
  }
  Op& waiting = f.op();
  f.run(waiting, from.data(), to.data(), from.size());
  f.enqueue(waiting);
  CHECK(f.pair.a.peer->mark_down(Status::peer_lost));
  Op& late = f.op();
  f.run(late, from.data(), to.data(), 16);
  f.enqueue(late);
  for (int i = 0; i < 3; ++i) {
    CHECK(f.scheduler.step());
  }
  CHECK(!f.scheduler.step());
  CHECK_EQ(f.finisher.of(half), Status::peer_lost);
  CHECK_EQ(f.finisher.of(waiting), Status::peer_lost);
  CHECK_EQ(f.finisher.of(late), Status::peer_lost);
  CHECK_EQ(half.runs[0].state, RunState::done);
  CHECK_EQ(half.runs[1].state, RunState::failed);
  CHECK_EQ(half.runs[3].state, RunState::failed);
  CHECK_EQ(waiting.runs[0].state, RunState::failed);
  CHECK_EQ(half.moved_nbytes, 3 * kChunk);
}

TEST("empty runs are done wherever they stand, and an operation of nothing ends at once") {
  Fixture f;
  auto from = pattern(2 * kChunk, 1);
  std::vector<std::byte> to(from.size());
  Op& nothing = f.op();
  f.enqueue(nothing);
  Op& empty = f.op();
  for (int i = 0; i < 1000; ++i) {
    f.run(empty, nullptr, nullptr, 0);
  }
  f.enqueue(empty);
  Op& mixed = f.op();
  f.run(mixed, nullptr, nullptr, 0);
  f.run(mixed, from.data(), to.data(), kChunk);  // exactly one chunk: the cut falls on a run's end
  f.run(mixed, nullptr, nullptr, 0);
  f.run(mixed, from.data() + kChunk, to.data() + kChunk, kChunk);
  f.run(mixed, nullptr, nullptr, 0);
  f.run(mixed, nullptr, nullptr, 0);
  f.enqueue(mixed);
  f.run_dry();
  for (Op* op : {&nothing, &empty, &mixed}) {
    CHECK_EQ(f.finisher.of(*op), Status::ok);
    for (const Run& run : op->runs) {
      CHECK_EQ(run.state, RunState::done);
    }
  }
  CHECK(to == from);
}

// Odd sizes in a shuffled order, guard bytes between the destinations.
void scattered(LinkKind link, Direction direction, std::size_t count) {
  Fixture f(link, 1U << 20U);
  std::mt19937_64 random(count);
  std::vector<std::uint64_t> sizes(count);
  std::uint64_t total = 0;
  for (std::uint64_t& nbytes : sizes) {
    nbytes = random() % 97;
    total += nbytes;
  }
  auto source = pattern(total, 3);
  std::vector<std::byte> destination(total + count + 1, std::byte{0xa5});
  std::vector<std::size_t> order(count);
  std::vector<std::uint64_t> source_at(count);
  std::vector<std::uint64_t> destination_at(count);
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    order[i] = i;
    source_at[i] = at;
    destination_at[i] = at + i + 1;  // one guard byte before each
    at += sizes[i];
  }
  std::shuffle(order.begin(), order.end(), random);
  Op& op = f.op();
  for (const std::size_t i : order) {
    std::byte* from = source.data() + source_at[i];
    std::byte* to = destination.data() + destination_at[i];
    direction == Direction::put ? f.run(op, from, to, sizes[i], direction, static_cast<std::uint32_t>(i % 3))
                                : f.run(op, to, from, sizes[i], direction, static_cast<std::uint32_t>(i % 3));
  }
  f.enqueue(op);
  f.run_dry();
  CHECK_EQ(f.finisher.of(op), Status::ok);
  CHECK_EQ(op.moved_nbytes, total);
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* to = destination.data() + destination_at[i];
    if (!test::same(to, source.data() + source_at[i], sizes[i]) || to[-1] != std::byte{0xa5}) {
      CHECK_EQ(i, count);
      break;
    }
  }
  CHECK(destination.back() == std::byte{0xa5});
}

TEST("batches of more than IOV_MAX and of 100000 runs are exact on mapped memory, puts and gets") {
  for (const std::size_t count : {1023, 1024, 1025, 3000, 100'000}) {
    scattered(LinkKind::inproc, Direction::put, count);
    scattered(LinkKind::shm, Direction::get, count);
  }
}

TEST("batches of more than IOV_MAX and of 100000 runs are exact over process_vm, puts and gets") {
  for (const std::size_t count : {255, 256, 257, 1025, 100'000}) {
    scattered(LinkKind::cma, Direction::put, count);
    scattered(LinkKind::cma, Direction::get, count);
  }
}

TEST("memory the kernel cannot reach fails its runs and no others, and is never called a success") {
  Fixture f(LinkKind::cma);
  auto from = pattern(4 * kChunk, 1);
  std::vector<std::byte> to(from.size());
  Op& op = f.op();
  f.run(op, from.data(), to.data(), kChunk, Direction::put, 0);
  f.run(op, from.data() + kChunk, reinterpret_cast<std::byte*>(64), kChunk, Direction::put, 1);
  f.run(op, from.data() + 2 * kChunk, to.data() + 2 * kChunk, kChunk, Direction::put, 2);
  f.enqueue(op);
  f.run_dry();
  CHECK_EQ(f.finisher.of(op), Status::failed);
  CHECK_EQ(op.runs[0].state, RunState::done);
  CHECK_EQ(op.runs[1].state, RunState::failed);
  CHECK_EQ(op.runs[2].state, RunState::done);
  CHECK(test::same(to.data(), from.data(), kChunk));
  CHECK(test::same(to.data() + 2 * kChunk, from.data() + 2 * kChunk, kChunk));
}

TEST("an operation with a run that was not copied never settles as a success") {
  Op op;
  op.runs.resize(3);
  op.next_run = 2;
  CHECK(!ok(settle_runs(op)));
  CHECK_EQ(op.runs[1].state, RunState::done);
  CHECK_EQ(op.runs[2].state, RunState::failed);
}

TEST("a chunk size of zero still copies everything") {
  Fixture f(LinkKind::inproc, 0);
  auto from = pattern(64, 1);
  std::vector<std::byte> to(64);
  Op& op = f.op();
  f.run(op, from.data(), to.data(), 64);
  f.enqueue(op);
  for (int i = 0; i < 100; ++i) {
    f.scheduler.step();
  }
  CHECK_EQ(f.finisher.of(op), Status::ok);
  CHECK(to == from);
}

// ---- with threads

// Counts the ends of each operation and gives it back to whoever enqueues the next.
struct CountingFinisher final : OpFinisher {
  std::array<std::atomic<std::uint32_t>, 256> ends{};
  std::array<std::atomic<bool>, 256> idle{};
  std::atomic<std::uint64_t> total{0};
  std::atomic<std::uint64_t> stopped{0};
  Op* first = nullptr;
  void finish(Op& op) noexcept override {
    const auto index = static_cast<std::size_t>(op.token);
    const Status status = settle_runs(op);
    if (status == Status::stopped) {
      stopped.fetch_add(1, std::memory_order_relaxed);
    } else if (!ok(status)) {
      CHECK_EQ(status, Status::ok);
    }
    ends[index].fetch_add(1, std::memory_order_relaxed);
    total.fetch_add(1, std::memory_order_relaxed);
    if (idle[index].exchange(true, std::memory_order_release)) {
      test::give_up("an operation was finished twice");
    }
  }
};

TEST("four copy threads and two enqueuers: more than a million small operations end exactly once each") {
  constexpr std::uint64_t kOperations = 1'048'576;
  constexpr std::size_t kOps = 256;
  Pair pair;
  for (std::uint32_t region = 0; region < 4; ++region) {
    pair.b.owned->entry(region).generation.store(1);
  }
  CountingFinisher finisher;
  std::deque<Op> ops(kOps);
  std::vector<std::byte> from = pattern(kOps * 256, 1);
  std::vector<std::byte> to(from.size());
  std::array<std::uint32_t, kOps> used{};
  {
    CopyScheduler scheduler(finisher, 64);
    CHECK_EQ(scheduler.start(4), Status::ok);
    for (std::atomic<bool>& idle : finisher.idle) {
      idle.store(true);
    }
    auto produce = [&](std::size_t first, std::size_t end) {
      std::size_t index = first;
      for (std::uint64_t made = 0; made < kOperations / 2;) {
        index = index + 1 == end ? first : index + 1;
        // Acquire: the finisher is done with the operation.
        if (!finisher.idle[index].load(std::memory_order_acquire)) {
          std::this_thread::yield();
          continue;
        }
        finisher.idle[index].store(false, std::memory_order_relaxed);
        Op& op = ops[index];
        op.token = index;
        op.target = pair.a.peer.get();
        op.status = Status::ok;
        op.next_run = 0;
        op.next_offset = 0;
        op.moved_nbytes = 0;
        op.stop_requested.store(false, std::memory_order_relaxed);
        // Usually one chunk; each tenth is four chunks that the threads share; each fiftieth is stopped under way.
        const std::uint64_t nbytes = made % 10 == 0 ? 256 : 1 + made % 64;
        op.runs.resize(1);
        op.runs[0] = Run{};
        op.runs[0].local = from.data() + index * 256;
        op.runs[0].remote = to.data() + index * 256;
        op.runs[0].nbytes = nbytes;
        op.runs[0].region = static_cast<std::uint32_t>(index % 4);
        op.runs[0].generation = 1;
        op.runs[0].link = static_cast<std::uint8_t>(LinkKind::shm);
        op.nbytes = nbytes;
        ++used[index];
        ++made;
        scheduler.enqueue(op);
        if (made % 50 == 0) {
          op.stop_requested.store(true, std::memory_order_relaxed);
        }
      }
    };
    std::thread other(produce, kOps / 2, kOps);
    produce(0, kOps / 2);
    other.join();
    scheduler.stop();  // whatever is queued ends before it returns
  }
  CHECK_EQ(finisher.total.load(), kOperations);
  for (std::size_t i = 0; i < kOps; ++i) {
    CHECK_EQ(finisher.ends[i].load(), used[i]);
  }
  for (std::uint32_t region = 0; region < 4; ++region) {
    CHECK_EQ(pair.b.owned->entry(region).pins.load(), 0U);
  }
}

// How long each of our threads of that name has run, in nanoseconds.
std::vector<std::uint64_t> run_times(const std::string& name) {
  std::vector<std::uint64_t> times;
  DIR* tasks = ::opendir("/proc/self/task");
  while (const dirent* entry = ::readdir(tasks)) {
    const std::string base = std::string("/proc/self/task/") + entry->d_name;
    std::string text;
    std::ifstream(base + "/comm") >> text;
    std::uint64_t nanoseconds = 0;
    if (text == name && (std::ifstream(base + "/schedstat") >> nanoseconds)) {
      times.push_back(nanoseconds);
    }
  }
  ::closedir(tasks);
  return times;
}

TEST("one large operation is shared by all copy threads, not left to the one that was woken") {
  struct Last final : OpFinisher {
    std::atomic<bool> ended{false};
    void finish(Op& op) noexcept override {
      CHECK_EQ(settle_runs(op), Status::ok);
      ended.store(true);
    }
  };
  Pair pair;
  pair.b.owned->entry(0).generation.store(1);
  constexpr std::size_t kRuns = 8;
  auto from = pattern(32U << 20U, 1);
  std::vector<std::byte> to(kRuns * from.size());  // a place for each: a thread may lag behind by more than a run
  Last last;
  CopyScheduler scheduler(last, 64U << 10U);
  CHECK_EQ(scheduler.start(2), Status::ok);
  CHECK(test::eventually([] { return run_times("hixl-copy").size() == 2; }));
  const auto before = run_times("hixl-copy");
  Op op;
  op.target = pair.a.peer.get();
  for (std::size_t i = 0; i < kRuns; ++i) {
    Run run;
    run.local = from.data();
    run.remote = to.data() + i * from.size();
    run.nbytes = from.size();
    run.generation = 1;
    run.link = static_cast<std::uint8_t>(LinkKind::shm);
    op.runs.push_back(run);
    op.nbytes += run.nbytes;
  }
  scheduler.enqueue(op);
  CHECK(test::eventually([&] { return last.ended.load(); }));
  const auto after = run_times("hixl-copy");
  REQUIRE(before.size() == 2 && after.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(after[i] - before[i] > 5'000'000);
  }
  for (std::size_t i = 0; i < kRuns; ++i) {
    CHECK(test::same(to.data() + i * from.size(), from.data(), from.size()));
  }
}

TEST("what is written past the cache is exact at every alignment and length, puts and gets, and touches nothing else") {
  Fixture f(LinkKind::inproc, kChunk, 0);
  const auto from = pattern(3 * kChunk + 200, 1);
  for (const std::uint64_t nbytes : {1U, 15U, 63U, 64U, 65U, 127U, 128U, 1000U, 4096U, 4097U, 12345U}) {
    for (std::size_t at = 0; at < 70; at += 3) {
      for (const Direction direction : {Direction::put, Direction::get}) {
        std::vector<std::byte> source(from);
        std::vector<std::byte> target(from.size(), std::byte{0xa5});
        Op& op = f.op();
        const bool put = direction == Direction::put;
        std::byte* read = source.data() + 7 * at % 64;
        std::byte* written = target.data() + at;
        f.run(op, put ? read : written, put ? written : read, nbytes, direction);
        f.enqueue(op);
        f.run_dry();
        CHECK_EQ(f.finisher.of(op), Status::ok);
        CHECK(test::same(written, read, nbytes));
        CHECK(test::all_bytes(target.data(), at, std::byte{0xa5}));
        CHECK(test::all_bytes(written + nbytes, target.size() - at - nbytes, std::byte{0xa5}));
        CHECK(source == from);
      }
    }
  }
}

// Two real threads on one operation that is long enough to be caught under way.
struct Shared final : OpFinisher {
  Pair pair;
  std::vector<std::byte> from = pattern(16U << 20U, 1);
  std::vector<std::byte> to = std::vector<std::byte>(from.size());
  Op op;
  std::atomic<int> ends{0};
  Status status = Status::ok;
  std::uint32_t pins_at_the_end = 0;
  CopyScheduler scheduler;

  explicit Shared(std::size_t times) : scheduler(*this, 64U << 10U, 0) {
    pair.b.owned->entry(0).generation.store(1);
    op.target = pair.a.peer.get();
    for (std::size_t i = 0; i < times; ++i) {
      Run run;
      run.local = from.data();
      run.remote = to.data();
      run.nbytes = from.size();
      run.generation = 1;
      run.link = static_cast<std::uint8_t>(LinkKind::shm);
      op.runs.push_back(run);
      op.nbytes += run.nbytes;
    }
    REQUIRE(ok(scheduler.start(2)));
  }
  ~Shared() { scheduler.stop(); }
  [[nodiscard]] std::uint32_t pins() { return pair.b.owned->entry(0).pins.load(); }
  // Starts, and returns when both threads are copying.
  bool start() {
    scheduler.enqueue(op);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (pins() < 2 && ends.load() == 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    return pins() > 0 || ends.load() > 0;
  }
  void finish(Op& ended) noexcept override {
    status = settle_runs(ended);
    pins_at_the_end = pins();
    ends.fetch_add(1);
  }
  bool ended() {
    return test::eventually([this] { return ends.load() > 0; });
  }
};

TEST("a stop in the middle of a copy that two threads share ends it once, when both have let go, and nothing is written after") {
  for (int round = 0; round < 5; ++round) {
    Shared s(256);
    CHECK(s.start());
    s.op.stop_requested.store(true);
    CHECK(s.ended());
    CHECK_EQ(s.status, Status::stopped);
    CHECK_EQ(s.pins_at_the_end, 0U);
    CHECK(s.op.moved_nbytes < s.op.nbytes);
    std::fill(s.to.begin(), s.to.end(), std::byte{0xa5});
    s.scheduler.stop();
    CHECK(test::all_bytes(s.to.data(), s.to.size(), std::byte{0xa5}));
    CHECK_EQ(s.ends.load(), 1);
  }
}

TEST("a peer that goes down in the middle of a copy that two threads share ends it once, with the reason, and no pin is left") {
  for (int round = 0; round < 5; ++round) {
    Shared s(256);
    CHECK(s.start());
    CHECK(s.pair.a.peer->mark_down(Status::peer_lost));
    CHECK(s.ended());
    CHECK_EQ(s.status, Status::peer_lost);
    CHECK_EQ(s.pins_at_the_end, 0U);
    s.scheduler.stop();
    CHECK_EQ(s.ends.load(), 1);
  }
}

TEST("a scheduler that is stopped in the middle of a copy that two threads share ends it whole, and once") {
  Shared s(8);
  CHECK(s.start());
  s.scheduler.stop();
  CHECK_EQ(s.ends.load(), 1);
  CHECK_EQ(s.status, Status::ok);
  CHECK_EQ(s.op.moved_nbytes, s.op.nbytes);
  CHECK_EQ(s.pins(), 0U);
  CHECK(s.to == s.from);
}

}  // namespace
}  // namespace hixl_aio::host

HIXL_TEST_MAIN
