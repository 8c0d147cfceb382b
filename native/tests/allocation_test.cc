// A put costs no allocation in the steady state, on any thread. This program counts every operator new.
#include <cstdlib>
#include <new>

#include "check.h"
#include "core/engine.h"
#include "stand_in_transport.h"

namespace {
std::atomic<std::uint64_t> allocations{0};

void* counted(std::size_t nbytes, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = alignment <= alignof(std::max_align_t)
                     ? std::malloc(nbytes)
                     : std::aligned_alloc(alignment, (nbytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) {
    std::abort();
  }
  return memory;
}
}  // namespace

void* operator new(std::size_t nbytes) { return counted(nbytes, 1); }
void* operator new[](std::size_t nbytes) { return counted(nbytes, 1); }
void* operator new(std::size_t nbytes, const std::nothrow_t&) noexcept { return counted(nbytes, 1); }
void* operator new[](std::size_t nbytes, const std::nothrow_t&) noexcept { return counted(nbytes, 1); }
void* operator new(std::size_t nbytes, std::align_val_t alignment) {
  return counted(nbytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t nbytes, std::align_val_t alignment) {
  return counted(nbytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t nbytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return counted(nbytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace hixl_aio {
namespace {

using test::StandInTransport;

struct CountingSink final : DrainSink {
  std::uint64_t completed = 0;
  void take(const SignalRecord&) override {}
  void complete(const CompletionRecord&, const Op&) override { ++completed; }
  void event(Event&&) override {}
};

void put(Engine& engine, std::size_t runs) {
  static const std::string name = "a name that does not fit into the string itself";
  Op* op = engine.acquire();
  REQUIRE(op != nullptr);
  for (std::size_t run = 0; run < runs; ++run) {
    op->runs.push_back({});
  }
  op->signal.present = true;
  op->signal.name = name;
  op->signal.payload = name;
  CHECK(ok(engine.submit(*op)));
}

TEST("a hundred thousand puts with a bound signal, 32 at a time, after a warm-up: no allocation at all") {
  auto owned = std::make_unique<StandInTransport>();
  owned->use_workers(2);
  Engine engine({.max_operations = 256}, std::move(owned));
  std::string bound;
  std::string error;
  REQUIRE(ok(engine.start("here", bound, error)));
  CountingSink sink;
  auto round = [&](std::uint64_t width) {
    const std::uint64_t goal = sink.completed + width;
    for (std::uint64_t count = 0; count < width; ++count) {
      put(engine, count % 8 + 1);
    }
    while (sink.completed < goal) {
      CHECK(test::readable(engine.fd(), 20'000));
      engine.drain(sink, 16);
    }
  };
  // Every slot that a round may use has served once, with the largest number of runs.
  for (int warm = 0; warm < 3; ++warm) {
    std::vector<Op*> ops;
    for (int count = 0; count < 64; ++count) {
      ops.push_back(engine.acquire());
      ops.back()->runs.reserve(8);
      ops.back()->signal.name.reserve(64);
      ops.back()->signal.payload.reserve(64);
    }
    for (Op* op : ops) {
      engine.discard(*op);
    }
    round(32);
  }
  const std::uint64_t before = allocations.load();
  for (int count = 0; count < 100'000 / 32; ++count) {
    round(32);
  }
  CHECK_EQ(allocations.load() - before, 0U);
}

TEST("an inline put allocates nothing either") {
  Engine engine({.max_operations = 16}, std::make_unique<StandInTransport>());
  std::string bound;
  std::string error;
  REQUIRE(ok(engine.start("here", bound, error)));
  Run run;
  run.nbytes = 64;
  const std::uint64_t before = allocations.load();
  for (int count = 0; count < 10'000; ++count) {
    CHECK(ok(engine.transfer_now(1, run, nullptr, false)));
  }
  CHECK_EQ(allocations.load() - before, 0U);
  CHECK_EQ(engine.counters().inline_done, 10'000U);
  run.nbytes = 65;
  CHECK_EQ(engine.transfer_now(1, run, nullptr, false), Status::would_block);
}

}  // namespace
}  // namespace hixl_aio

HIXL_TEST_MAIN
