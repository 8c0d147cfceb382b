// The progress thread: posts in order, loses no wake-up, listens to foreign writers of its eventfd, ends in every state.
//
// Built with a mistake in the handshake as well; see completion_channel_test.cc.
#include "core/progress_thread.h"

#include "check.h"
#include "stand_in_transport.h"

namespace hixl_aio {
namespace {

using test::StandInTransport;

constexpr auto patience = std::chrono::milliseconds(HIXL_AIO_MUTATE_REARM == 0 ? 20'000 : 1'000);

// Swallows completions, so that one operation can be submitted for ever.
struct NullHost final : TransportHost {
  std::atomic<std::uint64_t> completed{0};
  void complete(Op&, Status, bool) noexcept override { completed.fetch_add(1, std::memory_order_release); }
  void complete_again(OpHandle, Token, Status) noexcept override {}
  void peer_ending(PeerId, Status) noexcept override {}
  void raise(Event) override {}
  void wake_progress() noexcept override {}
  int progress_fd() const noexcept override { return -1; }
  int loop_fd() const noexcept override { return -1; }
  Reactor& reactor() noexcept override { std::abort(); }
  JobThread& jobs() noexcept override { std::abort(); }
};

struct Fixture {
  StandInTransport transport;
  NullHost host;
  Fixture() {
    std::string text;
    transport.start(host, "here", text, text);
  }
};

TEST("lost wake-up: four producers, a million operations, a progress thread that sleeps whenever it found nothing") {
  constexpr std::uint64_t producers = 4;
  constexpr std::uint64_t each = 250'000;
  Fixture fixture;
  Op op;
  ProgressThread progress(fixture.transport, 64);
  REQUIRE(ok(progress.start()));
  std::atomic<std::uint64_t> submitted{0};
  std::vector<std::thread> threads;
  for (std::uint64_t producer = 0; producer < producers; ++producer) {
    threads.emplace_back([&] {
      for (std::uint64_t number = 0; number < each; ++number) {
        // At most sixteen under way in all, and now and then none, so that the thread goes to sleep.
        const std::uint64_t width = 1 + (number >> 6) % 16;
        auto since = std::chrono::steady_clock::now();
        std::uint64_t seen = fixture.host.completed.load(std::memory_order_acquire);
        for (int spins = 1; submitted.load(std::memory_order_relaxed) >= seen + width; ++spins) {
          std::this_thread::yield();
          const std::uint64_t now = fixture.host.completed.load(std::memory_order_acquire);
          if (now != seen) {
            seen = now;
            spins = 0;
          } else if (spins % 1024 == 0) {
            if (spins == 1024) {
              since = std::chrono::steady_clock::now();
            } else if (std::chrono::steady_clock::now() - since > patience) {
              test::lost_wakeup("the progress thread sleeps, operations wait");
            }
          }
        }
        submitted.fetch_add(1, std::memory_order_relaxed);
        while (!progress.submit(&op)) {
          std::this_thread::yield();
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  progress.flush();
  CHECK_EQ(fixture.host.completed.load(), producers * each);
  std::printf("     %llu operations, %llu writes\n", static_cast<unsigned long long>(producers * each),
              static_cast<unsigned long long>(progress.wakeups()));
  progress.stop();
}

TEST("a write to the eventfd by anybody makes the thread call the transport") {
  Fixture fixture;
  ProgressThread progress(fixture.transport, 8);
  REQUIRE(ok(progress.start()));
  for (int round = 0; round < 100; ++round) {
    const std::uint64_t before = fixture.transport.progressed.load();
    const std::uint64_t one = 1;
    CHECK(::write(progress.fd(), &one, sizeof one) == sizeof one);
    CHECK(test::eventually([&] { return fixture.transport.progressed.load() > before; }));
  }
}

TEST("wake() makes the thread call the transport, and an idle thread sleeps") {
  Fixture fixture;
  ProgressThread progress(fixture.transport, 8);
  REQUIRE(ok(progress.start()));
  for (int round = 0; round < 100; ++round) {
    const std::uint64_t before = fixture.transport.progressed.load();
    progress.wake();
    CHECK(test::eventually([&] { return fixture.transport.progressed.load() > before; }));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::uint64_t asleep = fixture.transport.progressed.load();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK_EQ(fixture.transport.progressed.load(), asleep);
}

TEST("a full ring refuses an operation; flush waits until all that was taken is posted") {
  Fixture fixture;
  Op op;
  ProgressThread progress(fixture.transport, 8);
  REQUIRE(ok(progress.start()));
  fixture.transport.gate_closed = true;
  CHECK(progress.submit(&op));
  std::uint64_t taken = 1;
  // The thread sits in post() with the first one; eight more fit, or nine if it has not come that far.
  while (progress.submit(&op)) {
    REQUIRE(++taken <= 9);
  }
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    fixture.transport.gate_closed = false;
  });
  progress.flush();
  CHECK_EQ(fixture.transport.posted.load(), taken);
  CHECK(progress.submit(&op));
  opener.join();
}

TEST("stop posts everything that was submitted") {
  Fixture fixture;
  Op op;
  ProgressThread progress(fixture.transport, 1024);
  REQUIRE(ok(progress.start()));
  fixture.transport.gate_closed = true;
  for (int count = 0; count < 1000; ++count) {
    CHECK(progress.submit(&op));
  }
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    fixture.transport.gate_closed = false;
  });
  progress.stop();
  CHECK_EQ(fixture.transport.posted.load(), 1000U);
  progress.stop();
  opener.join();
}

TEST("never started, started and idle, flushed while idle: it ends, and leaves no thread and no descriptor") {
  const test::Leftovers leftovers;
  {
    Fixture fixture;
    ProgressThread never(fixture.transport, 8);
    never.flush();
    never.stop();
    ProgressThread idle(fixture.transport, 8);
    REQUIRE(ok(idle.start()));
    idle.flush();
    idle.flush();
    CHECK(!test::thread_status("hixl-progress", "SigBlk").empty());
  }
  CHECK(leftovers.none());
}

}  // namespace
}  // namespace hixl_aio

HIXL_TEST_MAIN
