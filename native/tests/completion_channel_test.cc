// The channel: no wake-up is lost (INV-8), no record is lost or doubled (INV-1), one wake-up serves all.
//
// The same program is also built with a deliberate mistake in the handshake (HIXL_AIO_MUTATE_REARM, see doorbell.h;
// 4 is a consumer that takes records first and re-arms afterwards). Those builds must print "lost wake-up": this is what
// proves that the stress below can see what it is there to see.
#include "core/completion_channel.h"

#include <array>

#include "check.h"

namespace hixl_aio {
namespace {

using test::readable;

constexpr std::uint64_t producers = 4;

// In the build that ships, a false alarm on a busy machine is worse than a slow failure; with a mistake built in, it is
// the other way round.
constexpr int patience_milliseconds = HIXL_AIO_MUTATE_REARM == 0 ? 20'000 : 1'000;

std::size_t take(CompletionChannel& channel, std::array<CompletionRecord, 256>& records) {
  return channel.pop(records.data(), records.size());
}

TEST("lost wake-up: four producers, a million records, a consumer that sleeps whenever it found nothing") {
  constexpr std::uint64_t total = HIXL_AIO_MUTATE_REARM == 0 ? 1'000'000 : 20'000'000;  // with a mistake: until caught
  CompletionChannel channel(256);
  // All producers together have at most `width` records under way, one to sixteen in turns. With one, nobody else's
  // push can make up for a wake-up that was lost; and the consumer finds nothing, and sleeps, all the time.
  alignas(64) std::atomic<std::uint64_t> claimed{0};
  alignas(64) std::atomic<std::uint64_t> taken_before{0};
  std::vector<std::thread> threads;
  for (std::uint64_t producer = 0; producer < producers; ++producer) {
    threads.emplace_back([&, producer] {
      CompletionRecord record;
      record.token = producer;
      for (;;) {
        std::uint64_t claim = claimed.load(std::memory_order_relaxed);
        if (claim == total) {
          return;
        }
        const std::uint64_t width = std::uint64_t{1} << (claim >> 6) % 5;
        if (claim >= taken_before.load(std::memory_order_acquire) + width) {
          std::this_thread::yield();
        } else if (claimed.compare_exchange_weak(claim, claim + 1, std::memory_order_relaxed)) {
          channel.push(record);
          ++record.nbytes;
        }
      }
    });
  }

  std::array<std::uint64_t, producers> next{};
  std::array<CompletionRecord, 256> records;
  std::uint64_t taken = 0;
  std::uint64_t sleeps = 0;
  std::uint64_t wrong = 0;
  while (taken < total) {
    ++sleeps;
    if (!readable(channel.fd(), patience_milliseconds) && channel.ready()) {
      test::lost_wakeup("the consumer sleeps, the ring is not empty");
    }
#if HIXL_AIO_MUTATE_REARM != 4
    channel.prepare_drain();
#endif
    while (const std::size_t count = take(channel, records)) {
      for (std::size_t index = 0; index < count; ++index) {
        const auto producer = static_cast<std::size_t>(records[index].token);
        wrong += records[index].nbytes != next[producer]++ ? 1 : 0;
      }
      taken += count;
      taken_before.store(taken, std::memory_order_release);
    }
#if HIXL_AIO_MUTATE_REARM == 4
    channel.prepare_drain();
#endif
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK_EQ(wrong, 0U);
  CHECK(!channel.ready());
  CHECK(sleeps > 1000);  // or the test has not tested what it says
  std::printf("     %llu records, %llu sleeps, %llu writes\n", static_cast<unsigned long long>(taken),
              static_cast<unsigned long long>(sleeps), static_cast<unsigned long long>(channel.wakeups()));
}

TEST("re-arm, step by step: what is pushed after the re-arm makes the fd readable, before or after the look") {
  CompletionChannel channel(8);
  std::array<CompletionRecord, 256> records;
  for (int round = 0; round < 3; ++round) {
    channel.push({});
    CHECK(readable(channel.fd()));
    channel.prepare_drain();
    CHECK(!readable(channel.fd()));
    channel.push({});  // between re-arm and look: taken now, and the wake-up is spurious
    CHECK_EQ(take(channel, records), 2U);
    if (!readable(channel.fd())) {
      test::lost_wakeup("pushed between re-arm and look");
    }
    channel.prepare_drain();
    CHECK_EQ(take(channel, records), 0U);
    channel.push({});  // after the look
    if (!readable(channel.fd())) {
      test::lost_wakeup("pushed after the look");
    }
    channel.prepare_drain();
    CHECK_EQ(take(channel, records), 1U);
  }
}

TEST("one wake-up serves all records that are there: a hundred pushes, one write") {
  CompletionChannel channel(128);
  std::array<CompletionRecord, 256> records;
  for (std::uint64_t round = 1; round <= 3; ++round) {
    for (Token token = 0; token < 100; ++token) {
      CompletionRecord record;
      record.token = token;
      channel.push(record);
    }
    CHECK_EQ(channel.wakeups(), round);
    channel.prepare_drain();
    CHECK_EQ(take(channel, records), 100U);
    CHECK_EQ(records[99].token, 99U);
    CHECK(!readable(channel.fd()));
  }
}

TEST("ring() wakes without a record, once per re-arm") {
  CompletionChannel channel(8);
  channel.ring();
  channel.ring();
  CHECK(readable(channel.fd()));
  CHECK_EQ(channel.wakeups(), 1U);
  channel.prepare_drain();
  CHECK(!readable(channel.fd()));
  CHECK(!channel.ready());
}

TEST("a drain with a bound leaves the rest, and says so") {
  CompletionChannel channel(8);
  std::array<CompletionRecord, 256> records;
  for (Token token = 0; token < 8; ++token) {
    CompletionRecord record;
    record.token = token;
    channel.push(record);
  }
  channel.prepare_drain();
  CHECK_EQ(channel.pop(records.data(), 5), 5U);
  CHECK(channel.ready());
  CHECK(!readable(channel.fd()));
  channel.ring();
  CHECK(readable(channel.fd()));
  channel.prepare_drain();
  CHECK_EQ(channel.pop(records.data(), 5), 3U);
  CHECK_EQ(records[0].token, 5U);
  CHECK(!channel.ready());
  CHECK_EQ(channel.pushed(), channel.popped());
}

TEST("closing gives the descriptor back, and ringing afterwards harms nobody") {
  const test::Leftovers leftovers;
  CompletionChannel channel(8);
  CHECK(channel.fd() >= 0);
  channel.close();
  channel.close();
  channel.ring();
  CHECK_EQ(channel.fd(), -1);
  CHECK(leftovers.none());
}

}  // namespace
}  // namespace hixl_aio

HIXL_TEST_MAIN
