// The ring: full, empty, laps, and four racing producers.
#include "core/submission_ring.h"

#include "check.h"

namespace hixl_aio {
namespace {

TEST("a full ring refuses, takes nothing, and has one place again after one pop") {
  SubmissionRing<int> ring(5);  // rounded up
  CHECK_EQ(ring.capacity(), 8U);
  for (int value = 0; value < 8; ++value) {
    CHECK(ring.try_push(value));
  }
  CHECK(!ring.try_push(99));
  int out = -1;
  CHECK(ring.try_pop(out));
  CHECK_EQ(out, 0);
  CHECK(ring.try_push(8));
  CHECK(!ring.try_push(99));
  for (int value = 1; value <= 8; ++value) {
    CHECK(ring.ready());
    CHECK(ring.try_pop(out));
    CHECK_EQ(out, value);
  }
  CHECK(!ring.ready());
  CHECK(!ring.try_pop(out));
  CHECK_EQ(ring.pushed(), 9U);
  CHECK_EQ(ring.popped(), 9U);
}

TEST("four producers, two million values through a small ring: each comes out once, in its producer's order") {
  constexpr std::uint64_t producers = 4;
  constexpr std::uint64_t each = 500'000;
  struct Value {
    std::uint64_t producer;
    std::uint64_t number;
  };
  SubmissionRing<Value> ring(64);  // small, so that it is full again and again
  std::vector<std::thread> threads;
  for (std::uint64_t producer = 0; producer < producers; ++producer) {
    threads.emplace_back([&ring, producer] {
      for (std::uint64_t number = 0; number < each; ++number) {
        while (!ring.try_push({producer, number})) {
          std::this_thread::yield();
        }
      }
    });
  }
  std::uint64_t next[producers] = {};
  std::uint64_t wrong = 0;
  for (std::uint64_t taken = 0; taken < producers * each;) {
    Value value{};
    if (!ring.try_pop(value)) {
      std::this_thread::yield();
      continue;
    }
    ++taken;
    wrong += value.number != next[value.producer]++ ? 1 : 0;
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK_EQ(wrong, 0U);
  CHECK(!ring.ready());
  CHECK_EQ(ring.pushed(), producers * each);
}

}  // namespace
}  // namespace hixl_aio

HIXL_TEST_MAIN
