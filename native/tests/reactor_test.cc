// The control thread: watches, timers, posts, and an end in every state.
#include "core/reactor.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <condition_variable>
#include <limits>

#include "check.h"

namespace hixl_aio {
namespace {

struct Pipe {
  int ends[2] = {-1, -1};
  Pipe() { CHECK(::pipe2(ends, O_NONBLOCK | O_CLOEXEC) == 0); }
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  void write() const { CHECK(::write(ends[1], "x", 1) == 1); }
  void read() const {
    char byte = 0;
    static_cast<void>(!::read(ends[0], &byte, 1));
  }
};

// Runs a task on the control thread and waits for it.
void run_on(Reactor& reactor, const std::function<void()>& task) {
  std::atomic<bool> done{false};
  CHECK(reactor.post([&] {
    task();
    done = true;
  }));
  CHECK(test::eventually([&] { return done.load(); }));
}

TEST("a watched descriptor calls its handler on the control thread, until it is unwatched") {
  Reactor reactor;
  REQUIRE(ok(reactor.start()));
  const Pipe pipe;
  std::atomic<int> calls{0};
  std::atomic<bool> elsewhere{false};
  CHECK(ok(reactor.watch(pipe.ends[0], EPOLLIN, [&](std::uint32_t events) {
    CHECK((events & EPOLLIN) != 0);
    pipe.read();
    elsewhere = elsewhere || !reactor.on_thread();
    ++calls;
  })));
  CHECK_EQ(reactor.watch(pipe.ends[0], EPOLLIN, [](std::uint32_t) {}), Status::invalid_argument);
  CHECK_EQ(reactor.watch(-1, EPOLLIN, [](std::uint32_t) {}), Status::invalid_argument);
  pipe.write();
  CHECK(test::eventually([&] { return calls == 1; }));
  CHECK(!elsewhere);
  CHECK(reactor.unwatch(pipe.ends[0]));
  CHECK(!reactor.unwatch(pipe.ends[0]));
  pipe.write();
  run_on(reactor, [] {});
  CHECK_EQ(calls.load(), 1);
  CHECK(ok(reactor.watch(pipe.ends[0], 0, [&](std::uint32_t) { pipe.read(), ++calls; })));
  run_on(reactor, [] {});
  CHECK_EQ(calls.load(), 1);
  CHECK(ok(reactor.modify(pipe.ends[0], EPOLLIN)));
  CHECK(test::eventually([&] { return calls == 2; }));
  CHECK(!test::thread_status("hixl-control", "SigBlk").empty());
}

TEST("a handler may unwatch itself, and its captures live until it returns") {
  Reactor reactor;
  REQUIRE(ok(reactor.start()));
  const Pipe pipe;
  std::atomic<int> calls{0};
  auto captured = std::make_shared<std::string>("still here, and long enough for the heap");
  const std::weak_ptr<std::string> observer = captured;
  CHECK(ok(reactor.watch(pipe.ends[0], EPOLLIN, [&, captured](std::uint32_t) {
    reactor.unwatch(pipe.ends[0]);
    CHECK_EQ(*captured, "still here, and long enough for the heap");
    ++calls;
  })));
  captured.reset();
  pipe.write();
  CHECK(test::eventually([&] { return calls == 1 && observer.expired(); }));
  run_on(reactor, [] {});
  CHECK_EQ(calls.load(), 1);
}

TEST("unwatched by another handler of the same batch, a handler does not run, even if its fd was reused meanwhile") {
  Reactor reactor;
  REQUIRE(ok(reactor.start()));
  // Both become readable while the control thread is busy, so that both are in its next batch, in either order. The
  // first one to run unwatches and closes the other, whose number goes to a new, silent descriptor that is watched too.
  for (int round = 0; round < 50; ++round) {
    int fds[2] = {::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    std::atomic<int> calls{0};
    std::atomic<int> wrong{0};
    run_on(reactor, [&] {
      for (int index = 0; index < 2; ++index) {
        CHECK(ok(reactor.watch(fds[index], EPOLLIN, [&, index](std::uint32_t) {
          ++calls;
          int& other = fds[1 - index];
          reactor.unwatch(fds[index]);
          reactor.unwatch(other);
          ::close(other);
          const int reused = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
          CHECK_EQ(reused, other);
          CHECK(ok(reactor.watch(reused, EPOLLIN, [&](std::uint32_t) { ++wrong; })));
        })));
        const std::uint64_t one = 1;
        CHECK(::write(fds[index], &one, sizeof one) == sizeof one);
      }
    });
    CHECK(test::eventually([&] { return calls > 0; }));
    run_on(reactor, [&] {
      reactor.unwatch(fds[0]);
      reactor.unwatch(fds[1]);
    });
    ::close(fds[0]);
    ::close(fds[1]);
    CHECK_EQ(calls.load(), 1);
    CHECK_EQ(wrong.load(), 0);
  }
}

TEST("timers run in the order of their deadlines, equal ones in the order of creation, none too early") {
  Reactor reactor;
  REQUIRE(ok(reactor.start()));
  std::vector<int> order;
  std::atomic<int> ran{0};
  const auto start = std::chrono::steady_clock::now();
  auto timer = [&](double seconds, int number) {
    return reactor.add_timer(seconds, [&, seconds, number] {
      const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      CHECK(!(elapsed < seconds));  // NaN is no deadline
      order.push_back(number);
      ++ran;
    });
  };
  run_on(reactor, [&] {  // all of them in one turn, so that even 0 s ones wait for the next
    timer(0.06, 4);
    timer(0.02, 2);
    const TimerId cancelled = timer(0.03, 99);
    timer(0.04, 3);
    timer(-1, 0);
    timer(std::numeric_limits<double>::quiet_NaN(), 1);
    timer(1e300, 98);
    CHECK(reactor.cancel_timer(cancelled));
    CHECK(!reactor.cancel_timer(cancelled));
    CHECK(!reactor.cancel_timer(0));
  });
  CHECK(test::eventually([&] { return ran == 5; }));
  reactor.stop();
  CHECK(order == (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST("a timer set from another thread shortens the sleep; one that sets itself again with 0 s starves nobody") {
  Reactor reactor;
  REQUIRE(ok(reactor.start()));
  reactor.add_timer(3600, [] {});
  std::atomic<int> turns{0};
  std::function<void()> again = [&] {
    ++turns;
    reactor.add_timer(0, again);
  };
  reactor.add_timer(0.001, again);
  CHECK(test::eventually([&] { return turns > 10; }));
  run_on(reactor, [] {});
  reactor.stop();
}

TEST("four threads post a hundred thousand tasks: each runs once, in its thread's order") {
  Reactor reactor;
  REQUIRE(ok(reactor.start()));
  constexpr int each = 25'000;
  int next[4] = {};  // plain: only the control thread touches them
  int wrong = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int number = 0; number < each; ++number) {
        reactor.post([&, thread, number] { wrong += number != next[thread]++ ? 1 : 0; });
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  reactor.stop();
  for (const int count : next) {
    CHECK_EQ(count, each);
  }
  CHECK_EQ(wrong, 0);
}

TEST("stop while busy: everything posted before has run, later posts are refused, nothing is left") {
  const test::Leftovers leftovers;
  {
    Reactor reactor;
    REQUIRE(ok(reactor.start()));
    const Pipe pipe;
    auto captured = std::make_shared<int>(1);
    // Readable for ever: the control thread never sleeps.
    CHECK(ok(reactor.watch(pipe.ends[0], EPOLLIN, [captured](std::uint32_t) {})));
    reactor.add_timer(3600, [captured] {});
    pipe.write();
    std::atomic<bool> go{false};
    std::atomic<int> refused{0};
    std::vector<std::thread> threads;
    std::atomic<int> accepted{0};
    int ran = 0;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&] {
        while (!go) {
          std::this_thread::yield();
        }
        for (;;) {
          if (reactor.post([&ran] { ++ran; })) {
            ++accepted;
          } else {
            ++refused;
            return;
          }
        }
      });
    }
    go = true;
    CHECK(test::eventually([&] { return accepted > 1000; }));
    reactor.stop();
    for (std::thread& thread : threads) {
      thread.join();
    }
    CHECK_EQ(refused.load(), 4);
    CHECK_EQ(ran, accepted.load());
    CHECK_EQ(captured.use_count(), 1);
    reactor.stop();
    CHECK(!reactor.post([] {}));
    CHECK_EQ(reactor.watch(pipe.ends[0], EPOLLIN, [](std::uint32_t) {}), Status::closed);
    CHECK_EQ(reactor.start(), Status::closed);
  }
  CHECK(leftovers.none());
}

TEST("stopped from one of its own handlers, it ends after that turn and is joined later") {
  const test::Leftovers leftovers;
  {
    Reactor reactor;
    REQUIRE(ok(reactor.start()));
    std::atomic<int> ran{0};
    reactor.post([&] {
      reactor.post([&] { ++ran; });
      reactor.stop();
      ++ran;
    });
    CHECK(test::eventually([&] { return ran == 2; }));
  }
  CHECK(leftovers.none());
}

TEST("never started: stop runs what was posted, and watches set before the start work after it") {
  const test::Leftovers leftovers;
  {
    Reactor never;
    int ran = 0;
    never.post([&] { ++ran; });
    never.stop();
    CHECK_EQ(ran, 1);

    Reactor late;
    const Pipe pipe;
    std::atomic<int> calls{0};
    CHECK(ok(late.watch(pipe.ends[0], EPOLLIN, [&](std::uint32_t) { pipe.read(), ++calls; })));
    late.add_timer(0, [&] { ++calls; });
    pipe.write();
    REQUIRE(ok(late.start()));
    CHECK(test::eventually([&] { return calls == 2; }));
  }
  CHECK(leftovers.none());
}

}  // namespace
}  // namespace hixl_aio

HIXL_TEST_MAIN
