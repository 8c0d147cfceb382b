// The jobs thread: order, and an end that loses nothing.
#include "core/job_thread.h"

#include "check.h"

namespace hixl_aio {
namespace {

TEST("jobs run one after the other, in the order of posting, on a thread of that name with signals blocked") {
  JobThread jobs;
  REQUIRE(ok(jobs.start()));
  std::vector<int> order;
  bool elsewhere = false;
  for (int number = 0; number < 1000; ++number) {
    CHECK(jobs.post([&order, &elsewhere, &jobs, number] {
      order.push_back(number);
      elsewhere = elsewhere || !jobs.on_thread();
    }));
  }
  CHECK(!test::thread_status("hixl-jobs", "SigBlk").empty());
  CHECK(!jobs.on_thread());
  jobs.stop();
  REQUIRE(order.size() == 1000);
  for (int number = 0; number < 1000; ++number) {
    CHECK_EQ(order[static_cast<std::size_t>(number)], number);
  }
  CHECK(!elsewhere);
}

TEST("a signal sent to the process never runs its handler on a native thread") {
  JobThread jobs;
  REQUIRE(ok(jobs.start()));
  const std::string blocked = test::thread_status("hixl-jobs", "SigBlk");
  const auto mask = std::strtoull(blocked.c_str(), nullptr, 16);
  for (const int signal : {SIGINT, SIGTERM, SIGALRM, SIGCHLD, SIGUSR1, SIGPIPE}) {
    CHECK((mask >> (signal - 1) & 1U) != 0);
  }
  for (const int fault : {SIGSEGV, SIGBUS}) {
    CHECK((mask >> (fault - 1) & 1U) == 0);  // a crash is still reported
  }
}

TEST("stop runs everything that is queued, what jobs post is refused from then on, a second stop does nothing") {
  const test::Leftovers leftovers;
  JobThread jobs;
  REQUIRE(ok(jobs.start()));
  std::atomic<bool> go{false};
  int ran = 0;
  jobs.post([&] {
    while (!go) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  for (int count = 0; count < 100; ++count) {
    jobs.post([&] { ++ran; });
  }
  std::thread stopper([&] { jobs.stop(); });
  // The refusal shows that the stop is under way; only then may the first job end.
  CHECK(test::eventually([&] { return !jobs.post([] {}); }));
  go = true;
  stopper.join();
  CHECK_EQ(ran, 100);
  CHECK(!jobs.post([&] { ++ran; }));
  jobs.stop();
  CHECK_EQ(ran, 100);
  CHECK_EQ(jobs.start(), Status::closed);
  CHECK(leftovers.none());
}

TEST("asked to stop by one of its own jobs, it still runs what is queued, and is joined later") {
  const test::Leftovers leftovers;
  {
    JobThread jobs;
    std::atomic<bool> stopped{false};
    std::atomic<bool> ran{false};
    jobs.post([&] {
      jobs.stop();
      stopped = true;
    });
    jobs.post([&] { ran = true; });
    REQUIRE(ok(jobs.start()));
    CHECK(test::eventually([&] { return stopped && ran; }));
  }
  CHECK(leftovers.none());
}

TEST("never started: stop runs what was posted") {
  JobThread jobs;
  int ran = 0;
  jobs.post([&] { ++ran; });
  jobs.stop();
  CHECK_EQ(ran, 1);
}

TEST("many threads post: nothing is lost") {
  JobThread jobs;
  REQUIRE(ok(jobs.start()));
  int ran = 0;  // plain: only the jobs thread touches it
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int count = 0; count < 25'000; ++count) {
        jobs.post([&ran] { ++ran; });
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  jobs.stop();
  CHECK_EQ(ran, 100'000);
}

}  // namespace
}  // namespace hixl_aio

HIXL_TEST_MAIN
