// The whole test framework of the native tests: checks that print both values, a registry, a watchdog.
//
// Each program is one translation unit that includes this header, states its claims as TEST("...") { ... } and ends with
// HIXL_TEST_MAIN. `program TEXT` runs only the tests whose claim contains TEXT. Exit status 0: all claims hold.
#pragma once

#include <dirent.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace hixl_aio::test {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

// Long enough that a busy machine does not look like a hang; a test that takes it has failed.
inline constexpr unsigned watchdog_seconds = sanitized ? 110 : 60;

struct Test {
  const char* claim;
  void (*body)();
};

inline std::vector<Test>& registry() {
  static std::vector<Test> tests;
  return tests;
}

inline std::atomic<int> failures{0};
inline std::atomic<const char*> current_claim{""};

struct Registration {
  Registration(const char* claim, void (*body)()) { registry().push_back({claim, body}); }
};

template <typename Value>
std::string show(const Value& value) {
  std::ostringstream text;
  if constexpr (std::is_enum_v<Value>) {
    text << static_cast<long long>(value);
  } else if constexpr (std::is_same_v<Value, bool>) {
    text << (value ? "true" : "false");
  } else {
    text << value;
  }
  return text.str();
}

inline void fail(const char* file, int line, const std::string& what) {
  failures.fetch_add(1);
  std::fprintf(stderr, "%s:%d: %s\n    in: %s\n", file, line, what.c_str(), current_claim.load());
}

template <typename Left, typename Right>
bool check_equal(const char* file, int line, const char* text, const Left& left, const Right& right) {
  if (left == right) {
    return true;
  }
  fail(file, line, std::string(text) + ": " + show(left) + " is not " + show(right));
  return false;
}

[[noreturn]] inline void give_up(const char* what) {
  std::fprintf(stderr, "%s\n    in: %s\n", what, current_claim.load());
  std::_Exit(1);  // threads may be stuck: no destructors
}

// What a broken handshake looks like: the sleeper sleeps, and there is something to take. The builds with a deliberate
// mistake are expected to print these words.
[[noreturn]] inline void lost_wakeup(const char* where) {
  std::fprintf(stderr, "lost wake-up: %s\n", where);
  give_up("a record is waiting and nobody was told");
}

inline void on_alarm(int) {
  static constexpr char text[] = "watchdog: the test hangs, in: ";
  const char* claim = current_claim.load();
  static_cast<void>(!::write(2, text, sizeof text - 1));
  static_cast<void>(!::write(2, claim, std::strlen(claim)));
  static_cast<void>(!::write(2, "\n", 1));
  std::abort();
}

inline int run_all(int argc, char** argv) {
  std::signal(SIGALRM, on_alarm);
  int ran = 0;
  for (const Test& test : registry()) {
    if (argc > 1 && std::strstr(test.claim, argv[1]) == nullptr) {
      continue;
    }
    current_claim.store(test.claim);
    const int before = failures.load();
    const auto start = std::chrono::steady_clock::now();
    ::alarm(watchdog_seconds);
    test.body();
    ::alarm(0);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf("%-4s %6.2f s  %s\n", failures.load() == before ? "ok" : "FAIL", seconds, test.claim);
    std::fflush(stdout);
    ++ran;
  }
  if (ran == 0) {
    std::fprintf(stderr, "no claim contains that text\n");
    return 1;
  }
  return failures.load() == 0 ? 0 : 1;
}

inline bool readable(int fd, int milliseconds = 0) {
  pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&wait, 1, milliseconds) == 1;
}

// Waits for something that another thread brings about; false after ten seconds.
template <typename Condition>
bool eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

inline std::size_t entries(const char* directory) {
  std::size_t count = 0;
  if (DIR* dir = ::opendir(directory)) {
    while (::readdir(dir) != nullptr) {
      ++count;
    }
    ::closedir(dir);
  }
  return count;
}

// What an engine must not leave behind (INV-10). A thread that was joined may stay listed for a moment.
struct Leftovers {
  std::size_t fds = entries("/proc/self/fd");
  std::size_t threads = entries("/proc/self/task");
  [[nodiscard]] bool none() const {
    return entries("/proc/self/fd") == fds && eventually([&] { return entries("/proc/self/task") == threads; });
  }
};

inline std::string look_for_thread(const std::string& name, const std::string& field) {
  std::string found;
  DIR* dir = ::opendir("/proc/self/task");
  while (const dirent* entry = dir == nullptr ? nullptr : ::readdir(dir)) {
    std::ifstream status(std::string("/proc/self/task/") + entry->d_name + "/status");
    std::string line;
    std::getline(status, line);
    if (line != "Name:\t" + name) {
      continue;
    }
    while (std::getline(status, line)) {
      if (line.starts_with(field + ":\t")) {
        found = line.substr(field.size() + 2);
      }
    }
  }
  if (dir != nullptr) {
    ::closedir(dir);
  }
  return found;
}

// The value of `field` in the /proc status of our thread called `name`; empty if there is none. A thread names itself, so
// it may take a moment.
inline std::string thread_status(const std::string& name, const std::string& field) {
  std::string found;
  static_cast<void>(eventually([&] { return !(found = look_for_thread(name, field)).empty(); }));
  return found;
}

}  // namespace hixl_aio::test

#define HIXL_TEST_JOIN2(a, b) a##b
#define HIXL_TEST_JOIN(a, b) HIXL_TEST_JOIN2(a, b)
#define HIXL_TEST_BODY(name, claim)                                          \
  static void name();                                                        \
  static const ::hixl_aio::test::Registration HIXL_TEST_JOIN(name, _entry){claim, name}; \
  static void name()
#define TEST(claim) HIXL_TEST_BODY(HIXL_TEST_JOIN(test_, __LINE__), claim)

#define CHECK(condition)                                                                     \
  ((condition) ? true : (::hixl_aio::test::fail(__FILE__, __LINE__, "not true: " #condition), false))
#define CHECK_EQ(left, right) \
  ::hixl_aio::test::check_equal(__FILE__, __LINE__, #left " == " #right, (left), (right))
#define REQUIRE(condition)                                            \
  do {                                                                \
    if (!CHECK(condition)) {                                          \
      ::hixl_aio::test::give_up("the rest of this program makes no sense"); \
    }                                                                 \
  } while (false)

#define HIXL_TEST_MAIN \
  int main(int argc, char** argv) { return ::hixl_aio::test::run_all(argc, argv); }
