// The handshake itself, at the one moment that matters: a ring and a re-arm at the same time (INV-8).
//
// Also built with mistakes in it (see doorbell.h); those builds must print "lost wake-up".
#include "core/doorbell.h"

#include <algorithm>

#include "check.h"

namespace hixl_aio {
namespace {

// Waits a little, finer than any clock.
void linger(int turns) {
  for (int turn = 0; turn < turns; ++turn) {
    asm volatile("");
  }
}

// Spins for as long as the other side is likely to run at the same time, then lets it.
void wait_until(const std::atomic<int>& value, int goal) {
  for (int spins = 0; value.load(std::memory_order_acquire) < goal; ++spins) {
    if (spins > 4096) {
      std::this_thread::yield();
    }
  }
}

TEST("lost wake-up: a ring and a re-arm race 300 000 times; the news is seen, or the fd is readable, every time") {
  constexpr int usual = test::sanitized ? 100'000 : 300'000;
  constexpr int rounds = HIXL_AIO_MUTATE_REARM == 0 ? usual : 100'000'000;  // with a mistake: until caught
  if (HIXL_AIO_MUTATE_REARM != 0 && std::thread::hardware_concurrency() < 2) {
    std::puts("skipped: on one processor the two never meet");
    return;
  }
  Doorbell bell;
  alignas(64) std::atomic<int> news{0};
  alignas(64) std::atomic<int> turn{0};
  alignas(64) std::atomic<int> done{0};
  // How long the producer waits before its move. Steered so that half of the rounds see the news and half do not, which
  // is where the two exchanges meet; spread a little around that.
  alignas(64) std::atomic<int> delay{100};
  std::thread producer([&] {
    for (int round = 1; round <= rounds; ++round) {
      wait_until(turn, round);
      linger(delay.load(std::memory_order_relaxed) + round % 32);
      news.store(round, std::memory_order_release);  // P1
      bell.ring();                                   // P2, P3
      done.store(round, std::memory_order_release);
    }
  });
  int seen = 0;
  for (int round = 1; round <= rounds; ++round) {
    bell.disarm();  // the sleeper is awake: whoever rings now finds the flag down
    turn.store(round, std::memory_order_release);
    linger(round % 32);
    bell.clear_and_arm();                                                  // C1, C2
    const bool saw = news.load(std::memory_order_acquire) == round;        // C3
    delay.store(std::max(0, delay.load(std::memory_order_relaxed) + (saw ? 1 : -1)), std::memory_order_relaxed);
    seen += saw ? 1 : 0;
    wait_until(done, round);
    if (!saw && !test::readable(bell.fd())) {
      test::lost_wakeup("the news was not there at the look, and no ring followed");
    }
    // Whoever comes next is heard as well: the flag is up, or the fd is readable already.
    bell.ring();
    if (!test::readable(bell.fd())) {
      test::lost_wakeup("the next ring is not heard");
    }
  }
  producer.join();
  std::printf("     the look saw the news in %d rounds of %d\n", seen, rounds);
}

TEST("at most one write per re-arm, however many ring") {
  Doorbell bell;
  for (std::uint64_t round = 1; round <= 3; ++round) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&bell] {
        for (int count = 0; count < 1000; ++count) {
          bell.ring();
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    CHECK_EQ(bell.wakeups(), round);
    CHECK(test::readable(bell.fd()));
    bell.clear_and_arm();
    CHECK(!test::readable(bell.fd()));
  }
}

TEST("disarmed, it stays silent; armed again, it rings") {
  Doorbell bell;
  bell.disarm();
  bell.ring();
  CHECK(!test::readable(bell.fd()));
  bell.clear_and_arm();
  bell.ring();
  CHECK(test::readable(bell.fd()));
}

}  // namespace
}  // namespace hixl_aio

HIXL_TEST_MAIN
